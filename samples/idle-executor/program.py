"""Healthy: an executor's workers wait for work, and the main thread for an event."""
import concurrent.futures
import ctypes
import os
import threading

binding = ctypes.PyDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libidle.so"))


def job(i):
    binding.ready_beyond_gates()
    started.wait()
    return i


binding.ready_begin(4)
started = threading.Barrier(4)
executor = concurrent.futures.ThreadPoolExecutor(4, thread_name_prefix="worker")
results = [executor.submit(job, i) for i in range(4)]
for result in results:
    result.result()
threading.Event().wait()
