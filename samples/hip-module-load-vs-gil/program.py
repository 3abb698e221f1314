"""A look-up of HIP's library against the load of a module: the loader's lock against the GIL, with the real HIP and HSA.

Thread "finds-library" walks the loaded objects with dl_iterate_phdr through ctypes, which lets go of the GIL and takes the
loader's link-map lock; its Python callback then needs the GIL. MainThread keeps the GIL, as a binding does that forgot to
release it, in hipModuleLoadData, whose HSA asks dl_iterate_phdr where the code object comes from. Six others only want the GIL.
"""
import ctypes
import threading

import rocm

rocm.begin()
gates = rocm.load("libbinding.so")  # lets go of the GIL around each call
binding = rocm.load("libbinding.so", keep_gil=True)
libc = ctypes.CDLL(None)
IN_CALLBACK, MAIN_HOLDS_GIL = 0, 1
BYSTANDERS = 6

PHDR_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


@PHDR_CALLBACK
def on_object(info, size, data):
    binding.ready_beyond_gates()
    binding.ready_gate_open(IN_CALLBACK)
    gates.ready_gate_pass(MAIN_HOLDS_GIL)
    return 0


def find_hip_library():
    binding.ready_name(b"finds-library")
    libc.dl_iterate_phdr(on_object, None)


def work(name):
    binding.ready_name(name.encode())
    binding.ready_beyond_gates()
    parked.release()
    gates.ready_gate_pass(MAIN_HOLDS_GIL)


def launch_kernel():
    return binding.load_module()


if binding.prepare():
    raise SystemExit("HIP does not start")
binding.ready_begin(BYSTANDERS + 2)
parked = threading.Semaphore(0)
for i in range(BYSTANDERS):
    name = "bystander-%d" % i
    threading.Thread(target=work, args=(name,), name=name, daemon=True).start()
for i in range(BYSTANDERS):
    parked.acquire()
threading.Thread(target=find_hip_library, name="finds-library", daemon=True).start()
gates.ready_gate_pass(IN_CALLBACK)
launch_kernel()
