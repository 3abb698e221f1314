"""Healthy: four threads contend for the GIL and for a mutex of an extension, in a good order, again and again."""
import ctypes
import os
import sys
import threading

binding = ctypes.PyDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libmoving.so"))  # keeps the GIL
binding.count_step.restype = ctypes.c_ulong


def move(name):
    binding.ready_name(name.encode())
    while True:
        for _ in range(50):
            pass
        binding.count_step()


sys.setswitchinterval(1e-4)
for i in range(3):
    threading.Thread(target=move, args=("mover-%d" % i,), name="mover-%d" % i, daemon=True).start()
while binding.count_step() < 1000:
    pass
binding.ready_begin(0)
move("mover-3")
