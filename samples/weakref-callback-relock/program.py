"""The last reference goes under a lock, and a weak reference's callback takes the lock."""
import threading
import weakref

import ready

watch_lock = threading.Lock()


class Watched:
    pass


def forget(reference):
    ready.here()
    with watch_lock:
        watchers.remove(reference)


watched = [Watched()]
watchers = [weakref.ref(watched[0], forget)]


def clear():
    with watch_lock:
        watched.clear()


ready.begin(1)
clear()
