"""Following streams across an outage of the store."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from redis import Redis

from poller.clock import Clock
from poller.errors import StoreUnavailable
from poller.redis.client import blocking
from poller.store.stream import LOOK_BACK, EntryId, RollbackWatch, followed
from tests.harness.clock import StubClock
from tests.harness.waiting import limited
from tests.servers import running
from tests.stores import looking

BLOCK = timedelta(milliseconds=200)


async def test_a_stream_that_went_back_is_read_again(store_url: str) -> None:
    """A reader past the end of a stream waits, and begins again if the stream grows before its place."""
    again: list[str] = []
    clock = StubClock(monotonic=itertools.count(0.0, LOOK_BACK.total_seconds()).__next__)
    block = timedelta(milliseconds=20)
    with looking(store_url) as writer:
        writer.xadd("k", {"data": b"1"}, id="5-0")
        writer.xadd("k", {"data": b"2"}, id="9-0")
        async with blocking(store_url, block=block) as client, limited(20):
            coming = followed(client, {"k": "0-0"}, block=block, away=print, back=again.append, clock=clock)
            async with aclosing(coming) as reading:
                assert [entry.event for entry in await anext(reading)] == [b"1", b"2"]
                writer.delete("k")
                writer.xadd("k", {"data": b"1"}, id="5-0")
                assert [await anext(reading) for _ in range(3)] == [[], [], []]
                assert again == []
                writer.xadd("k", {"data": b"3"}, id="7-0")
                found = [entry.event for _ in range(4) for entry in await anext(reading)]
                assert (found, again) == ([b"1", b"3"], ["k"])
                writer.xadd("k", {"data": b"4"}, id="8-0")
                assert [entry.event for _ in range(2) for entry in await anext(reading)] == [b"4"]


def test_a_place_is_lost_if_the_stream_grows_before_it() -> None:
    """Not at the first look, not while nothing comes, and not if what comes is after the place."""
    watch, place = RollbackWatch(), EntryId(9, 1)
    assert [watch.is_lost("k", place, end) for end in ("9-1", "5-0", "5-0", "5-1")] == [False, False, False, True]
    assert [watch.is_lost("k", place, end) for end in ("5-1", "10-0", "8-0", "8-0", "7-0")] == [False] * 4 + [True]
    assert [watch.is_lost(key, place, end) for key, end in (("a", "1-0"), ("b", "2-0"), ("a", "1-0"))] == [False] * 3


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
