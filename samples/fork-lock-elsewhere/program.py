"""Healthy: a process forks inside the `with` block of a lock between processes. The child has a copy of the block's frame, and not
the lock: one of its threads waits for that, and the one with the frame waits for what the other has. The parent gives the lock
back after its cue."""
import multiprocessing
import os
import select
import socket
import threading

import ready

between = multiprocessing.get_context("fork").Lock()
cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)
living, life = os.pipe()  # its end tells of the child's
own, inside = threading.Lock(), threading.Event()


def turn():
    with own:
        inside.set()
        ready.here()
        with between:
            pass


def waits():
    ready.begin(2)
    ready.start(turn, "turn")
    inside.wait()
    ready.here()
    with own:
        pass


with between:
    child = multiprocessing.get_context("fork").Process(target=waits)
    child.start()
    os.close(life)
    cue.register(living)
    cue.poll()
child.join()
