"""A coroutine blocks its event loop in result() of a coroutine on the same loop."""
import sys

if sys.argv[1:] == ["python"]:
    sys.modules["_asyncio"] = None  # asyncio's Python half alone

import asyncio

import ready


async def answer():
    return 42


def ask(loop):
    reply = asyncio.run_coroutine_threadsafe(answer(), loop)
    ready.here()
    return reply.result()


async def main():
    return ask(asyncio.get_running_loop())


ready.begin(1)
asyncio.run(main())
