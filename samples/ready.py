"""How a Python sample says that it hangs where it should: the twin of ready.h, without a compiler.

Every thread that matters calls `here()` just before the call that never returns. From then on it may only meet the GIL, whose
waits have a time-out. An observer looks at /proc until each of them sleeps without a time-out, in the very same call on
several looks in a row; then it writes the line `ready PID` and is gone. No sleep is taken for a proof. The observer is a
thread named "observer"; `outside=True` makes it a process of its own, for programs whose threads are stopped when it looks.

A sample ends by itself (SIGALRM) after two minutes, or HANGSCOPE_SAMPLE_SECONDS.
"""
import _thread
import itertools
import mmap
import os
import signal
import struct
import sys
import threading
import time

LOOKS, PATIENCE = 5, 30.0
MOST = 64
# Numbers of system calls: x86-64, aarch64.
CALLS = {
    "futex": ((202,), (98,)),
    "again": ((202,), (98,)),  # a futex wait that ends after a time and is begun again: the GIL, the stop of all threads
    "epoll": ((232, 281), (22,)),
    "sleep": ((230, 23, 270), (115, 72)),
    "wait": ((61, 247), (260, 95)),
    "read": ((0,), (63,)),
}
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
ARM = os.uname().machine == "aarch64"

_table = mmap.mmap(-1, 8 * MOST)  # of each thread its tid and the call it sleeps in; shared with an outside observer
_next = itertools.count()
_pid = 0


def here(call="futex"):
    """The calling thread next sleeps in this call, and stays there."""
    struct.pack_into("ii", _table, 8 * next(_next), threading.get_native_id(), list(CALLS).index(call) + 1)


def _asleep(tid, call):
    """What says where the thread sleeps, if it sleeps in such a call and no time-out will end it."""
    if not call:
        return None
    try:
        fd = os.open("/proc/%d/task/%d/syscall" % (_pid, tid), os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.read(fd, 200).decode()
    except OSError:
        return None
    finally:
        os.close(fd)
    words = text.split()  # "running", or the number, six arguments, the stack pointer and the program counter
    name = list(CALLS)[call - 1]
    if len(words) != 9 or int(words[0]) not in CALLS[name][ARM]:
        return None
    if name in ("futex", "again") and int(words[2], 16) & 0x7F not in (0, 9):
        return None
    if name in ("futex", "again") and (int(words[4], 16) != 0) != (name == "again"):
        return None
    return text


def _observe(threads):
    began, looks, before = time.monotonic(), 0, None
    while looks < LOOKS:
        time.sleep(0.002)
        places = [struct.unpack_from("ii", _table, 8 * i) for i in range(threads)]
        seen = [_asleep(*place) for place in places]
        looks = looks + 1 if None not in seen and seen == before else 0
        before = seen
        if time.monotonic() - began > PATIENCE:
            missing = [place for place, text in zip(places, seen) if text is None]
            os.write(2, ("never ready: (thread, call) %r\n" % (missing,)).encode())
            os.kill(_pid, signal.SIGKILL)
            return
    os.write(1, ("ready %d\n" % _pid).encode())


def _observer(threads):
    try:
        fd = os.open("/proc/self/task/%d/comm" % threading.get_native_id(), os.O_WRONLY)
        os.write(fd, b"observer")
        os.close(fd)
    except OSError:
        pass
    _observe(threads)


def begin(threads, outside=False):
    """Starts the observer, who waits for so many threads to be in their places. Call it before the first lock is taken."""
    global _pid
    _pid = os.getpid()
    signal.alarm(int(os.environ.get("HANGSCOPE_SAMPLE_SECONDS", "120")))
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as f:
            restricted = f.read(1) == "1"
    except OSError:
        restricted = False
    if restricted:  # a sample is there to be looked at
        import ctypes

        ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
    if not outside:
        _thread.start_new_thread(_observer, (threads,))
    elif not os.fork():
        if not os.fork():
            _observe(threads)
        os._exit(0)
    else:
        os.wait()


def start(target, name, *args, daemon=True):
    """Starts a named thread."""
    thread = threading.Thread(target=target, name=name, args=args, daemon=daemon)
    thread.start()
    return thread


def join(*threads):
    """Waits for them for ever, as the last thing the calling thread does."""
    here()
    for thread in threads:
        thread.join()
