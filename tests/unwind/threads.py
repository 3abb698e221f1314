"""Python threads in waits of several kinds, deep in Python and in C."""
import functools, queue, re, signal, sys, threading, time

signal.alarm(60)
lock = threading.Lock()
lock.acquire()
sys.setrecursionlimit(2000)


def deep(n):
    return lock.acquire() if n == 0 else deep(n - 1)


class Key:
    def __lt__(self, other):
        return lock.acquire()


class Item:
    def __eq__(self, other):
        deep(5)

    def __hash__(self):
        return 1


bodies = [
    lambda: deep(300),
    lambda: sorted([Key(), Key()]),
    lambda: {Item(): 1}.get(Item()),
    lambda: queue.Queue().get(),
    lambda: list(map(lambda x: deep(x), [10])),
    lambda: functools.reduce(lambda a, b: deep(3), [1, 2, 3]),
    lambda: re.sub("a", lambda m: deep(2), "aaa"),
    lambda: threading.Event().wait(),
    lambda: time.sleep(1000),
    lambda: next(x for x in (deep(i) for i in [4])),
]
threads = [threading.Thread(target=b, daemon=True) for b in bodies]
for t in threads:
    t.start()
print("ready", flush=True)
threads[0].join()
