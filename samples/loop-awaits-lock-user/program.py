"""A task keeps a lock of threads while it awaits work in a thread, and that work wants the lock."""
import asyncio
import concurrent.futures
import threading

import ready

executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="cache")
cache_lock = threading.Lock()


def refresh():
    ready.here()
    with cache_lock:
        pass


async def main():
    with cache_lock:
        ready.here("epoll")
        await asyncio.get_running_loop().run_in_executor(executor, refresh)


ready.begin(2)
asyncio.run(main())
