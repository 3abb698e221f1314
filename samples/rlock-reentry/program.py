"""Healthy: an RLock is taken again by its owner, who then waits for work under it."""
import threading

import ready

lock = threading.RLock()
work = threading.Event()


def descend(depth):
    with lock:
        if depth:
            return descend(depth - 1)
        ready.here()
        work.wait()


ready.begin(2)
ready.join(ready.start(descend, "re-enters", 3))
