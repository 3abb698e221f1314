"""Healthy: inside its `with` block "lends" has given the lock back for a while, through a context manager, an object, or a method,
and waits for what "wants" holds. "wants" waits for that lock; "owns" has it, taken by hand, and gives it back after its cue."""
import contextlib
import os
import select
import socket
import threading

import ready

cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)


@contextlib.contextmanager
def unlocked(lock):
    lock.release()
    try:
        yield
    finally:
        lock.acquire()


class Unlocked:
    def __init__(self, lock):
        self._lock = lock

    def __enter__(self):
        self._lock.release()

    def __exit__(self, *error):
        self._lock.acquire()


class Store:
    def __init__(self):
        self._lock = threading.Lock()

    def lock(self):
        self._lock.acquire()

    def unlock(self):
        self._lock.release()

    def lends(self, other, steps):
        with self._lock:
            self.unlock()
            steps.next()
            steps.wait(2)
            ready.here()
            with other:
                pass
            self.lock()


class Steps:
    """What comes after what."""

    def __init__(self):
        self.condition = threading.Condition()
        self.done = 0

    def next(self):
        with self.condition:
            self.done += 1
            self.condition.notify_all()

    def wait(self, number):
        with self.condition:
            self.condition.wait_for(lambda: self.done >= number)


def lends(lock, other, unlocked, steps):
    with lock:
        with unlocked(lock):
            steps.next()
            steps.wait(2)
            ready.here()
            with other:
                pass


def owns(lock, steps):
    steps.wait(1)
    lock.acquire()
    steps.next()
    ready.here("epoll")
    cue.poll()
    lock.release()


def wants(lock, other, steps):
    with other:
        steps.next()
        steps.wait(2)
        ready.here()
        with lock:
            pass


def begin(name, lock, lend):
    other, steps = threading.Lock(), Steps()
    ready.start(wants, name + "-wants", lock, other, steps)
    steps.wait(1)
    steps.done = 0
    ready.start(lend, name + "-lends", other, steps)
    steps.wait(1)
    return ready.start(owns, name + "-owns", lock, steps)


ready.begin(10)
first, second, store = threading.Lock(), threading.Lock(), Store()
begin("manager", first, lambda other, steps: lends(first, other, unlocked, steps))
begin("object", second, lambda other, steps: lends(second, other, Unlocked, steps))
ready.join(begin("method", store._lock, store.lends))
