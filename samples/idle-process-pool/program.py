"""Healthy: a pool of processes that waits for work: one worker reads the pipe under the queue's lock, the others wait for it."""
import multiprocessing
import os
import threading

import ready

cue, _keep = os.pipe()


def square(n):
    return n * n


if __name__ == "__main__":
    ready.begin(1)
    pool = multiprocessing.get_context("fork").Pool(3)
    pool.map(square, range(6))
    ready.here("read")
    os.read(cue, 1)
