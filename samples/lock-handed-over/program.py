"""Healthy: locks given back by threads whose frames do not show it yet: one is handed the locks through a queue that waits for
its cue, one calls a function that names them, one is a timer's."""
import os
import queue
import select
import socket
import threading

import ready

own, left, right, named, timed = (threading.Lock() for _ in range(5))
jobs = queue.Queue()
cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)
both = threading.Barrier(2)


def again(lock):
    with lock:
        ready.here()
        lock.acquire()


def cross(mine, other):
    with mine:
        both.wait()
        ready.here()
        other.acquire()


def serve():
    while True:
        if jobs.get() is None:
            ready.here()
            continue
        jobs.get().release()


def finish():
    named.release()


def feed():
    ready.here("epoll")
    while cue.poll():
        for lock in (own, left, right):
            jobs.put(1)
            jobs.put(lock)
        finish()


jobs.put(None)
ready.begin(7)
ready.start(again, "own", own)
ready.start(again, "named", named)
ready.start(again, "timed", timed)
ready.start(cross, "left", left, right)
ready.start(cross, "right", right, left)
ready.start(serve, "serve")
timer = threading.Timer(600, timed.release)
timer.daemon = True
timer.start()
ready.start(feed, "feed")
threading.Event().wait()
