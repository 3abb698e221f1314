"""Two threads take two Locks in opposite orders, without `with`, while a third thread waits for the outside."""
import os
import threading

import ready

accounts = threading.Lock()
journal = threading.Lock()
both = threading.Barrier(2)
cue, _keep = os.pipe()


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
    ready.here("read")
    os.read(cue, 1)


ready.begin(4)
ready.start(watch, "watch")
ready.join(ready.start(transfer, "transfer"), ready.start(audit, "audit"))
