"""Healthy: locks are used as signals. Who has taken one waits to take it again, or two wait for each other's, until a thread
that never takes any gives them back; it waits for its cue."""
import os
import threading

import ready

own, left, right = threading.Lock(), threading.Lock(), threading.Lock()
cue, _keep = os.pipe()
both = threading.Barrier(2)


def again():
    with own:
        ready.here()
        own.acquire()


def cross(mine, other):
    with mine:
        both.wait()
        ready.here()
        other.acquire()


def gives():
    ready.here("read")
    while os.read(cue, 1):
        for lock in (own, left, right):
            lock.release()


ready.begin(5)
ready.start(again, "again")
ready.start(cross, "left", left, right)
ready.start(cross, "right", right, left)
ready.join(ready.start(gives, "gives"))
