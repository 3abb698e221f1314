"""Healthy: a thread waits for the permit it has taken itself, until another one, that waits for its cue, gives one."""
import os
import select
import socket
import threading

import ready

turns = threading.BoundedSemaphore(1)
cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)


def play():
    with turns:
        ready.here()
        with turns:
            pass


def serve():
    ready.here("epoll")
    while cue.poll():
        give()


def give():
    turns.release()


ready.begin(3)
ready.start(serve, "serve")
ready.join(ready.start(play, "play"))
