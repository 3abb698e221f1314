"""Healthy: an event loop whose tasks wait for a queue and for a lock that is given back in time, and an idle executor."""
import asyncio

import ready


async def serve(requests):
    while True:
        await requests.get()
        requests.task_done()


async def main():
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, int)
    requests = asyncio.Queue()
    servers = [loop.create_task(serve(requests)) for _ in range(3)]
    for n in range(10):
        requests.put_nowait(n)
    await requests.join()
    ready.here("epoll")
    await asyncio.wait(servers)


ready.begin(1)
asyncio.run(main())
