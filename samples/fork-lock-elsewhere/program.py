"""Healthy: a process forks inside the `with` block of a lock between processes. The child waits its turn: it has a copy of the
block's frame, and not the lock, which the parent gives back after its cue."""
import multiprocessing
import os
import select
import socket

import ready

between = multiprocessing.get_context("fork").Lock()
cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)


living, life = os.pipe()  # its end tells of the child's


def waits():
    ready.begin(1)
    ready.here()
    with between:
        pass


with between:
    child = multiprocessing.get_context("fork").Process(target=waits)
    child.start()
    os.close(life)
    cue.register(living)
    cue.poll()
child.join()
