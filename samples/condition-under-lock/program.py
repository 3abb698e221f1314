"""A thread keeps a lock while it waits on a condition; who would notify it wants the lock first."""
import threading

import ready

state_lock = threading.Lock()
changed = threading.Condition()
inside = threading.Event()


def consume():
    with state_lock:
        with changed:
            inside.set()
            ready.here()
            changed.wait()


def produce():
    inside.wait()
    ready.here()
    with state_lock:
        with changed:
            changed.notify()


ready.begin(3)
ready.join(ready.start(consume, "consume"), ready.start(produce, "produce"))
