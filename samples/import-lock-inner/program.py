"""Healthy: two modules import each other in two threads, which importlib sees and gives way to. The one that is to see it waits
for the inner lock of a module's lock; a third thread is inside that, held up by a trace function until its cue."""
import importlib
import os
import select
import socket
import sys
import threading

import ready

first_begun, inside, go_on = threading.Event(), threading.Event(), threading.Event()
cue, door = select.epoll(), socket.socket(socket.AF_UNIX)
door.bind("\0hangscope-cue-%d" % os.getpid())  # whoever connects gives the cue
door.listen()
cue.register(door)


def hold_up(frame, event, argument):
    if frame.f_code.co_name == "has_deadlock":
        sys.settrace(None)
        inside.set()
        ready.here("epoll")
        cue.poll()


def look_on():
    first_begun.wait()
    sys.settrace(hold_up)
    importlib.import_module("second")


if __name__ == "__main__":
    ready.begin(4)
    ready.join(
        ready.start(lambda: importlib.import_module("first"), "first"),
        ready.start(lambda: (first_begun.wait(), importlib.import_module("second")), "second"),
        ready.start(lambda: (go_on.wait(), look_on()), "looks on"),
    )
