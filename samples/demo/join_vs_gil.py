"""A thread joined with the GIL held.

MainThread starts a native thread and joins it through ctypes.PyDLL, which keeps the GIL meanwhile. The thread's last act
is a Python callback, and that needs the GIL.
"""
import ctypes
import os
import signal

keeps_the_gil = ctypes.PyDLL(None)


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def on_complete(argument):
    return None


def close():
    while True:
        worker = ctypes.c_ulong()
        keeps_the_gil.pthread_create(ctypes.byref(worker), None, on_complete, None)
        keeps_the_gil.pthread_join(worker, None)


signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.alarm(120)  # a demo ends by itself
print("started", os.getpid(), flush=True)
close()
