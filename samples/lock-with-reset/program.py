"""Two locks that are taken by `with` alone, in opposite orders. One has a method that gives it back, for recovery, which nobody
calls; and one more thread waits for the outside."""
import os
import select
import socket
import threading

import ready

index_lock = threading.Lock()
both = threading.Barrier(2)
cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)


class Store:
    def __init__(self):
        self._lock = threading.Lock()

    def reset(self):
        if self._lock.locked():
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
    ready.here("epoll")
    cue.poll()


store = Store()
ready.begin(4)
ready.start(watch, "watch")
ready.join(ready.start(store.save, "save"), ready.start(store.find, "find"))
