import sys

import ready

program = sys.modules["__main__"]
program.go_on.set()
ready.here()
try:
    import first
except ImportError:
    pass
