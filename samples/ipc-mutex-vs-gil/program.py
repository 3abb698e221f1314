"""A C++ mutex against the GIL, by the order of two guards.

"importer-0" holds ipc_import_mutex and wants the GIL back; "importer-1" holds the GIL and wants ipc_import_mutex. Two
others, one of them MainThread, only want the GIL.
"""
import ctypes
import os
import threading

here = os.path.dirname(os.path.abspath(__file__))
ipc = ctypes.CDLL(os.path.join(here, "libipc.so"))  # releases the GIL around each call
binding = ctypes.PyDLL(os.path.join(here, "libipc.so"))  # keeps it
INSIDE, IMPORTED = 0, 1


class Buffer:
    @classmethod
    def from_ipc_descriptor(cls, descriptor):
        return binding.import_ipc_buffer(descriptor == 0)


def importer(name, descriptor):
    binding.ready_name(name.encode())
    if descriptor:
        ipc.ready_gate_pass(INSIDE)
        others_wait.acquire()
        others_wait.acquire()
    Buffer.from_ipc_descriptor(descriptor)


def others(name):
    binding.ready_beyond_gates()
    others_wait.release()
    ipc.ready_gate_pass(IMPORTED)


def trains(name):
    binding.ready_name(name.encode())
    others(name)


binding.ready_begin(4)
others_wait = threading.Semaphore(0)
for i in range(2):
    name = "importer-%d" % i
    threading.Thread(target=importer, args=(name, i), name=name, daemon=True).start()
threading.Thread(target=trains, args=("trains",), name="trains", daemon=True).start()
others("MainThread")
