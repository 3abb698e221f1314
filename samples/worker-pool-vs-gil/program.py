"""A caller that keeps the GIL waits for native workers, and they wait for the GIL to call back."""
import ctypes
import os

WORKERS = 3
binding = ctypes.PyDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libpool.so"))  # keeps the GIL


def verify():
    return binding.verify_nested(b"pass", WORKERS)


binding.ready_begin(1 + WORKERS)
verify()
