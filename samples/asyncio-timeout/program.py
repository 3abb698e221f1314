"""Healthy: the tasks of asyncio-abba, but a time-out will end it; and a lock of threads given back before each await."""
import sys

if sys.argv[1:] == ["python"]:
    sys.modules["_asyncio"] = None  # asyncio's Python half alone

import asyncio
import threading

import ready

jobs_lock = threading.Lock()


async def move(source, target, both):
    async with source:
        both.append(source)
        while len(both) < 2:
            await asyncio.sleep(0)
        ready.here("epoll")
        try:
            await asyncio.wait_for(target.acquire(), 600)
        except asyncio.TimeoutError:
            pass


async def work():
    while True:
        with jobs_lock:
            pass
        await asyncio.sleep(600)


async def main():
    accounts, journal = asyncio.Lock(), asyncio.Lock()
    both = []
    await asyncio.gather(work(), move(accounts, journal, both), move(journal, accounts, both))


ready.begin(1)
asyncio.run(main())
