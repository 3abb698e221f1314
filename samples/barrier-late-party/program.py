"""Healthy: two of three parties wait at a barrier; the third waits for its cue."""
import os
import threading

import ready

rendezvous = threading.Barrier(3)
cue, _keep = os.pipe()


def party(i):
    if i == 2:
        ready.here("read")
        os.read(cue, 1)
    else:
        ready.here()
    rendezvous.wait()


ready.begin(4)
ready.join(*[ready.start(party, "party-%d" % i, i) for i in range(3)])
