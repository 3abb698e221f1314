"""Three threads, three Locks, each wants the next one's; two managers in one statement."""
import threading

import ready

forks = [threading.Lock() for _ in range(3)]
all_three = threading.Barrier(3)


class Met:
    """Between the two locks: all have their first one."""

    def __enter__(self):
        all_three.wait()
        ready.here()

    def __exit__(self, *error):
        pass


def dine(i):
    left, right = forks[i], forks[(i + 1) % 3]
    with left, Met(), right:
        pass


ready.begin(4)
ready.join(*[ready.start(dine, "philosopher-%d" % i, i) for i in range(3)])
