"""A future that was made by hand, and that nobody completes."""
import concurrent.futures

import ready

reply = concurrent.futures.Future()


def ask():
    ready.here()
    return reply.result()


ready.begin(2)
ready.join(ready.start(ask, "ask"))
