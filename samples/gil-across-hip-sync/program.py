"""MainThread waits for a stream and keeps the GIL; the worker that is to launch what the stream's kernel waits for needs it."""
import ctypes
import threading

import rocm

rocm.begin()
gates = rocm.load("libbinding.so")  # lets go of the GIL around each call
binding = rocm.load("libbinding.so", keep_gil=True)


def launch_producer():
    binding.ready_name(b"launcher")
    binding.ready_beyond_gates()
    started.release()
    gates.ready_gate_pass(0)
    binding.launch()


if binding.prepare():
    raise SystemExit("HIP does not start")
ctypes.CDLL(None).fakekfd_freeze()
binding.ready_begin(2)
binding.launch()
started = threading.Semaphore(0)
threading.Thread(target=launch_producer, name="launcher", daemon=True).start()
started.acquire()
binding.synchronize()
