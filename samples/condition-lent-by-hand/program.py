"""Healthy: inside its `with` block a thread has lent the lock to another one by the methods of a condition, and waits to have it
back. The other has it, taken by the same methods, and gives it back after its cue."""
import os
import select
import socket
import threading

import ready

lock = threading.Lock()
changed = threading.Condition(lock)
lent, taken = threading.Event(), threading.Event()
cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)


def lend():
    changed._release_save()
    lent.set()


def pause():
    lend()
    taken.wait()
    ready.here()
    changed._acquire_restore(None)


def lends():
    with lock:
        pause()


def borrows():
    lent.wait()
    changed._acquire_restore(None)
    taken.set()
    ready.here("epoll")
    cue.poll()
    changed._release_save()


ready.begin(3)
ready.join(ready.start(lends, "lends"), ready.start(borrows, "borrows"))
