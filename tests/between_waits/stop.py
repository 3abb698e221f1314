"""In gdb: ends one wait of main's for the GIL, lets nothing but the other thread go on until it sleeps, writes the core."""
import os
import subprocess

import gdb

FUTEX = 202
TRIES = 10
WAKER = """
import ctypes, sys, time
pid, tid = int(sys.argv[1]), int(sys.argv[2])
end = time.time() + 10
while time.time() < end and open(f"/proc/{pid}/task/{tid}/stat").read().rsplit(")", 1)[1].split()[0] != "S":
    time.sleep(0.01)
ctypes.CDLL(None).syscall(234, pid, tid, 2)  # tgkill: SIGINT
"""

for setting in ("pagination off", "confirm off"):
    gdb.execute("set " + setting)
gdb.execute("handle SIGINT stop nopass")
process = gdb.selected_inferior()
main = next(t for t in process.threads() if t.ptid[1] == process.pid)
other = next(t for t in process.threads() if t.num != main.num)


def try_once():
    gdb.execute("set scheduler-locking off")
    # the first wait of each taking asks the holder to let go when it ends; the ones after it wait for that
    hit = gdb.Breakpoint("pthread_cond_timedwait", temporary=True)
    hit.thread = main.num
    hit.ignore_count = 3
    gdb.execute("continue")
    assert gdb.selected_thread().num == main.num
    gdb.execute("set scheduler-locking on")
    gdb.execute("finish")
    other.switch()
    waker = subprocess.Popen([os.environ["WAKER"], "-c", WAKER, str(process.pid), str(other.ptid[1])])
    gdb.execute("continue")
    waker.wait()
    # where this was the first wait after all, nobody asked, and the other thread computes
    return int(gdb.parse_and_eval("(long)$orig_rax")) == FUTEX


if any(try_once() for _ in range(TRIES)):
    gdb.execute("gcore " + os.environ["CORE"])
