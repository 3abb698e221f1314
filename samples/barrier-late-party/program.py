"""Healthy: two of three parties wait at a barrier; the third waits for its cue."""
import os
import select
import socket
import threading

import ready

rendezvous = threading.Barrier(3)
cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)


def party(i):
    if i == 2:
        ready.here("epoll")
        cue.poll()
    else:
        ready.here()
    rendezvous.wait()


ready.begin(4)
ready.join(*[ready.start(party, "party-%d" % i, i) for i in range(3)])
