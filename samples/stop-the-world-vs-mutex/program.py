"""A collection against a native mutex.

MainThread takes a mutex of the C library and collects garbage. "attached" wants that mutex in a call that does not let go of
the interpreter. With the GIL, "attached" keeps it; without, the collection stops all threads, and "attached" does not stop;
"runs" does, and waits to go on.

usage: program.py [collect|frames|fork]
"""
import ctypes
import gc
import os
import sys
import threading
import time

import ready

libc = ctypes.CDLL(None)  # detaches around each call, or lets go of the GIL
binding = ctypes.PyDLL(None)  # does neither
mutex = ctypes.create_string_buffer(64)  # a pthread_mutex_t
taken = threading.Event()
tid = 0


def asleep():
    with open("/proc/self/task/%d/syscall" % tid) as f:
        return f.read().split()[1:2] == [hex(ctypes.addressof(mutex))]


def attached():
    global tid
    taken.wait()
    ready.here()
    tid = threading.get_native_id()
    binding.pthread_mutex_lock(mutex)


def collects():
    libc.pthread_mutex_lock(mutex)
    taken.set()
    ready.here("again")
    while not tid or not asleep():
        time.sleep(0.001)
    STOPS[sys.argv[1]]()


def runs():
    ready.here("again" if ready.HAS_GIL else "futex")
    while True:
        pass


STOPS = {"collect": gc.collect, "frames": sys._current_frames, "fork": os.fork}
ready.begin(3, outside=True)
ready.start(runs, "runs")
ready.start(attached, "attached")
collects()
