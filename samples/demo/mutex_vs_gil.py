"""A native mutex against the GIL.

Thread "importer" takes a pthread mutex and then runs Python, for which it needs the GIL. MainThread takes the same mutex
through ctypes.PyDLL, which keeps the GIL while it waits.
"""
import ctypes
import os
import signal
import threading
import time

OTHERS = 3
releases_the_gil = ctypes.CDLL(None)
keeps_the_gil = ctypes.PyDLL(None)
mutex = (ctypes.c_uint64 * 8)()  # zeros: PTHREAD_MUTEX_INITIALIZER
importing = threading.Event()


def import_handle():
    while True:
        releases_the_gil.pthread_mutex_lock(mutex)
        importing.set()
        time.sleep(0.05)  # lets go of the GIL, and wants it back under the mutex
        releases_the_gil.pthread_mutex_unlock(mutex)


def open_handle():
    while True:
        keeps_the_gil.pthread_mutex_lock(mutex)
        keeps_the_gil.pthread_mutex_unlock(mutex)


def serve():
    while True:
        time.sleep(0.01)


signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.alarm(120)  # a demo ends by itself
print("started", os.getpid(), flush=True)
for i in range(OTHERS):
    threading.Thread(target=serve, name="server-%d" % i, daemon=True).start()
threading.Thread(target=import_handle, name="importer", daemon=True).start()
importing.wait()
open_handle()
