"""The last reference goes under a lock, and the object's __del__ takes the lock."""
import threading

import ready

cache_lock = threading.Lock()
cache = {}


class Entry:
    def __del__(self):
        ready.here()
        with cache_lock:
            cache.pop("gone", None)


def evict(key):
    with cache_lock:
        cache[key] = None


cache["key"] = Entry()
ready.begin(1)
evict("key")
