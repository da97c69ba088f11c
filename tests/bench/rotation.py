"""Many qualifications under a rate, by the real daemon: how long a rotation takes, how soon a change is seen."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
from redis.asyncio import Redis

from tests.bench.figures import Figure
from tests.harness.processes import SANDBOX_TOKEN, Daemon, daemon
from tests.harness.waiting import patience
from tests.servers import Server

_CONFIG = """\
[redis]
url = "{store}"
[http]
bind = "off"
[[sources]]
name = "acme"
base_url = "{source}"
auth = {{ token_file = "{token}" }}
rate = {rate}
[[sources.feeds]]
resource = "evidenceVariants"
interval = "1s"
reconcile = "off"
[[sources.feeds]]
resource = "achievements"
interval = "10s"
"""
_MIB = 1024 * 1024
_STREAM = "poller:{acme/achievements}:events"
_LISTINGS = "poller:{acme/achievements}:listings"
_TRIES = 8


async def rotating(
    api_url: str, server: Server, root: Path, *, qualifications: int, rate: int
) -> AsyncIterator[Figure]:
    """The first reading, the delay of changes that an evidence variant points to, and memory meanwhile."""
    config = root / "rotation.toml"
    token = root / "token"
    token.write_text(SANDBOX_TOKEN)
    token.chmod(0o600)
    config.write_text(_CONFIG.format(store=server.url, source=api_url, rate=rate, token=token))
    async with Redis.from_url(server.url) as redis, aiohttp.ClientSession() as http, daemon(config) as running:
        begun = time.monotonic()
        await _until_listed(redis, qualifications)
        seconds = time.monotonic() - begun
        ideal = qualifications / rate
        yield Figure(
            f"first reading of {qualifications} listings at {rate}/s",
            f"{seconds:.1f} s",
            f"{ideal:.0f} s at that rate",
            ideal / seconds,
            ">= 0.89",
        )
        before = _rss(running)
        delays = sorted([await _delay(redis, http, api_url, number) for number in range(_TRIES)])
        yield Figure(
            "a change that a fresh evidence variant points to",
            f"median {delays[_TRIES // 2]:.2f} s, worst {delays[-1]:.2f} s",
            "1 s until the evidence variant is polled",
            None,
            "one slot: 10 s",
        )
        await _until_rotated(redis, time.time())
        after = _rss(running)
        yield Figure(
            "peak RSS after two rotations",
            f"{after / _MIB:.0f} MiB",
            f"after one {before / _MIB:.0f} MiB",
            after / before,
            "1.0",
        )


async def _until_listed(redis: Redis, count: int) -> None:
    async with patience(f"{count} listings", seconds=600):
        while await redis.hlen(_LISTINGS) < count:
            await redis.xread({_STREAM: "$"}, count=1, block=100)


async def _until_rotated(redis: Redis, since: float) -> None:
    async with patience("a rotation", seconds=600):
        while True:
            oldest: Any = await redis.hget(_LISTINGS.replace("listings", "state"), "oldest")
            if oldest and datetime.fromisoformat(oldest.decode()).timestamp() >= since:
                return
            await redis.xread({_STREAM: "$"}, count=1, block=200)


async def _delay(redis: Redis, http: aiohttp.ClientSession, api_url: str, number: int) -> float:
    """Seconds from a change of an achievement and its evidence variant to the event of the achievement."""
    entries: Any = await redis.xrevrange("poller:{acme/evidenceVariants}:events", count=100)
    variant = json.loads(entries[number * 7 % len(entries)][1][b"data"])["data"]["record"]
    last: Any = await redis.xinfo_stream(_STREAM)
    achievement = {"id": str(UUID(int=number + 1)), "qualificationID": variant["qualificationID"]}
    begun = time.monotonic()
    for resource, record in (("achievements", achievement), ("evidenceVariants", {**variant, "name": f"n{begun}"})):
        async with http.post(f"{api_url}/_sandbox/records/{resource}", data=json.dumps(record)) as answer:
            answer.raise_for_status()
    async with patience("the event", seconds=120):
        while True:
            found: Any = await redis.xread({_STREAM: last["last-generated-id"]}, block=1000)
            for _, fields in found[0][1] if found else ():
                if json.loads(fields[b"data"])["subject"] == achievement["id"]:
                    return time.monotonic() - begun


def _rss(running: Daemon) -> int:
    status = Path(f"/proc/{running.pid}/status").read_text()
    return 1024 * int(status.split("VmRSS:")[1].split()[0])
