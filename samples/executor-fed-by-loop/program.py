"""An executor's only worker asks its loop for a coroutine, and that awaits work for which the executor has no worker left."""
import asyncio
import concurrent.futures

import ready

executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="jobs")


def check():
    return True


async def verify(loop):
    ready.here("epoll")
    return await loop.run_in_executor(executor, check)


def upload(loop):
    verified = asyncio.run_coroutine_threadsafe(verify(loop), loop)
    ready.here()
    return verified.result()


async def main():
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(executor, upload, loop)


ready.begin(2)
asyncio.run(main())
