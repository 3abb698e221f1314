"""The parent waits for its child to end, and the child for the end of its input, which the parent has not closed."""
import subprocess
import sys
import time

import ready

ready.begin(1)
reads = "import os\nwhile os.read(0, 64): pass"
child = subprocess.Popen([sys.executable, "-c", reads], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
read = "63 0x0 " if ready.ARM else "0 0x0 "
while not open("/proc/%d/syscall" % child.pid).read().startswith(read):
    time.sleep(0.001)
ready.here("wait")
child.wait()
