"""Healthy: producers and consumers of a bounded buffer, under one condition."""
import collections
import threading

import ready

buffer = collections.deque()
changed = threading.Condition()
taken = 0


def produce():
    while True:
        with changed:
            while len(buffer) > 3:
                changed.wait()
            buffer.append(1)
            changed.notify_all()


def consume():
    global taken
    while True:
        with changed:
            while not buffer:
                changed.wait()
            taken += buffer.popleft()
            changed.notify_all()


for i in range(2):
    ready.start(produce, "producer-%d" % i)
    ready.start(consume, "consumer-%d" % i)
while taken < 1000:
    pass
ready.begin(0)
threading.Event().wait()
