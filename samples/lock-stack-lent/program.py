"""Healthy: threads are inside `with` blocks of objects that hold a lock for them, and wait for that lock, until a thread that was
handed the object ends it: an ExitStack, what was moved out of one, a context manager, a generator. It waits for its cue."""
import contextlib
import os
import select
import socket
import threading

import ready

stacked, moved, managed, generated = (threading.Lock() for _ in range(4))
enders = []
cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)


@contextlib.contextmanager
def exclusive(lock):
    with lock:
        yield


def rows(lock):
    with lock:
        yield 1


def stack():
    with contextlib.ExitStack() as held:
        held.enter_context(stacked)
        enders.append(held.close)
        ready.here()
        with stacked:
            pass


def move():
    with contextlib.ExitStack() as held:
        held.enter_context(moved)
        enders.append(held.pop_all().close)
        ready.here()
        with moved:
            pass


def manage():
    manager = exclusive(managed)
    with manager:
        enders.append(lambda: manager.__exit__(None, None, None))
        ready.here()
        with managed:
            pass


def generate():
    held = rows(generated)
    next(held)
    enders.append(held.close)
    ready.here()
    with generated:
        pass


def ends():
    ready.here("epoll")
    while cue.poll():
        for end in enders:
            end()


ready.begin(6)
for function in stack, move, manage, generate:
    ready.start(function, function.__name__)
ready.join(ready.start(ends, "ends"))
