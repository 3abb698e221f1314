"""A worker takes jobs and forgets task_done(); the main thread joins the queue."""
import queue

import ready

jobs = queue.Queue()


def work():
    while True:
        if jobs.get() is None:
            ready.here()


ready.begin(2)
ready.start(work, "worker")
jobs.put("job")
jobs.put(None)
ready.here()
jobs.join()
