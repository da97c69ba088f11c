"""A backfill beside batch deliveries of the same feed, and its memory with ten times the records."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from poller.redis.client import commands
from tests.bench.figures import Figure
from tests.bench.scene import short_directory
from tests.harness.backfilled import FEED, ChangingFeed
from tests.harness.processes import daemon
from tests.harness.waiting import until
from tests.receiver import Received, Reply, receiving
from tests.servers import running

_MIB: Final = 1024 * 1024
_MANY: Final = 10
_SECONDS: Final = 1800.0
_EVENT: Final = b'"specversion"'
_DELIVER: Final = ("poller", "run", "--only", "deliver")
_CONFIG: Final = """
redis = {{ url = "{url}" }}
http = {{ bind = "off" }}
retention = {{ max_bytes = "8GiB" }}
[[sources]]
name = "acme"
base_url = "http://127.0.0.1:1"
auth = {{ none = true }}
[[sources.feeds]]
resource = "employmentUnavailabilities"
[[subscriptions]]
id = "{start}"
sink = "{sink}"
start = "{start}"
allow_private = true
mode = "batch"
"""


async def backfills(directory: Path, *, records: int) -> AsyncIterator[Figure]:
    """Events a second, and the greatest memory of the process."""
    few, deliveries, small = await _measured(short_directory(directory, "a"), records, beside=True)
    yield Figure(
        f"backfill of {records} records in batches",
        f"{few:.0f} events/s",
        f"batch deliveries of as many events {deliveries:.0f}/s",
        few / deliveries,
        "0.5",
    )
    many, _, large = await _measured(short_directory(directory, "b"), _MANY * records, beside=False)
    yield Figure(f"backfill of {_MANY * records} records in batches", f"{many:.0f} events/s")
    yield Figure(
        f"peak RSS of a backfill of {_MANY * records} records",
        f"{large / _MIB:.1f} MiB",
        f"with {records} records {small / _MIB:.1f} MiB",
        large / small,
        "at most 10 MiB more",
    )


async def _measured(place: Path, records: int, *, beside: bool) -> tuple[float, float, int]:
    """Backfilled events a second, those of batch deliveries, and the peak of the backfill's process in bytes."""
    with running("valkey", place, appendfsync="everysec") as server:
        async with commands(server.url) as client:
            feed = ChangingFeed(client)
            await feed.fill(records, is_trimmed=not beside)
            deliveries = (await _delivered(server.url, place, client, "earliest", records))[0] if beside else 0.0
            await client.xtrim(feed.keys.events, maxlen=0, approximate=False)
            rate, peak = await _delivered(server.url, place, client, "snapshot", records)
            return rate, deliveries, peak


async def _delivered(url: str, place: Path, client: Redis, start: str, records: int) -> tuple[float, int]:
    """Events a second from the first to the last one, and the peak of the process in bytes."""
    came = 0
    began = 0.0

    def answer(request: Received) -> Reply:
        nonlocal came, began
        began = began or time.monotonic()
        came += request.body.count(_EVENT)
        return Reply(204)

    async with receiving(answer, recording=False) as sink:
        config = place / f"{start}.toml"
        config.write_text(_CONFIG.format(url=url, sink=sink.url, start=start), "utf-8")
        async with daemon(config, command=_DELIVER, level="warning") as process:
            await until(lambda: came >= records, f"{records} events", seconds=_SECONDS, every=0.02)
            seconds = time.monotonic() - began
            key = f"poller:{{{FEED}}}:sub:{start}:state"

            async def is_over() -> bool:
                return not await client.hexists(key, "backfill")

            await until(is_over, "the end of the backfill")
            return came / seconds, _peak(process.pid)


def _peak(pid: int) -> int:
    """The greatest resident memory of a process so far, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024
