"""A thread waits for a future while it keeps a lock that the worker wants."""
import concurrent.futures
import threading

import ready

pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="io")
cache = threading.Lock()


def load():
    ready.here()
    with cache:
        return 1


def refresh():
    with cache:
        work = pool.submit(load)
        ready.here()
        return work.result()


ready.begin(3)
ready.join(ready.start(refresh, "refresh"))
