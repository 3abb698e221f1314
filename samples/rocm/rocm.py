"""HIP for the Python samples, in whichever generation this place has.

begin() starts the interpreter anew with libfakekfd.so preloaded, whose devices lie in the working directory, and returns in
the second life, with HIP loaded for all libraries to see.
"""
import ctypes
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))


def load(name, keep_gil=False):
    """A library that lies beside the program."""
    return (ctypes.PyDLL if keep_gil else ctypes.CDLL)(os.path.join(here, name))


def begin():
    if not hasattr(ctypes.CDLL(None), "fakekfd_freeze"):
        os.environ["LD_PRELOAD"] = os.path.join(here, "libfakekfd.so")
        os.environ["FAKEKFD_ROOT"] = os.path.join(os.getcwd(), "no-gpu")
        os.environ.setdefault("HSA_ENABLE_SDMA", "0")  # copies go through packets
        os.execv(sys.executable, [sys.executable] + sys.argv)
    for name in ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"):
        try:
            return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            pass
    sys.exit("no HIP")
