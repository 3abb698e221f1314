"""A module takes a lock while it is imported; the lock's holder imports the module."""
import threading

import ready

registry_lock = threading.Lock()
importing = threading.Event()
locked = threading.Event()


def register():
    with registry_lock:
        locked.set()
        importing.wait()
        ready.here()
        import plugins


def load():
    locked.wait()
    import plugins


if __name__ == "__main__":
    ready.begin(3)
    ready.join(ready.start(register, "register"), ready.start(load, "load"))
