"""One GET and one script each second, and nothing else: what a feed at rest costs at least.

``python -m tests.bench.pulse URL STORE`` does that until it is ended, with the libraries and settings of the daemon.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from contextlib import suppress
from typing import NoReturn

from poller.cli.options import run_loop
from poller.cli.run import COLLECT_AFTER
from tests.bench.scene import RESOURCE, bench


async def pulse(api_url: str, store_url: str) -> NoReturn:
    """Ask both each second."""
    async with bench(api_url, store_url) as feed:
        script = feed.redis.register_script("return redis.call('HGET', KEYS[1], 'delta_token')")
        while True:
            await feed.api.get(RESOURCE.path, (("sinceDeltaToken", "0"),))
            await script(keys=[feed.keys.state])
            await asyncio.sleep(1)  # what is measured


if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    with suppress(KeyboardInterrupt):  # it was ended
        run_loop(pulse(sys.argv[1], sys.argv[2]))
