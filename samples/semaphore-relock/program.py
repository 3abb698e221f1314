"""A Semaphore(1) used as a lock, and taken again inside."""
import threading

import ready

connections = threading.Semaphore(1)


def query(then):
    with connections:
        then()


def again():
    ready.here()
    query(int)


ready.begin(2)
ready.join(ready.start(query, "query", again))
