"""A destructor joins a thread with the GIL held; the thread's completion callback needs the GIL."""
import ctypes
import os

binding = ctypes.PyDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libworker.so"))  # keeps the GIL
binding.worker_new.restype = ctypes.c_void_p
binding.worker_delete.argtypes = [ctypes.c_void_p]


class Worker:
    def __init__(self, callback):
        self.handle = binding.worker_new(callback)

    def close(self):
        binding.worker_delete(self.handle)


binding.ready_begin(2)
worker = Worker(b"pass")
worker.close()
