"""A list's critical section against a native mutex.

"extends" fills a list from an iterator that wants a mutex of the C library, in a call that does not let go of the interpreter;
MainThread has that mutex and appends to the list. Without the GIL, extending keeps the list's own lock.

usage: program.py [one|two]
"""
import ctypes
import sys
import threading
import time

import ready

libc = ctypes.CDLL(None)  # detaches around each call, or lets go of the GIL
binding = ctypes.PyDLL(None)  # does neither
mutex = ctypes.create_string_buffer(64)  # a pthread_mutex_t
taken = threading.Event()
jobs = []
tid = 0


def asleep():
    with open("/proc/self/task/%d/syscall" % tid) as f:
        return f.read().split()[1:2] == [hex(ctypes.addressof(mutex))]


class More:
    def __iter__(self):
        return self

    def __next__(self):
        global tid
        ready.here()
        tid = threading.get_native_id()
        binding.pthread_mutex_lock(mutex)
        return 1


def extends():
    taken.wait()
    jobs.extend(More())


def appends():
    libc.pthread_mutex_lock(mutex)
    taken.set()
    ready.here("again" if ready.HAS_GIL else "futex")
    while not tid or not asleep():
        time.sleep(0.001)
    if sys.argv[1:] == ["two"]:
        [].extend(jobs)  # in the critical sections of two lists
    else:
        jobs.append(2)


ready.begin(2, outside=True)
ready.start(extends, "extends")
appends()
