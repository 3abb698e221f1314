"""A decorator that makes functions exclusive; one of them calls another."""
import functools
import threading

import ready


def synchronized(lock):
    def decorate(function):
        @functools.wraps(function)
        def exclusive(*args):
            with lock:
                return function(*args)

        return exclusive

    return decorate


state_lock = threading.Lock()


@synchronized(state_lock)
def update(n):
    ready.here()
    return refresh(n)


@synchronized(state_lock)
def refresh(n):
    return n


ready.begin(1)
update(1)
