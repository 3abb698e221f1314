"""Healthy: a child waits for room in a pipe while the main thread waits for its end; another thread will read, on its cue,
which the handler of a signal gives."""
import os
import signal
import subprocess
import sys
import time

import ready

cue, give = os.pipe()
signal.signal(signal.SIGUSR1, lambda *_: os.write(give, b"."))


def drain():
    ready.here("read")
    os.read(cue, 1)
    child.stdout.read()


ready.begin(2)
talkative = "import os\nwhile True: os.write(1, b'line\\n')"
child = subprocess.Popen([sys.executable, "-c", talkative], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
write = "64 " if ready.ARM else "1 "
while not open("/proc/%d/syscall" % child.pid).read().startswith(write):
    time.sleep(0.001)
ready.start(drain, "drain")
ready.here("wait")
child.wait()
