"""What a lazily initialised module does with its lock."""
import threading

_initialized = False
_initialization_lock = threading.Lock()
_queued_calls = []


def is_initialized():
    return _initialized


def _lazy_call(callback):
    with _initialization_lock:
        if is_initialized():
            callback()
        else:
            _queued_calls.append(callback)


def _lazy_init():
    global _initialized
    if is_initialized():
        return
    with _initialization_lock:
        for callback in _queued_calls:
            callback()
        _initialized = True
