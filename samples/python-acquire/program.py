"""Two threads take two Locks in opposite orders, without `with`: nothing on their stacks says which they have."""
import threading

import ready

accounts = threading.Lock()
journal = threading.Lock()
both = threading.Barrier(2)


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


ready.begin(3)
ready.join(ready.start(transfer, "transfer"), ready.start(audit, "audit"))
