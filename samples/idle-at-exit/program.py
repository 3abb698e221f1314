"""Healthy: the main thread has come to its end and waits for the others, which wait for work."""
import os
import threading

import ready

cue, _keep = os.pipe()


def worker():
    ready.here("read")
    os.read(cue, 1)


ready.begin(3)
for _ in range(2):
    threading.Thread(target=worker).start()
ready.here()
