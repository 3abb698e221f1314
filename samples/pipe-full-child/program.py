"""The parent waits for its child to end, and the child for the parent to read what it wrote."""
import subprocess
import sys
import time

import ready

ready.begin(1)
talkative = "import os\nwhile True: os.write(1, b'line\\n')"
child = subprocess.Popen([sys.executable, "-c", talkative], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
write = "64 " if ready.ARM else "1 "
while not open("/proc/%d/syscall" % child.pid).read().startswith(write):
    time.sleep(0.001)
ready.here("wait")
child.wait()
