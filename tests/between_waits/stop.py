"""In gdb: ends one wait of main's for the GIL, lets nothing but the other thread go on until it sleeps, writes the core."""
import os
import subprocess

import gdb

for setting in ("pagination off", "confirm off", "scheduler-locking off"):
    gdb.execute("set " + setting)
gdb.execute("handle SIGINT stop nopass")
process = gdb.selected_inferior()
main = next(t for t in process.threads() if t.ptid[1] == process.pid)
# the first wait asks the holder to let go; the ones after it wait for that
hit = gdb.Breakpoint("pthread_cond_timedwait", temporary=True)
hit.thread = main.num
hit.ignore_count = 3
gdb.execute("continue")
assert gdb.selected_thread().num == main.num
gdb.execute("set scheduler-locking on")
gdb.execute("finish")
other = next(t for t in process.threads() if t.num != main.num)
other.switch()
wakes = """
import ctypes, sys, time
pid, tid = int(sys.argv[1]), int(sys.argv[2])
while open(f"/proc/{pid}/task/{tid}/stat").read().rsplit(")", 1)[1].split()[0] != "S":
    time.sleep(0.01)
ctypes.CDLL(None).syscall(234, pid, tid, 2)  # tgkill: SIGINT
"""
subprocess.Popen([os.environ["WAKER"], "-c", wakes, str(process.pid), str(other.ptid[1])])
gdb.execute("continue")
gdb.execute("gcore " + os.environ["CORE"])
