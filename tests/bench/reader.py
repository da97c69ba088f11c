"""A process that reads a feed in full twice and prints its peak resident memory in bytes."""

from __future__ import annotations

import asyncio
import re
import resource
import sys
from pathlib import Path

from tests.bench.scene import bench


async def main(api_url: str, store_url: str) -> None:
    """Read, read again, print."""
    async with bench(api_url, store_url, delta=False) as feed:
        await feed.redis.flushall()
        for _ in range(2):
            await feed.round()
    print(_peak())  # noqa: T201 -- its answer


def _peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent had when it forked
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
