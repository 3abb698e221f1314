"""A PyMutex, the interpreter's own small lock: it records no owner, and what waits for it can be told all the same.

"has" locks it from C and sleeps in a read; "wants" waits for it.
"""
import ctypes
import os

import ready

api = ctypes.pythonapi
mutex = ctypes.create_string_buffer(8)  # a PyMutex
pipe, _ = os.pipe()


def wants():
    ready.here()
    api.PyMutex_Lock(mutex)


api.PyMutex_Lock(mutex)
ready.begin(2)
ready.start(wants, "wants")
ready.here("read")
os.read(pipe, 1)
