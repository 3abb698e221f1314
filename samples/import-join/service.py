"""Warms itself up when imported."""
import ready


def warm_up():
    ready.here()
    import service


ready.join(ready.start(warm_up, "warm-up"))
