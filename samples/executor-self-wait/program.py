"""Every worker of an executor runs a task that waits for another task of the same executor."""
import concurrent.futures
import threading

import ready

executor = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="io")
both = threading.Barrier(2)


def part(n):
    return n


def whole(n):
    both.wait()
    rest = executor.submit(part, n)
    ready.here()
    return rest.result()


ready.begin(3)
results = [executor.submit(whole, n) for n in range(2)]
ready.here()
results[0].result()
