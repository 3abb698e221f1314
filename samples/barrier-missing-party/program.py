"""Two of three parties wait at a barrier; the third ended before it came there."""
import threading

import ready

rendezvous = threading.Barrier(3)


def party(i):
    if i == 2:
        return
    ready.here()
    rendezvous.wait()


ready.begin(3)
threads = [ready.start(party, "party-%d" % i, i) for i in range(3)]
threads[2].join()
ready.join(*threads)
