"""Threads that take locks at random, in every way the language has, and write down what they hold.

The record is a file of this directory, mapped shared: 8 bytes with the number of locks, the address of each lock object
(8 bytes), and from byte 4096 on 64 bytes a thread: its kernel id (8), how many locks it holds (1), the number + 1 of the
lock it is taking or leaving right now (1), the numbers of those it holds (54). A number + 128 is one that nothing on
the stack needs to prove: taken in a generator that is suspended, or let go while waiting for a condition.
"""
import contextlib
import mmap
import os
import random
import signal
import sys
import threading
import time

SEED, THREADS, TRACE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "trace"
LOCKS, RLOCKS, CONDITIONS = 24, 8, 6
signal.alarm(int(sys.argv[4]))

locks = [threading.Lock() for _ in range(LOCKS)] + [threading.RLock() for _ in range(RLOCKS)]
conditions = []
for n in range(CONDITIONS):
    inner = threading.Lock() if n % 2 else threading.RLock()
    conditions.append((len(locks), threading.Condition(inner)))
    locks.append(inner)

with open("record", "wb") as f:
    f.write(bytes(4096 + 64 * THREADS))
with open("record", "r+b") as f:
    record = mmap.mmap(f.fileno(), 0)
for n, lock in enumerate(locks):
    record[8 + 8 * n:16 + 8 * n] = id(lock).to_bytes(8, "little")
record[0:8] = len(locks).to_bytes(8, "little")


class Oops(Exception):
    pass


