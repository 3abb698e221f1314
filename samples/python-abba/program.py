"""Two threads take two Locks in opposite orders."""
import threading

import ready

accounts = threading.Lock()
journal = threading.Lock()
both = threading.Barrier(2)


def transfer():
    with accounts:
        both.wait()
        ready.here()
        with journal:
            pass


def audit():
    with journal:
        both.wait()
        ready.here()
        with accounts:
            pass


ready.begin(3)
ready.join(ready.start(transfer, "transfer"), ready.start(audit, "audit"))
