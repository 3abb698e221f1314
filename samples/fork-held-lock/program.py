"""A process forks while one of its threads is inside a `with` block; the child wants the lock."""
import os
import threading
import warnings

import ready

registry_lock = threading.Lock()
inside = threading.Event()


def hold():
    with registry_lock:
        inside.set()
        threading.Event().wait()  # it stays behind in the parent


def in_child():
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
os.waitpid(child, 0)
os._exit(0)
