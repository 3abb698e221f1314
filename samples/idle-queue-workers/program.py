"""Healthy: workers wait for jobs, on a Queue and on a SimpleQueue; the main thread waits for an event."""
import queue
import threading

import ready

jobs = queue.Queue()
notices = queue.SimpleQueue()
stop = threading.Event()


def work(source):
    while True:
        if source.get() is None:
            ready.here()


ready.begin(5)
for i in range(2):
    ready.start(work, "worker-%d" % i, jobs)
    ready.start(work, "notifier-%d" % i, notices)
    for source in jobs, notices:
        source.put("job")
for source in jobs, notices:
    source.put(None)
    source.put(None)
ready.here()
stop.wait()
