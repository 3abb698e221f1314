"""A lock in a slot of an instance; the instance is reachable from nowhere but the frames."""
import threading

import ready


class Session:
    __slots__ = ("_lock", "is_open")

    def __init__(self):
        self._lock = threading.Lock()
        self.is_open = True

    def close(self):
        with self._lock:
            self.flush()
            self.is_open = False

    def flush(self):
        ready.here()
        with self._lock:
            pass


def serve():
    Session().close()


ready.begin(2)
ready.join(ready.start(serve, "serve"))
