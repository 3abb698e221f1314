"""Healthy: threads have taken locks with `acquire` and wait to take them again, until code that says nowhere which lock it
means gives them back: an object that was made with it, one that a module names, a function that is handed it, a child process.
The one who runs it waits for its cue."""
import functools
import multiprocessing
import os
import select
import socket
import threading

import ready

made_with, known, handed = threading.Lock(), threading.Lock(), threading.Lock()
between = multiprocessing.get_context("fork").Lock()
cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)


class Relay:
    def __init__(self, lock):
        self._lock = lock

    def fire(self):
        self._lock.release()


class Turnstile:
    def __init__(self, lock):
        self.gate = lock

    def close(self):
        self.gate.acquire()

    def open(self):
        if self.gate.locked():
            self.gate.release()


turnstile = Turnstile(known)


def give_back(lock):
    lock.release()


def twice(lock):
    lock.acquire()
    ready.here()
    lock.acquire()


def gives(actions):
    ready.here("epoll")
    cue.poll()
    for action in actions:
        action()


ready.begin(5)
ready.start(twice, "made", made_with)
ready.start(twice, "known", known)
ready.start(twice, "handed", handed)
ready.start(twice, "between", between)
actions = [Relay(made_with).fire, turnstile.open, functools.partial(give_back, handed)]
ready.join(ready.start(gives, "gives", actions))
