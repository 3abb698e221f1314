"""A generator is suspended inside a `with`, and the loop over it takes the lock again."""
import threading

import ready

table_lock = threading.Lock()


def rows():
    with table_lock:
        for row in range(3):
            yield row


def work():
    for row in rows():
        ready.here()
        with table_lock:
            print(row)


ready.begin(2)
ready.join(ready.start(work, "work"))
