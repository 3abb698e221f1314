"""Healthy: threads collect, run, and sleep without letting go of the interpreter, again and again.

Without the GIL each collection stops the world; the sleepers hold it up for a while.
"""
import ctypes
import gc
import sys
import threading

import ready

binding = ctypes.PyDLL(None)  # stays attached around each call, or keeps the GIL
lock = threading.Lock()
steps = 0


def sleeps():
    while True:
        binding.usleep(1000)


def runs():
    global steps
    while True:
        with lock:
            steps += 1


def collects(how):
    while True:
        how()


ready.start(sleeps, "sleeps")
ready.start(runs, "runs")
ready.start(collects, "collects", gc.collect)
ready.start(collects, "looks", sys._current_frames)
while steps < 1000:
    pass
ready.begin(0)
runs()
