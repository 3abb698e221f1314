"""Two tasks take two asyncio locks in opposite order: the loop sleeps, and nobody can ever wake it."""
import sys

if sys.argv[1:] == ["python"]:
    sys.modules["_asyncio"] = None  # asyncio's Python half alone

import asyncio

import ready


async def move(source, target, both):
    async with source:
        both.append(source)
        while len(both) < 2:
            await asyncio.sleep(0)
        ready.here("epoll")
        async with target:
            pass


async def main():
    accounts, journal = asyncio.Lock(), asyncio.Lock()
    both = []
    await asyncio.gather(move(accounts, journal, both), move(journal, accounts, both))


ready.begin(1)
asyncio.run(main())
