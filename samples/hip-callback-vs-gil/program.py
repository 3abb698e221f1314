"""A deadlock through the GPU. MainThread keeps the GIL and waits for a stream; the stream waits for a host callback, a Python
function that HSA's event thread is to run, and that needs the GIL."""
import ctypes

import rocm

rocm.begin()
binding = rocm.load("libbinding.so", keep_gil=True)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
def on_batch_done(stream, status, data):
    print("never")


def train_step():
    return binding.synchronize_after(on_batch_done)


if binding.prepare():
    raise SystemExit("HIP does not start")
binding.ready_begin(1)
train_step()
