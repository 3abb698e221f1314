"""A signal arrives under a lock, and its handler takes the lock."""
import os
import signal
import threading

import ready

stats_lock = threading.Lock()
count = 0


def report(number, frame):
    ready.here()
    with stats_lock:
        print(count)


def work():
    global count
    with stats_lock:
        count += 1
        os.kill(os.getpid(), signal.SIGUSR1)
        while True:  # the handler runs here
            count += 1


signal.signal(signal.SIGUSR1, report)
ready.begin(1)
work()
