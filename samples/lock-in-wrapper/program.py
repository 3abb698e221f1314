"""A lock that a class takes by `with` in one method, and wraps in `lock` and `unlock` methods for others, is one of two that are
taken in opposite orders. One more thread waits for the outside."""
import os
import threading

import ready

index_lock = threading.Lock()
both = threading.Barrier(2)
cue, _keep = os.pipe()


class Store:
    def __init__(self):
        self._lock = threading.Lock()

    def lock(self):
        self._lock.acquire()

    def unlock(self):
        self._lock.release()

    def save(self):
        with self._lock:
            both.wait()
            ready.here()
            with index_lock:
                pass

    def find(self):
        with index_lock:
            both.wait()
            ready.here()
            with self._lock:
                pass


def watch():
    ready.here("read")
    os.read(cue, 1)


store = Store()
store.lock()
store.unlock()
ready.begin(4)
ready.start(watch, "watch")
ready.join(ready.start(store.save, "save"), ready.start(store.find, "find"))
