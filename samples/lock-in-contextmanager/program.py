"""Two locks behind @contextmanager functions: the generators hold them, suspended, while the threads go on."""
import contextlib
import threading

import ready

table_lock = threading.Lock()
index_lock = threading.Lock()
both = threading.Barrier(2)


@contextlib.contextmanager
def exclusive(lock):
    with lock:
        yield


@contextlib.contextmanager
def transaction():
    with exclusive(table_lock):
        yield "transaction"


def insert():
    with transaction():
        both.wait()
        ready.here()
        with index_lock:
            pass


def rebuild():
    with exclusive(index_lock):
        both.wait()
        ready.here()
        with table_lock:
            pass


ready.begin(3)
ready.join(ready.start(insert, "insert"), ready.start(rebuild, "rebuild"))
