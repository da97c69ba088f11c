"""A process of its own that reads a feed in full, and prints one number.

``python -m tests.bench.reader peak API STORE`` empties the store and reads twice: peak resident memory in bytes.
``python -m tests.bench.reader speed API STORE`` reads once, what another process has read before it: records a second,
without the start of the process.
"""

from __future__ import annotations

import gc
import re
import resource
import sys
from pathlib import Path

from poller.cli.options import run_loop
from poller.cli.run import COLLECT_AFTER
from tests.bench.scene import bench


async def peak(api_url: str, store_url: str) -> int:
    """Peak resident memory in bytes of two readings, the first of which writes each record."""
    async with bench(api_url, store_url, delta=False) as feed:
        await feed.redis.flushall()
        for _ in range(2):
            await feed.round()
    return _peak()


async def speed(api_url: str, store_url: str) -> float:
    """Records a second of a reading in which nothing has changed; the first one of this process.

    Raises:
        RuntimeError: something has changed.
    """
    async with bench(api_url, store_url, delta=False) as feed:
        silent = await feed.round()
        await feed.store.release()
    if silent.changes:
        raise RuntimeError(f"a silent reading published {silent.changes} events")
    return silent.records / silent.seconds


def _peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent had when it forked
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    gc.freeze()  # as in the daemon
    gc.set_threshold(COLLECT_AFTER)
    what, *where = sys.argv[1:]
    print(run_loop({"peak": peak, "speed": speed}[what](*where)))  # noqa: T201 -- its answer
