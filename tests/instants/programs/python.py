"""Threads and processes that use one part of Python's library, for ever: `program.py KIND LEDGER`."""
import asyncio
import concurrent.futures
import gc
import importlib
import io
import itertools
import logging
import mmap
import multiprocessing
import os
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref

NONE, TAKING, HELD, GIVING = range(4)
SLOTS, SLOT, FIRST, ENTRIES = 120, 512, 4096, 20
own = threading.local()
handing_out = threading.Lock()


def open_ledger(path):
    global book
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, FIRST + SLOTS * SLOT)
    book = mmap.mmap(fd, FIRST + SLOTS * SLOT)
    os.close(fd)


def slot_of_thread():
    """Threads of one process only tell of themselves, and those that stay."""
    with handing_out:
        for i in range(SLOTS):
            at = FIRST + i * SLOT
            if struct.unpack_from("i", book, at)[0] == 0:
                tid = threading.get_native_id()
                struct.pack_into("i", book, at, tid)
                own.slot, own.entries = at, {}
                return at


def tell(lock, state):
    at = getattr(own, "slot", None) or slot_of_thread()
    entry = own.entries.get(id(lock))
    if entry is None:
        entry = own.entries[id(lock)] = at + 16 + 24 * len(own.entries)
        struct.pack_into("I", book, entry + 8, state)
        struct.pack_into("Q", book, entry, id(lock))
    else:
        struct.pack_into("I", book, entry + 8, state)


def take(lock):
    tell(lock, TAKING)
    lock.acquire()
    tell(lock, HELD)


def give(lock):
    tell(lock, GIVING)
    lock.release()
    tell(lock, NONE)


beats = itertools.count(1)


def beat():
    struct.pack_into("Q", book, 0, next(beats))


def work(n):
    return sum(range(n))


def start(*functions):
    for i, f in enumerate(functions):
        threading.Thread(target=f, args=(i,), daemon=True, name=f"{f.__name__}-{i}").start()


# locks -------------------------------------------------------------------------------------------------------------
lock, second, rlock = threading.Lock(), threading.Lock(), threading.RLock()
condition, event = threading.Condition(lock), threading.Event()
semaphore = threading.BoundedSemaphore(2)


def uses_locks(i):
    for n in itertools.count(i):
        take(lock)
        work(n % 50)
        if n % 3 == 0:
            take(second)
            give(second)
        give(lock)
        with rlock, rlock:
            work(20)
        with semaphore:
            if n % 50 == 0:
                time.sleep(0.0001)
        if second.acquire(timeout=0.001):
            second.release()
        beat()


def uses_condition(i):
    for n in itertools.count(i):
        with condition:
            if i % 2:
                condition.wait(0.001 if n % 3 else 0.05)
            else:
                condition.notify(1 + n % 2)
        if n % 5 == 0:
            event.set()
        elif n % 5 == 1:
            event.wait(0.002)
            event.clear()
        beat()


barrier = threading.Barrier(3)


def uses_barrier(i):
    while True:
        barrier.wait()
        work(200)
        beat()


class Guarded:
    """Locks in the places where programs keep them."""

    __slots__ = ("lock",)
    shared = threading.RLock()

    def __init__(self):
        self.lock = threading.Lock()

    def __enter__(self):
        take(self.lock)
        return self

    def __exit__(self, *error):
        give(self.lock)

    def generator(self):
        with self, self.shared:
            yield 1
            yield 2


guarded = Guarded()


def uses_guards(i):
    for n in itertools.count():
        for _ in guarded.generator():
            work(n % 30)
        with guarded:
            work(10)
        beat()


# queues, pools, timers ----------------------------------------------------------------------------------------------
jobs, simple, done = queue.Queue(3), queue.SimpleQueue(), queue.PriorityQueue(5)


def puts(i):
    for n in itertools.count():
        jobs.put(n)
        simple.put(n)
        done.put(n % 7)
        beat()


def gets(i):
    for n in itertools.count():
        try:
            jobs.get(timeout=0.01 if n % 3 else None)
            jobs.task_done()
        except queue.Empty:
            pass
        simple.get()
        done.get()


