"""Threads in an ABBA deadlock with deep Python stacks. usage: stacks.py THREADS FRAMES"""

import signal
import sys
import threading

THREADS, FRAMES = int(sys.argv[1]), int(sys.argv[2])
signal.alarm(600)
sys.setrecursionlimit(FRAMES + 200)
threading.stack_size(1 << 20)
locks = threading.Lock(), threading.Lock()
both = threading.Barrier(2)
deep = threading.Semaphore(0)


def level(n, lock):
    if n > 1:
        return level(n - 1, lock)
    deep.release()
    with lock:
        return "no deadlock"


def worker(i):
    if i > 1:
        return level(FRAMES, locks[i & 1])
    with locks[i]:
        both.wait()
        level(FRAMES, locks[1 - i])


for i in range(THREADS):
    threading.Thread(target=worker, args=(i,), daemon=True).start()
for i in range(THREADS):
    deep.acquire()
# the last of them is between its word and its wait
signal.sigtimedwait([], 0.5)
print("ready", flush=True)
signal.pause()
