"""A ring of three: a list's critical section, a critical section of two lists, and a native mutex.

"extends" fills `jobs` from an iterator that wants a mutex of the C library, in a call that does not let go of the interpreter;
"merges" adds `jobs` to `done`, has the lock of the one and waits for that of the other; MainThread has the mutex and appends to
`done`. With the GIL, "extends" keeps that.
"""
import ctypes
import threading
import time

import ready

libc = ctypes.CDLL(None)  # detaches around each call, or lets go of the GIL
binding = ctypes.PyDLL(None)  # does neither
mutex = ctypes.create_string_buffer(64)  # a pthread_mutex_t
taken = threading.Event()
done, jobs = sorted(([], []), key=id)  # of two, the one at the lower address is locked first
tids = {}


def asleep(name):
    """The futex that a thread sleeps on, unless it sleeps for a time."""
    if name not in tids:
        return None
    with open("/proc/self/task/%d/syscall" % tids[name]) as f:
        words = f.read().split()
    futex = len(words) == 9 and words[0] in ("202", "98") and int(words[4], 16) == 0
    return int(words[1], 16) if futex else None


class More:
    def __iter__(self):
        return self

    def __next__(self):
        tids["extends"] = threading.get_native_id()
        ready.here()
        binding.pthread_mutex_lock(mutex)
        return 1


def extends():
    taken.wait()
    jobs.extend(More())


def merges():
    ready.here("again" if ready.HAS_GIL else "futex")
    while asleep("extends") != ctypes.addressof(mutex):
        time.sleep(0.001)
    tids["merges"] = threading.get_native_id()
    done.extend(jobs)


def appends():
    libc.pthread_mutex_lock(mutex)
    taken.set()
    ready.here("again" if ready.HAS_GIL else "futex")
    looks = 0
    while looks < 5:  # with the GIL it never gets here again
        looks = looks + 1 if asleep("merges") else 0
        time.sleep(0.001)
    done.append(2)


ready.begin(3, outside=True)
ready.start(extends, "extends")
ready.start(merges, "merges")
appends()
