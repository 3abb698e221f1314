"""A subinterpreter with a GIL of its own, and a mutex against that GIL.

"east" holds the mutex `bridge` and wants the GIL of the second interpreter back; "west" holds that GIL and wants `bridge`. Both
come from the first interpreter, whose GIL is another and free.
"""
import ctypes
import os
import threading

library = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libbridge.so")
binding = ctypes.PyDLL(library)  # keeps the first interpreter's GIL
bridge = ctypes.CDLL(library)  # lets go of it


def enter(side, name):
    binding.ready_name(name.encode())
    bridge.enter(side)


if binding.make_interpreter():
    raise SystemExit("no second interpreter")
binding.ready_begin(2)
threads = [
    threading.Thread(target=enter, args=(side, name), name=name, daemon=True) for side, name in enumerate(("east", "west"))
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