def pools(i):
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for n in itertools.count():
            futures = [pool.submit(work, k) for k in range(6)]
            concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_COMPLETED)
            list(pool.map(work, range(5)))
            sum(f.result() for f in concurrent.futures.as_completed(futures))
            beat()


def threads_come_and_go(i):
    for n in itertools.count():
        t = threading.Thread(target=work, args=(n % 100,), daemon=bool(n % 2))
        t.start()
        t.join()
        timer = threading.Timer(0.0005, work, (10,))
        timer.start()
        timer.cancel() if n % 2 else timer.join()
        beat()


# imports ------------------------------------------------------------------------------------------------------------
def modules_in_rings():
    directory = tempfile.mkdtemp(prefix="instants-")
    for i in range(6):
        with open(os.path.join(directory, f"ring{i}.py"), "w") as f:
            f.write(f"import threading\nvalue = sum(range(300))\nimport ring{(i + 1) % 6}\nlock = threading.Lock()\n")
    sys.path.insert(0, directory)


def imports(i):
    names = [f"ring{k}" for k in range(6)]
    for n in itertools.count(i):
        try:
            importlib.import_module(names[n % 6])
        except (ImportError, KeyError):
            pass  # another thread took it out of sys.modules meanwhile
        if n % 4 == 0:
            for name in names:
                sys.modules.pop(name, None)
            importlib.invalidate_caches()
        try:
            import nothing_of_that_name  # noqa: F401
        except ImportError:
            pass
        beat()


# finalisers, collections, tracing, logging ---------------------------------------------------------------------------
class Ends:
    def __init__(self):
        self.me = self

    def __del__(self):
        with rlock:
            work(10)


def makes_garbage(i):
    for n in itertools.count():
        made = [Ends() for _ in range(20)]
        weak = [weakref.ref(m, lambda r: simple.put(1)) for m in made]
        weakref.finalize(made[0], work, 20)
        del made, weak
        if n % 5 == 0:
            gc.collect()
        with rlock:
            beat()
        while not simple.empty():
            simple.get()


logger = logging.getLogger("instants")


def logs(i):
    for n in itertools.count():
        logger.warning("line %d of %s", n, threading.current_thread().name)
        logging.getLogger(f"instants.{n % 50}").info("not shown")
        if n % 20 == 0:
            handler = logging.StreamHandler(io.StringIO())
            logger.addHandler(handler)
            logger.removeHandler(handler)
        print(n, file=quiet)
        beat()


def traced(i):
    def trace(frame, what, arg):
        with rlock:
            pass
        return trace

    sys.settrace(trace if i % 2 else None)
    sys.setprofile(None if i % 2 else lambda *a: None)
    uses_locks(i)


# signals ------------------------------------------------------------------------------------------------------------
def on_signal(number, frame):
    signalled.release()
    simple.put(number)
    event.set()


signalled = threading.Semaphore(0)


def is_signalled(i):
    while True:
        signalled.acquire()
        simple.get()
        event.wait()
        event.clear()
        beat()


def signals_itself():
    signal.signal(signal.SIGUSR1, on_signal)
    while True:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.0005)
        with rlock:
            work(20)


# asyncio ------------------------------------------------------------------------------------------------------------
async def tasks(loop, stop_after):
    held, room, there = asyncio.Lock(), asyncio.Semaphore(2), asyncio.Event()
    line, news = asyncio.Queue(2), asyncio.Condition()

    async def takes(k):
        for n in range(stop_after):
            async with held:
                await asyncio.sleep(0 if n % 4 else 0.0003)
            async with room:
                await line.put(n) if k % 2 else await line.get()
            there.set()
            await there.wait()
            async with news:
                news.notify_all()
            if n % 5 == 0:
                await loop.run_in_executor(None, work, 50)
            beat()

    await asyncio.gather(*(takes(k) for k in range(4)))
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 0.001)
    except asyncio.TimeoutError:
        pass


