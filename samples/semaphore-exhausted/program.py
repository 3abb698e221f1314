"""Two threads have the two connections there are, and each wants a second one."""
import threading

import ready

connections = threading.BoundedSemaphore(2)
both = threading.Barrier(2)


def query():
    with connections:
        both.wait()
        ready.here()
        with connections:
            pass


ready.begin(3)
ready.join(ready.start(query, "query-1"), ready.start(query, "query-2"))
