"""Healthy: the main thread has come to its end and waits for the others, which wait for work."""
import os
import select
import socket
import threading

import ready

cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)


def worker():
    ready.here("epoll")
    cue.poll()


ready.begin(3)
for _ in range(2):
    threading.Thread(target=worker).start()
ready.here()
