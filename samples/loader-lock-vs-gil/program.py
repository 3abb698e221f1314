"""The loader's lock against the GIL.

Thread "iterates" looks for a library with dl_iterate_phdr through ctypes, which lets go of the GIL and takes the loader's
link-map lock; its Python callback then needs the GIL. MainThread keeps the GIL, as a binding does that forgot to release
it, and calls hipModuleLoadData, which needs the link-map lock. Six others only want the GIL.

usage: program.py [walk|dlopen]
"""
import ctypes
import os
import sys
import threading

here = os.path.dirname(os.path.abspath(__file__))
hip = ctypes.CDLL(os.path.join(here, "libamdhip64.so"))  # releases the GIL around each call
binding = ctypes.PyDLL(os.path.join(here, "libamdhip64.so"))  # keeps it
libc = ctypes.CDLL(None)
IN_CALLBACK, MAIN_HOLDS_GIL = 0, 1
BYSTANDERS = 6
image = b"libBrokenLocale.so.1" if sys.argv[1:] == ["dlopen"] else None

PHDR_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


@PHDR_CALLBACK
def on_object(info, size, data):
    binding.ready_beyond_gates()
    binding.ready_gate_open(IN_CALLBACK)
    hip.ready_gate_pass(MAIN_HOLDS_GIL)
    return 0


def find_library():
    binding.ready_name(b"iterates")
    libc.dl_iterate_phdr(on_object, None)


def work(name):
    binding.ready_name(name.encode())
    binding.ready_beyond_gates()
    parked.release()
    hip.ready_gate_pass(MAIN_HOLDS_GIL)


def load_module():
    module = ctypes.c_void_p()
    return binding.hipModuleLoadData(ctypes.byref(module), image)


binding.ready_begin(BYSTANDERS + 2)
parked = threading.Semaphore(0)
for i in range(BYSTANDERS):
    name = "bystander-%d" % i
    threading.Thread(target=work, args=(name,), name=name, daemon=True).start()
for i in range(BYSTANDERS):
    parked.acquire()
threading.Thread(target=find_library, name="iterates", daemon=True).start()
hip.ready_gate_pass(IN_CALLBACK)
load_module()
