"""The loader's lock against the GIL, as Python programs with native libraries meet it.

Thread "lister" asks the loader for its modules. ctypes.CDLL lets go of the GIL for the call; the loader takes its lock and
calls back into Python, and so the thread needs the GIL while it holds the loader's lock.

MainThread calls the loader through ctypes.PyDLL, which keeps the GIL, as a binding does that forgot to release it.
"""
import ctypes
import os
import signal
import threading
import time

OTHERS = 6
releases_the_gil = ctypes.CDLL(None)
keeps_the_gil = ctypes.PyDLL(None)
listing = threading.Event()


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
def on_module(module, size, data):
    listing.set()
    time.sleep(0.05)  # lets go of the GIL, and wants it back under the loader's lock
    return 0


def list_modules():
    while True:
        releases_the_gil.dl_iterate_phdr(on_module, None)


def load_kernels():
    while True:
        keeps_the_gil.dl_iterate_phdr(on_module, None)


def serve():
    while True:
        time.sleep(0.01)


signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.alarm(120)  # a demo ends by itself
print("started", os.getpid(), flush=True)
for i in range(OTHERS):
    threading.Thread(target=serve, name="server-%d" % i, daemon=True).start()
threading.Thread(target=list_modules, name="lister", daemon=True).start()
listing.wait()
load_kernels()
