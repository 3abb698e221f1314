"""Healthy: the one thread of a forked process has taken a lock by hand and waits to take it again, until the handler of a signal
gives it back. Nothing of that comes from the parent."""
import os
import signal
import threading

import ready

turn = threading.Lock()


def go_on(number, frame):
    turn.release()


def take():
    turn.acquire()


if os.fork() == 0:
    signal.signal(signal.SIGUSR1, go_on)
    take()
    ready.begin(1)
    ready.here()
    turn.acquire()
    os._exit(0)
os.wait()
os._exit(0)
