"""Healthy: a thread waits for the permit it has taken itself, until another one, that waits for its cue, gives one."""
import os
import threading

import ready

turns = threading.BoundedSemaphore(1)
cue, _keep = os.pipe()


def play():
    with turns:
        ready.here()
        with turns:
            pass


def serve():
    ready.here("read")
    while os.read(cue, 1):
        give()


def give():
    turns.release()


ready.begin(3)
ready.start(serve, "serve")
ready.join(ready.start(play, "play"))
