"""A thread that asks for the GIL is caught by a signal handler that never returns: whoever let it have the GIL waits for it.

Nobody holds the GIL, and whoever next asks for it gets it: there is no cycle.
"""
import ctypes
import os
import threading

binding = ctypes.PyDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libasker.so"))  # keeps the GIL
tables = threading.Lock()
tids = []


def asker():
    binding.ready_name(b"asker")
    tids.append(threading.get_native_id())
    binding.ask()


def reader():
    binding.ready_name(b"reader")
    binding.ready_beyond_gates()
    with tables:
        pass


with tables:
    threading.Thread(target=reader, name="reader", daemon=True).start()
    threading.Thread(target=asker, name="asker", daemon=True).start()
    while not tids:
        pass
    binding.ready_begin(3)
    binding.keep_from(tids[0])
    while True:
        pass