def runs_loop(i):
    while True:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(tasks(loop, 50))
        loop.run_until_complete(loop.shutdown_asyncgens())
        if hasattr(loop, "shutdown_default_executor"):
            loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def with_threads():
    loop = asyncio.get_running_loop()
    held, other = asyncio.Lock(), asyncio.Lock()

    async def once(n):
        async with other:
            await asyncio.sleep(0)
        return n

    def asks(i):
        for n in itertools.count():
            asyncio.run_coroutine_threadsafe(once(n), loop).result()
            loop.call_soon_threadsafe(work, 10)
            beat()

    start(asks, asks)
    loop.add_signal_handler(signal.SIGALRM, lambda: held.locked() and held.release())
    await held.acquire()
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    while True:
        await held.acquire()
        await loop.run_in_executor(None, work, 30)


# processes ----------------------------------------------------------------------------------------------------------
def forks(i):
    for n in itertools.count():
        pid = os.fork()
        if pid == 0:
            with rlock:
                os._exit(0)
        os.waitpid(pid, 0)
        with rlock:
            beat()


def spawns(i):
    for n in itertools.count():
        if n % 2:
            subprocess.run(["/bin/true"], check=True)
        else:
            child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            child.communicate(b"x" * 100000)
        beat()


def in_worker(n):
    return work(n % 1000)


def shares(lock, condition, counter, line, n):
    while True:
        with lock:
            work(n)
        with counter.get_lock():
            counter.value += 1
        with condition:
            condition.notify_all() if n % 2 else condition.wait(0.005)
        line.put(1)
        line.get()


def with_pool(method):
    context = multiprocessing.get_context(method)
    pool = context.Pool(2)
    print("ready", os.getpid(), flush=True)
    for n in itertools.count():
        pool.map(in_worker, range(8))
        sum(pool.imap_unordered(in_worker, range(4)))
        pool.apply_async(in_worker, (n,)).get()
        beat()


def with_executor(method):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        list(pool.map(in_worker, range(4)))
        print("ready", os.getpid(), flush=True)
        while True:
            list(pool.map(in_worker, range(8)))
            beat()


def with_objects(method):
    context = multiprocessing.get_context(method)
    parts = context.Lock(), context.Condition(), context.Value("i", 0), context.Queue(4)
    for n in range(3):
        context.Process(target=shares, args=(*parts, 200 + n), daemon=True).start()
    manager = context.Manager()
    counted, far = manager.dict(), manager.Lock()
    print("ready", os.getpid(), flush=True)
    for n in itertools.count():
        with far:
            counted["n"] = n
        with parts[0]:
            beat()
        parts[3].put(n)
        parts[3].get()


KINDS = {
    "locks": [uses_locks] * 4,
    "condition": [uses_condition] * 4,
    "barrier": [uses_barrier] * 3,
    "guards": [uses_guards] * 3,
    "queues": [puts, gets],
    "pools": [pools] * 2,
    "threads": [threads_come_and_go] * 3,
    "imports": [imports] * 4,
    "garbage": [makes_garbage] * 3,
    "logging": [logs] * 4,
    "tracing": [traced] * 3,
    "signals": [is_signalled, uses_locks],
    "asyncio": [runs_loop] * 2,
    "fork": [forks, uses_locks, logs],
    "spawn": [spawns] * 2,
}

if __name__ == "__main__":
    signal.alarm(int(os.environ.get("HANGSCOPE_SAMPLE_SECONDS", "120")))
    kind = sys.argv[1]
    open_ledger(sys.argv[2])
    sys.setswitchinterval(0.0005)
    quiet = open(os.devnull, "w")
    logging.basicConfig(stream=quiet)
    warnings.simplefilter("ignore")
    if kind == "fork":
        os.register_at_fork(before=rlock.acquire, after_in_parent=rlock.release, after_in_child=rlock.release)
    if kind == "imports":
        modules_in_rings()
    if kind == "asyncio-threads":
        signal.alarm(0)
        threading.Timer(900, os._exit, (0,)).start()
        print("ready", os.getpid(), flush=True)
        asyncio.run(with_threads())
    for prefix, run in ("pool-", with_pool), ("executor-", with_executor), ("objects-", with_objects):
        if kind.startswith(prefix):
            run(kind[len(prefix):])
    start(*KINDS[kind])
    print("ready", os.getpid(), flush=True)
    if kind == "signals":
        signals_itself()
    while True:
        time.sleep(1)
