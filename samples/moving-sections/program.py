"""Healthy: threads change one list and one dictionary, each kept by a lock of its own where there is no GIL."""
import threading

import ready

jobs, done = [], {}
steps = 0


def more():
    for n in range(20):
        yield n
        done[n] = jobs


def fill():
    global steps
    while True:
        jobs.extend(more())
        jobs.append(steps)
        done.update({steps % 50: steps})
        del jobs[:]
        steps += 1


for i in range(4):
    ready.start(fill, "filler-%d" % i)
while steps < 1000:
    pass
ready.begin(0)
fill()
