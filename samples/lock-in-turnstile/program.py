"""Healthy: the twin of lock-in-wrapper. A class wraps a lock in two methods, and a thread inside a `with` block of that lock waits
in the one until another thread calls the other; two more wait so for each other's. Who calls it waits for its cue."""
import os
import select
import socket
import threading

import ready

cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)
both = threading.Barrier(2)


class Turnstile:
    def __init__(self):
        self._lock = threading.Lock()

    def wait(self):
        self._lock.acquire()

    def open(self):
        self._lock.release()

    def pass_through(self):
        with self._lock:
            ready.here()
            self.wait()

    def pass_to(self, other):
        with self._lock:
            both.wait()
            ready.here()
            other.wait()


own, left, right = Turnstile(), Turnstile(), Turnstile()


def opens():
    ready.here("epoll")
    while cue.poll():
        for turnstile in (own, left, right):
            turnstile.open()


ready.begin(5)
ready.start(own.pass_through, "own")
ready.start(left.pass_to, "left", right)
ready.start(right.pass_to, "right", left)
ready.join(ready.start(opens, "opens"))
