"""A function with a variable of each kind, which waits."""
import os
import signal
import threading


class Session:
    pass


def outer(argument, *rest, **named):
    small, large, huge, negative, zero = 7, 2**62, 2**200, -(2**31), 0
    yes, nothing, half = True, None, -0.5
    text, long, odd, data = "plain", "x" * 200, 'quote " and \n', b"\x00bytes"
    pair, session, function = (1, 2), Session(), outer
    kept = "in a cell"

    def inner():
        return kept

    os.write(1, ("ready %d\n" % os.getpid()).encode())
    threading.Event().wait()
    return small, large, huge, negative, zero, yes, nothing, half, text, long, odd, data, pair, session, function, inner


signal.alarm(int(os.environ.get("HANGSCOPE_SAMPLE_SECONDS", "120")))
outer("given")
