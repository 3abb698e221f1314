"""A lock that a class takes by `with` in one method, and wraps in `lock` and `unlock` methods for others, is one of two that are
taken in opposite orders."""
import threading

import ready

index_lock = threading.Lock()
both = threading.Barrier(2)


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


store = Store()
store.lock()
store.unlock()
ready.begin(3)
ready.join(ready.start(store.save, "save"), ready.start(store.find, "find"))
