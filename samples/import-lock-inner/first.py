import sys

import ready

program = sys.modules["__main__"]
program.first_begun.set()
program.inside.wait()
ready.here()
try:
    import second
except ImportError:
    pass
