"""Healthy, if slow: one thread sleeps under a lock that two others wait for."""
import threading
import time

import ready

results_lock = threading.Lock()
locked = threading.Event()


def compute():
    with results_lock:
        locked.set()
        ready.here("sleep")
        time.sleep(3600)


def use():
    locked.wait()
    ready.here()
    with results_lock:
        pass


ready.begin(4)
ready.join(ready.start(compute, "compute"), ready.start(use, "use-0"), ready.start(use, "use-1"))
