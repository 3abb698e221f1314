"""MainThread waits for a stream that does not get on, and has let go of the GIL, as it should; a worker waits for work."""
import ctypes
import queue
import threading

import rocm

rocm.begin()
binding = rocm.load("libbinding.so")
jobs = queue.SimpleQueue()

if binding.prepare():
    raise SystemExit("HIP does not start")
ctypes.CDLL(None).fakekfd_freeze()
threading.Thread(target=jobs.get, name="worker", daemon=True).start()
binding.ready_begin(1)
binding.launch()
binding.synchronize()
