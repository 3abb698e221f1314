"""Threads that take and give back locks at random, in every way there is, and write down what they hold.

usage: program.py NOTES SEED [trace] [unlock]

NOTES is mapped, shared: of each lock its address (8 bytes each), of each thread its tid (8 bytes each), then of each thread
and each lock a byte: what that thread has to say of that lock. Taking a lock and writing it down are two steps; between
them the byte says MOVING. Nobody ever waits for ever: locks are taken in ascending order.
"""
import contextlib
import gc
import mmap
import os
import queue
import random
import signal
import struct
import sys
import threading
import time

THREADS, LOCKS, RLOCKS = 5, 10, 3
ALL = LOCKS + RLOCKS
FREE, MOVING, WITH, ACQUIRED, GENERATOR, STACKED = range(6)
BYTES = 8 * (ALL + THREADS)

notes = None
closing = queue.SimpleQueue()


class Oops(Exception):
    pass


class Worker(threading.Thread):
    def __init__(self, number, seed, locks, unlock):
        super().__init__(name="worker-%d" % number, daemon=True)
        self.number = number
        self.random = random.Random(seed)
        self.locks = locks
        self.conditions = {i: threading.Condition(locks[i]) for i in range(0, ALL, 3)}
        self.top = []
        self.counts = [0] * ALL
        self.unlock = unlock
        self.ways = [
            self.plain,
            self.in_try,
            self.raises,
            self.two,
            self.looping,
            self.looping_to_break,
            self.returns,
            self.in_except,
            self.in_sorted,
            self.generated,
            self.managed,
            self.by_hand,
            self.by_hand_in_try,
            self.with_patience,
            self.stacked,
            self.waiting,
        ]
        if unlock:
            self.ways += [self.unlocked_a_while] * 3 + [self.lent, self.moved]

    # what is written down

    def moving(self, i):
        if not self.counts[i]:
            notes[BYTES + self.number * ALL + i] = MOVING

    def held(self, i, how):
        self.counts[i] += 1
        self.top.append(i)
        if self.counts[i] == 1:
            notes[BYTES + self.number * ALL + i] = how

    def leaving(self, i):
        self.top.pop()
        self.counts[i] -= 1
        self.moving(i)

    def free(self, i):
        if not self.counts[i]:
            notes[BYTES + self.number * ALL + i] = FREE

    # what is done under a lock

    def run(self):
        struct.pack_into("Q", notes, 8 * (ALL + self.number), threading.get_native_id())
        while True:
            self.inside(0)

    def rest(self):
        kind = self.random.randrange(8)
        if kind < 3:
            for _ in range(self.random.randrange(2000)):
                pass
        elif kind < 6:
            time.sleep(self.random.random() * 0.003)
        elif kind < 7:
            sorted(range(200), key=lambda x: -x)
        elif self.random.random() < 0.02:
            gc.collect()

    def inside(self, depth):
        for _ in range(1 + self.random.randrange(2)):
            self.rest()
            if depth < 4:
                i = self.pick()
                if i is not None:
                    self.random.choice(self.ways)(i, depth + 1)
        self.rest()

    def pick(self):
        """A lock above all that are held, or an RLock that is."""
        mine = [i for i in self.top if i >= LOCKS]
        if mine and self.random.random() < 0.2:
            return self.random.choice(mine)
        lowest = max(self.top) + 1 if self.top else 0
        return self.random.randrange(lowest, ALL) if lowest < ALL else None

    # the ways to take one

    def plain(self, i, depth):
        self.moving(i)
        with self.locks[i]:
            self.held(i, WITH)
            self.inside(depth)
            self.leaving(i)
        self.free(i)

    def in_try(self, i, depth):
        self.moving(i)
        try:
            with self.locks[i]:
                try:
                    self.held(i, WITH)
                    self.inside(depth)
                finally:
                    self.rest()
                    self.leaving(i)
        finally:
            self.free(i)

    def raises(self, i, depth):
        self.moving(i)
        try:
            with self.locks[i] as taken:
                self.held(i, WITH)
                try:
                    self.inside(depth)
                    if taken:
                        raise Oops
                except KeyError:
                    pass
                finally:
                    self.leaving(i)
        except Oops:
            self.free(i)
            self.rest()

    def two(self, i, depth):
        if i + 1 >= ALL or self.counts[i]:
            return self.plain(i, depth)
        self.moving(i)
        self.moving(i + 1)
        with self.locks[i], self.locks[i + 1]:
            self.held(i, WITH)
            self.held(i + 1, WITH)
            self.inside(depth)
            self.leaving(i + 1)
            self.leaving(i)
        self.free(i)
        self.free(i + 1)

    def looping(self, i, depth):
        for turn in range(2):
            self.moving(i)
            with self.locks[i]:
                self.held(i, WITH)
                for again in range(3):
                    if again == 1:
                        continue
                    self.inside(depth)
                self.leaving(i)
            self.free(i)

    def looping_to_break(self, i, depth):
        self.moving(i)
        with self.locks[i]:
            self.held(i, WITH)
            n = self.random.randrange(20000)
            while True:
                n -= 1
                if n < 0:
                    break
            self.rest()
            self.leaving(i)
        self.free(i)

    def returns(self, i, depth):
        self.returned(i, depth)
        self.free(i)

    def returned(self, i, depth):
        self.moving(i)
        with self.locks[i]:
            self.held(i, WITH)
            self.inside(depth)
            self.leaving(i)
            return i

    def in_except(self, i, depth):
        try:
            raise Oops
        except Oops as e:
            self.moving(i)
            with self.locks[i]:
                self.held(i, WITH)
                self.inside(depth)
                str(e)
                self.leaving(i)
            self.free(i)

    def in_sorted(self, i, depth):
        def key(n):
            if n == 1:
                self.plain(i, depth)
            return -n

        sorted(range(3), key=key)

    def holding(self, i):
        self.moving(i)
        with self.locks[i]:
            self.held(i, GENERATOR)
            yield i
            self.leaving(i)
        self.free(i)

    def generated(self, i, depth):
        for _ in self.holding(i):
            self.inside(depth)

    @contextlib.contextmanager
    def exclusive(self, i):
        self.moving(i)
        with self.locks[i]:
            self.held(i, WITH)
            yield
            self.leaving(i)
        self.free(i)

    def managed(self, i, depth):
        with self.exclusive(i):
            self.inside(depth)

    def by_hand(self, i, depth):
        lock = self.locks[i]
        self.moving(i)
        lock.acquire()
        self.held(i, ACQUIRED)
        self.inside(depth)
        self.leaving(i)
        lock.release()
        self.free(i)

    def by_hand_in_try(self, i, depth):
        self.moving(i)
        self.locks[i].acquire()
        try:
            self.held(i, ACQUIRED)
            self.inside(depth)
        finally:
            self.leaving(i)
            self.locks[i].release()
        self.free(i)

    def with_patience(self, i, depth):
        self.moving(i)
        if self.locks[i].acquire(timeout=0.002):
            self.held(i, ACQUIRED)
            self.inside(depth)
            self.leaving(i)
            self.locks[i].release()
        self.free(i)

    def stacked(self, i, depth):
        with contextlib.ExitStack() as stack:
            self.moving(i)
            stack.enter_context(self.locks[i])
            self.held(i, STACKED)
            self.inside(depth)
            self.leaving(i)
        self.free(i)

    def waiting(self, i, depth):
        """Condition.wait lets go of the lock inside the `with` block, of an RLock all takings at once."""
        condition = self.conditions.get(i)
        if condition is None or self.counts[i]:
            return self.plain(i, depth)
        self.moving(i)
        with condition:
            self.held(i, WITH)
            self.rest()
            self.leaving(i)
            condition.wait(self.random.random() * 0.005)
            self.held(i, WITH)
            self.rest()
            condition.notify()
            self.leaving(i)
        self.free(i)

    def unlocked_a_while(self, i, depth):
        """Lets go inside the `with` block by hand, and takes it back."""
        if self.counts[i]:
            return self.plain(i, depth)
        self.moving(i)
        with self.locks[i]:
            self.held(i, WITH)
            self.rest()
            self.leaving(i)
            self.locks[i].release()
            self.free(i)
            self.rest()
            self.moving(i)
            self.locks[i].acquire()
            self.held(i, WITH)
            self.rest()
            self.leaving(i)
        self.free(i)


    def lent(self, i, depth):
        """An ExitStack that another thread closes, while its block is still entered."""
        if self.counts[i] or i >= LOCKS:
            return self.plain(i, depth)
        with contextlib.ExitStack() as stack:
            self.moving(i)
            stack.enter_context(self.locks[i])
            self.held(i, STACKED)
            self.rest()
            self.leaving(i)
            closed = threading.Event()
            closing.put((stack, closed))
            closed.wait()
            self.free(i)
            self.rest()

    def moved(self, i, depth):
        """What one ExitStack holds is moved to another."""
        with contextlib.ExitStack() as stack:
            self.moving(i)
            stack.enter_context(self.locks[i])
            self.held(i, STACKED)
            self.rest()
            with stack.pop_all():
                self.inside(depth)
                self.leaving(i)
            self.free(i)
            self.rest()


def close():
    while True:
        stack, closed = closing.get()
        stack.close()
        closed.set()


def trace(frame, event, argument):
    return trace


def main():
    global notes
    path, seed, modes = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    signal.alarm(int(os.environ.get("HANGSCOPE_SAMPLE_SECONDS", "120")))
    with open(path, "w+b") as f:
        f.truncate(BYTES + THREADS * ALL)
        notes = mmap.mmap(f.fileno(), BYTES + THREADS * ALL)
    locks = [threading.Lock() for _ in range(LOCKS)] + [threading.RLock() for _ in range(RLOCKS)]
    for i, lock in enumerate(locks):
        struct.pack_into("Q", notes, 8 * i, id(lock))
    sys.setswitchinterval(1e-4)
    if "trace" in modes:
        threading.settrace(trace)
    workers = [Worker(n, seed * 100 + n, locks, "unlock" in modes) for n in range(THREADS)]
    threading.Thread(target=close, daemon=True).start()
    for worker in workers:
        worker.start()
    while not all(struct.unpack_from("%dQ" % THREADS, notes, 8 * ALL)):
        time.sleep(0.001)
    os.write(1, b"ready %d\n" % os.getpid())
    for worker in workers:
        worker.join()


main()
