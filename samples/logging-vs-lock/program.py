"""A handler asks for what a lock protects while it has its own lock; the lock's holder logs."""
import logging
import threading

import ready

state_lock = threading.Lock()
emitting = threading.Event()
locked = threading.Event()


class StateHandler(logging.StreamHandler):
    def emit(self, record):
        emitting.set()
        locked.wait()
        ready.here()
        with state_lock:
            pass


log = logging.getLogger("service")
log.addHandler(StateHandler())


def logs():
    log.warning("began")


def changes():
    with state_lock:
        locked.set()
        emitting.wait()
        ready.here()
        log.warning("changed")


ready.begin(3)
ready.join(ready.start(logs, "logs"), ready.start(changes, "changes"))
