"""Two threads wait for each other's event; who should set the first one has ended."""
import threading

import ready

loaded, saved = threading.Event(), threading.Event()


def save():
    ready.here()
    loaded.wait()
    saved.set()


def load():
    if saved.is_set():
        loaded.set()


ready.begin(2)
ready.start(load, "load").join()
ready.start(save, "save")
ready.here()
saved.wait()
