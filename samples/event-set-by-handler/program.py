"""Healthy: all threads wait for the end, which the handler of a signal tells them of."""
import signal
import threading

import ready

stop = threading.Event()


def end(number, frame):
    stop.set()


def work():
    ready.here()
    stop.wait()


signal.signal(signal.SIGTERM, end)
ready.begin(2)
worker = ready.start(work, "worker")
ready.here()
worker.join()
