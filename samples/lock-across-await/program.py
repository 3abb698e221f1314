"""A task keeps a lock of threads while it is suspended; another task of the same loop wants it, and blocks the loop."""
import sys

if sys.argv[1:] == ["python"]:
    sys.modules["_asyncio"] = None  # asyncio's Python half alone

import asyncio
import threading

import ready

jobs_lock = threading.Lock()


async def keep(step):
    with jobs_lock:
        step.set()
        await asyncio.sleep(0.001)


async def want(step):
    await step.wait()
    ready.here()
    with jobs_lock:
        pass


async def main():
    step = asyncio.Event()
    await asyncio.gather(keep(step), want(step))


ready.begin(1)
asyncio.run(main())
