"""Main asks for the GIL, again and again, while the other thread keeps it for a long time between two chances."""
import os
import threading


def keep():
    while True:
        sum(range(20_000_000))


threading.Thread(target=keep, name="keeper", daemon=True).start()
out = os.open("/dev/null", os.O_WRONLY)
print("ready", os.getpid(), flush=True)
while True:
    os.write(out, b"x")
