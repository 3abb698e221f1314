"""A Lock against an RLock that is held twice."""
import threading

import ready

tree = threading.RLock()
cache = threading.Lock()
both = threading.Barrier(2)


def walk(depth):
    with tree:
        if depth:
            return walk(depth - 1)
        both.wait()
        ready.here()
        with cache:
            pass


def evict():
    with cache:
        both.wait()
        ready.here()
        with tree:
            pass


ready.begin(3)
ready.join(ready.start(walk, "walk", 1), ready.start(evict, "evict"))
