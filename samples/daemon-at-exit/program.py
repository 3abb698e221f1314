"""A daemon thread is inside a `with` block when the interpreter shuts down; a finaliser wants the lock.

The thread never gets the GIL again: before 3.14 it ends there, since then it sleeps for ever. Either way the lock stays taken.
"""
import threading
import time

import ready
import resources

log_lock = threading.Lock()
inside = threading.Event()


def write():
    with log_lock:
        inside.set()
        while True:
            time.sleep(0.001)


ready.begin(1, outside=True)
ready.start(write, "writer")
inside.wait()
resources.current = resources.Resource(ready.here, log_lock)
