"""Two threads take two Locks in opposite orders, each through an ExitStack."""
import contextlib
import threading

import ready

accounts, journal = threading.Lock(), threading.Lock()
both = threading.Barrier(2)


def move(first, second):
    with contextlib.ExitStack() as stack:
        stack.enter_context(first)
        both.wait()
        ready.here()
        stack.enter_context(second)


ready.begin(3)
ready.join(ready.start(move, "transfer", accounts, journal), ready.start(move, "audit", journal, accounts))
