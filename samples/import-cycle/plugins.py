"""Registers itself when imported."""
import sys

import ready

program = sys.modules["__main__"]
program.importing.set()
ready.here()
with program.registry_lock:
    pass
