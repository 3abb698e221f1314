"""Healthy: locks as signals, given back by code that does not name `release`: by getattr, operator.methodcaller, the exit method,
ctypes. Who waits for them has taken them before, by hand or by `with`. Who gives them waits for its cue."""
import ctypes
import operator
import os
import select
import socket
import threading

import ready

by_getattr, by_caller, by_exit, by_ctypes, left, right, own = (threading.Lock() for _ in range(7))
cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)
both = threading.Barrier(2)
call = ctypes.pythonapi.PyObject_CallMethod
call.argtypes, call.restype = [ctypes.py_object, ctypes.c_char_p, ctypes.c_char_p], ctypes.py_object


def twice(lock):
    lock.acquire()
    ready.here()
    lock.acquire()


def cross(mine, other):
    mine.acquire()
    both.wait()
    ready.here()
    other.acquire()


def again(lock):
    with lock:
        ready.here()
        lock.acquire()


def gives():
    ready.here("epoll")
    while cue.poll():
        for lock in (by_getattr, left, right, own):
            getattr(lock, "".join(("re", "lease")))()
        operator.methodcaller("rel" + "ease")(by_caller)
        by_exit.__exit__()
        call(by_ctypes, b"rel" b"ease", None)


ready.begin(9)
ready.start(twice, "getattr", by_getattr)
ready.start(twice, "caller", by_caller)
ready.start(twice, "exit", by_exit)
ready.start(twice, "ctypes", by_ctypes)
ready.start(cross, "left", left, right)
ready.start(cross, "right", right, left)
ready.start(again, "own", own)
ready.join(ready.start(gives, "gives"))
