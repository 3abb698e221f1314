"""A process forks while one of its threads is inside a `with` block; that thread leaves the block, and the child wants the lock."""
import os
import threading
import warnings

import ready

registry_lock = threading.Lock()
inside, forked, left = threading.Event(), threading.Event(), threading.Event()
ask, answer = os.pipe()


def hold():
    with registry_lock:
        inside.set()
        forked.wait()
    left.set()


def in_child():
    os.read(ask, 1)
    ready.begin(1)
    ready.here()
    with registry_lock:
        pass


ready.start(hold, "holder")
inside.wait()
warnings.simplefilter("ignore", DeprecationWarning)  # 3.12+ warns of just this
child = os.fork()
if child == 0:
    in_child()
forked.set()
left.wait()
os.write(answer, b".")
os.waitpid(child, 0)
os._exit(0)
