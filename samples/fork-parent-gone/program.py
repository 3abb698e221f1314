"""A process forks while one of its threads is inside a `with` block, and ends; the child wants the lock. Its new parent is the
process that started the one that ended."""
import ctypes
import os
import subprocess
import sys
import threading
import time
import warnings

import ready

PR_SET_CHILD_SUBREAPER = 36

if sys.argv[1:] != ["parent"]:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    subprocess.call([sys.executable, sys.argv[0], "parent"])
    os.wait()
    os._exit(0)

registry_lock = threading.Lock()
inside = threading.Event()
parent = os.getpid()


def hold():
    with registry_lock:
        inside.set()
        threading.Event().wait()  # it stays behind in the parent


def in_child():
    while os.getppid() == parent:
        time.sleep(0.001)
    ready.begin(1)
    ready.here()
    with registry_lock:
        pass


ready.start(hold, "holder")
inside.wait()
warnings.simplefilter("ignore", DeprecationWarning)  # 3.12+ warns of just this
if os.fork() == 0:
    in_child()
os._exit(0)