class Worker:
    def __init__(self, index):
        self.at = 4096 + 64 * index
        self.rng = random.Random(SEED * 1000 + index)
        self.held = []

    # what is written down; between `moving(k)` and the next call lock k counts as neither held nor free
    def moving(self, k):
        record[self.at + 9] = k + 1

    def push(self, k, loose=False):
        n = len(self.held)
        self.held.append(k)
        record[self.at + 10 + n] = k + (128 if loose else 0)
        record[self.at + 8] = n + 1
        record[self.at + 9] = 0

    def pop(self, k):
        record[self.at + 9] = k + 1
        self.held.pop()
        record[self.at + 8] = len(self.held)

    def left(self):
        record[self.at + 9] = 0

    def choose(self, of):
        free = [k for k in of if not self.held or k > max(self.held)]
        return self.rng.choice(free) if free else None

    def run(self):
        record[self.at:self.at + 8] = threading.get_native_id().to_bytes(8, "little")
        while True:
            try:
                self.step(0)
            except Oops:
                pass

    def step(self, depth):
        rng = self.rng
        if depth > 4 or rng.random() < 0.25:
            return self.work()
        rng.choice([
            self.plain, self.plain, self.pair, self.looping, self.trying, self.managed, self.twice, self.sorting,
            self.generating, self.by_hand, self.condition, self.returning, self.raising, self.deep,
        ])(depth + 1)

    def work(self):
        how = self.rng.random()
        if how < 0.3:
            time.sleep(self.rng.random() * 0.002)
        else:
            sum(i * i for i in range(int(how * 400)))

    def plain(self, depth):
        k = self.choose(range(LOCKS))
        if k is None:
            return self.work()
        self.moving(k)
        with locks[k]:
            self.push(k)
            self.step(depth)
            self.pop(k)
        self.left()

    def pair(self, depth):
        a = self.choose(range(LOCKS - 1))
        if a is None:
            return self.work()
        b = self.rng.randrange(a + 1, LOCKS)
        first, second = Marked(self, a), Marked(self, b)
        self.moving(a)
        with locks[a]:
            self.push(a)
            with first, second.before(), locks[b]:
                self.push(b)
                self.step(depth)
                self.pop(b)
            self.left()
            self.pop(a)
        self.left()

    def looping(self, depth):
        k = self.choose(range(LOCKS))
        if k is None:
            return self.work()
        self.moving(k)
        with locks[k]:
            self.push(k)
            n = 0
            while True:
                n += 1
                if n % 3 == 0:
                    continue
                self.work()
                if self.rng.random() < 0.4:
                    break
            for i in range(3):
                if i == 1 and self.rng.random() < 0.5:
                    break
                self.step(depth + 1)
            self.pop(k)
        self.left()

    def trying(self, depth):
        k = self.choose(range(LOCKS + RLOCKS))
        if k is None:
            return self.work()
        try:
            self.moving(k)
            try:
                with locks[k]:
                    self.push(k)
                    try:
                        self.step(depth)
                        raise ValueError
                    except ValueError:
                        self.work()
                    finally:
                        self.step(depth + 2)
                        self.pop(k)
            finally:
                self.left()
                self.work()
        except KeyError:
            pass

    def managed(self, depth):
        k = self.choose(range(LOCKS))
        if k is None:
            return self.work()
        self.moving(k)
        with guarded(locks[k]):
            self.push(k)
            self.step(depth)
            self.pop(k)
        self.left()

    def twice(self, depth):
        k = self.choose(range(LOCKS, LOCKS + RLOCKS))
        if k is None:
            return self.work()
        self.moving(k)
        with locks[k]:
            with locks[k]:
                self.push(k)
                self.step(depth)
                self.work()
            self.work()
            self.pop(k)
        self.left()

    def sorting(self, depth):
        k = self.choose(range(LOCKS))
        if k is None:
            return self.work()
        self.moving(k)
        with locks[k]:
            self.push(k)
            sorted([2, 1], key=lambda x: self.step(depth + 1) or x)
            self.pop(k)
        self.left()

    def generating(self, depth):
        k = self.choose(range(LOCKS))
        if k is None:
            return self.work()

        def held():
            self.moving(k)
            with locks[k]:
                self.push(k, loose=True)
                yield 1
                self.work()
                yield 2
                self.pop(k)
            self.left()

        for _ in held():
            self.step(depth + 1)

    def by_hand(self, depth):
        k = self.choose(range(LOCKS))
        if k is None:
            return self.work()
        # never in the record: no stack proves it
        locks[k].acquire()
        try:
            self.work()
        finally:
            locks[k].release()

    def condition(self, depth):
        k, condition = self.rng.choice(conditions)
        if self.held and k <= max(self.held):
            return self.work()
        self.moving(k)
        with condition:
            self.push(k)
            self.work()
            self.pop(k)
            self.push(k, loose=True)
            condition.wait(self.rng.random() * 0.01)
            condition.notify_all()
            self.pop(k)
        self.left()

    def returning(self, depth):
        k = self.choose(range(LOCKS))
        if k is None:
            return self.work()
        self.moving(k)
        try:
            return self.inside(k, depth)
        finally:
            self.left()

    def inside(self, k, depth):
        with locks[k]:
            self.push(k)
            self.step(depth)
            self.pop(k)
            return k

    def raising(self, depth):
        k = self.choose(range(LOCKS))
        if k is None:
            return self.work()
        self.moving(k)
        try:
            with locks[k]:
                self.push(k)
                self.step(depth)
                self.pop(k)
                raise Oops
        except Oops:
            self.left()

    def deep(self, depth):
        if depth > 6:
            return self.work()
        return self.deep(depth + 1) if self.rng.random() < 0.5 else self.step(depth)


@contextlib.contextmanager
def guarded(lock):
    with lock:
        yield lock


class Marked:
    """A manager that is no lock, and one that says which lock the next manager of the statement takes."""

    def __init__(self, worker, k):
        self.worker, self.k = worker, k

    def before(self):
        self.worker.moving(self.k)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def traced(frame, event, arg):
    return traced


if TRACE:
    threading.settrace(traced)
for i in range(THREADS):
    threading.Thread(target=Worker(i).run, name="worker-%d" % i, daemon=True).start()
print("ready %d" % os.getpid(), flush=True)
while True:
    time.sleep(1000)
