"""Two threads take two Locks in opposite orders, without `with`, while a third thread waits for the outside."""
import os
import select
import socket
import threading

import ready

accounts = threading.Lock()
journal = threading.Lock()
both = threading.Barrier(2)
cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)


def transfer():
    accounts.acquire()
    both.wait()
    ready.here()
    journal.acquire()
    journal.release()
    accounts.release()


def audit():
    journal.acquire()
    both.wait()
    ready.here()
    accounts.acquire()
    accounts.release()
    journal.release()


def watch():
    ready.here("epoll")
    cue.poll()


ready.begin(4)
ready.start(watch, "watch")
ready.join(ready.start(transfer, "transfer"), ready.start(audit, "audit"))
