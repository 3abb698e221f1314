"""Healthy: five threads contend for Locks and an RLock, in one order, again and again."""
import sys
import threading

import ready

first, second = threading.Lock(), threading.Lock()
third = threading.RLock()
steps = 0


def move():
    global steps
    while True:
        with first:
            with second, third:
                steps += 1
                with third:
                    steps += 1
        second.acquire()
        steps += 1
        second.release()


sys.setswitchinterval(1e-4)
for i in range(4):
    ready.start(move, "mover-%d" % i)
while steps < 1000:
    pass
ready.begin(0)
move()
