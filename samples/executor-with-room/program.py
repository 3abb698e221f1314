"""Healthy: executor-fed-by-loop with a second worker, which reads from a pipe; a done callback will give an asyncio lock back."""
import asyncio
import concurrent.futures
import os

import ready

executor = concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="jobs")
orders, write_end = os.pipe()


def check():
    ready.here("read")
    return os.read(orders, 1)


async def verify(loop, lock):
    await lock.acquire()
    checked = loop.run_in_executor(executor, check)
    checked.add_done_callback(lambda _: lock.release())
    ready.here("epoll")
    async with lock:
        return checked.result()


def upload(loop, lock):
    verified = asyncio.run_coroutine_threadsafe(verify(loop, lock), loop)
    ready.here()
    return verified.result()


async def main():
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(executor, upload, loop, asyncio.Lock())


ready.begin(3)
asyncio.run(main())
