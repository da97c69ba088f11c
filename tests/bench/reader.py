"""A process that reads a feed in full twice and prints its peak resident memory in bytes."""

from __future__ import annotations

import asyncio
import resource
import sys

from tests.bench.scene import bench


async def main(api_url: str, store_url: str) -> None:
    """Read, read again, print."""
    async with bench(api_url, store_url, delta=False) as feed:
        await feed.redis.flushall()
        for _ in range(2):
            await feed.round()
    unit = 1 if sys.platform == "darwin" else 1024
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)  # noqa: T201 -- its answer


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
