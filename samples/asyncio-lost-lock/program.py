"""A task takes an asyncio lock by hand and ends: all others wait for it, and no task is left to release it."""
import asyncio

import ready


async def forget(lock):
    await lock.acquire()


async def use(lock):
    ready.here("epoll")
    async with lock:
        pass


async def main():
    lock = asyncio.Lock()
    await asyncio.ensure_future(forget(lock))
    await asyncio.gather(use(lock), use(lock))


ready.begin(1)
asyncio.run(main())
