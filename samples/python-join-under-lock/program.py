"""A service stops its worker under the lock that the worker wants."""
import threading

import ready


class Service:
    def __init__(self):
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.worker = ready.start(self.work, "worker")

    def work(self):
        self.stopping.wait()
        ready.here()
        with self.lock:
            pass

    def stop(self):
        with self.lock:
            self.stopping.set()
            ready.here()
            self.worker.join()


ready.begin(2)
Service().stop()
