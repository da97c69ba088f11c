"""Following streams across an outage of the store."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from redis import Redis

from poller.clock import Clock
from poller.errors import StoreUnavailable
from poller.redis.client import blocking
from poller.store.stream import followed
from tests.harness.waiting import limited
from tests.servers import running

BLOCK = timedelta(milliseconds=200)


async def test_nothing_lost_or_repeated_across_an_absence() -> None:
    """An outage of the store is logged once, and every entry comes exactly once, in order."""
    told: list[StoreUnavailable] = []
    gone = asyncio.Event()

    def away(error: StoreUnavailable) -> None:
        told.append(error)
        gone.set()

    seen: asyncio.Queue[bytes] = asyncio.Queue()

    async def read(url: str) -> None:
        async with blocking(url, block=BLOCK) as client:
            async for entries in followed(client, {"k": "0-0"}, block=BLOCK, away=away, clock=Clock()):
                for entry in entries:
                    seen.put_nowait(entry.event)

    with TemporaryDirectory(prefix="pf-") as short:
        with running("valkey", Path(short)) as server, Redis.from_url(server.url) as writer:
            url = server.url
            writer.xadd("k", {"data": b"1"})
            reading = asyncio.create_task(read(url))
            async with limited(10):
                assert await seen.get() == b"1"
        async with limited(20):
            await gone.wait()
            with running("valkey", Path(short)) as server, Redis.from_url(server.url) as writer:
                writer.xadd("k", {"data": b"2"})
                assert await seen.get() == b"2"
                writer.xadd("k", {"data": b"3"})
                assert await seen.get() == b"3"
                while not reading.done():
                    reading.cancel()
                    await asyncio.wait({reading}, timeout=0.1)
    assert len(told) == 1
    assert seen.empty()
