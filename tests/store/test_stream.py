"""Laws of :mod:`poller.store.stream` on real servers: no new entry is missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, KeysView
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from redis.asyncio import Redis

from poller.clock import Clock
from poller.redis.client import blocking, commands, connect, servers
from poller.store.stream import EARLIEST, Entry, append, arrivals, follow, last_id
from tests.harness.clock import StubClock
from tests.harness.waiting import patience, until
from tests.servers import Kind, running
from tests.stores import Stores

BLOCK = timedelta(seconds=10)
SHORT = timedelta(milliseconds=20)

T = TypeVar("T", KeysView[str], list[Entry])


async def _next(coming: AsyncGenerator[T]) -> T:
    """The first result that is not empty."""
    async with patience("a new entry"):
        while not (found := await anext(coming)):
            pass
    return found


@pytest.fixture
async def client(any_store: str) -> AsyncIterator[Redis]:
    one = blocking(any_store, block=BLOCK)
    yield one
    await one.aclose()


@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_an_entry_that_is_deleted_by_its_own_script_is_no_arrival(kind: Kind, tmp_path: Path) -> None:
    """Law: a reader that waits goes on; Redis 7.0 answers it with a stream that has no entries."""
    with running(kind, tmp_path) as server:
        async with commands(server.url) as client, blocking(server.url, block=SHORT * 500) as reading:
            await append(client, "a", b"1", most=9)
            async with aclosing(arrivals(reading, ["a"], block=BLOCK, clock=Clock())) as coming:
                assert await anext(coming) == {"a"}
                following = asyncio.ensure_future(anext(coming))

                async def waits() -> bool:
                    return any("b" in one["flags"] for one in await client.client_list())

                await until(waits, "the reader to wait")
                script = "redis.call('XDEL', KEYS[1], redis.call('XADD', KEYS[1], '*', 'data', ''))"
                await client.eval(script, 1, "a")
                await append(client, "a", b"2", most=9)
                while not (found := await following):
                    following = asyncio.ensure_future(anext(coming))
                assert found == {"a"}


async def test_all_streams_are_looked_at_once_and_then_those_with_something_new(client: Redis) -> None:
    """All streams are reported first, then those with new entries: a burst once, a new stream too."""
    await client.xadd("a", {"data": "1"})
    async with aclosing(arrivals(client, ["a", "b"], block=BLOCK, clock=Clock())) as coming:
        assert await anext(coming) == {"a", "b"}
        for _ in range(300):
            await client.xadd("b", {"data": "1"})
        assert await anext(coming) == {"b"}
        await client.xadd("a", {"data": "2"})
        assert await anext(coming) == {"a"}


async def test_entries_that_come_alone_are_seen_without_another_question(client: Redis) -> None:
    """Each of some single entries is reported, and the ends of the streams are read only after a burst."""
    async with aclosing(arrivals(client, ["a", "b"], block=BLOCK, clock=Clock())) as coming:
        await anext(coming)
        before = await _evaluations(client)
        for _ in range(9):
            await client.xadd("b", {"data": "1"})
            assert await anext(coming) == {"b"}
        assert await _evaluations(client) == before
        for _ in range(3):
            await client.xadd("b", {"data": "1"})
        assert await anext(coming) == {"b"}
        await client.xadd("a", {"data": "2"})
        assert await anext(coming) == {"a"}
        assert await _evaluations(client) == before + 1


async def _evaluations(client: Redis) -> int:
    """How many scripts were sent with their text."""
    stats: Any = [await one.info("commandstats") for one in await servers(client)]
    return sum(one.get("cmdstat_eval", {}).get("calls", 0) for one in stats)


async def test_after_a_while_without_anything_an_empty_set(client: Redis) -> None:
    """After a while without entries the set is empty, so that the caller can do other work."""
    async with aclosing(arrivals(client, ["a"], block=timedelta(milliseconds=1), clock=Clock())) as coming:
        assert await anext(coming) == {"a"}
        assert await anext(coming) == set()


async def test_a_stream_that_has_lost_its_last_entries_is_new(client: Redis) -> None:
    """New entries are seen even if their ids are lower than before, as after a failover to an older clock."""
    await client.xadd("a", {"data": "1"}, id="5-0")
    await client.xadd("b", {"data": "1"}, id="5-0")
    async with aclosing(arrivals(client, ["a", "b"], block=SHORT, look_back=SHORT, clock=Clock())) as coming:
        assert await anext(coming) == {"a", "b"}
        await client.delete("a")
        await client.xadd("a", {"data": "2"}, id="3-0")
        assert await _next(coming) == {"a"}
        await client.xadd("a", {"data": "3"}, id="3-1")
        assert await _next(coming) == {"a"}


@pytest.mark.parametrize("protocol", [2, 3])
async def test_streams_are_followed_in_order(any_store: str, protocol: Literal[2, 3]) -> None:
    """Each stream is read from its position in order, with RESP 2 and 3; at the end, reading waits or ends."""
    async with connect(any_store, reply_timeout=BLOCK, protocol=protocol) as client:
        streams = [f"s{number}" for number in range(4)]
        writing = client.pipeline(transaction=False)
        for key in streams:
            for number in range(300):
                writing.xadd(key, {"data": number}, id=f"{number + 1}-0")
        await writing.execute()
        after = dict.fromkeys(streams, EARLIEST) | {"s1": "250-0", "none": EARLIEST}
        read: dict[str, list[bytes]] = {key: [] for key in after}
        async for entries in follow(client, after, block=None, clock=Clock()):
            for entry in entries:
                read[entry.key].append(entry.event)
        assert read.pop("none") == []
        assert read.pop("s1") == [b"%d" % number for number in range(250, 300)]
        assert all(events == [b"%d" % number for number in range(300)] for events in read.values())
        last = dict.fromkeys(streams, "300-0")
        async with aclosing(follow(client, last, block=SHORT, clock=Clock())) as coming:
            assert await anext(coming) == []
            await client.xadd("s3", {"data": "new"})
            assert [entry.event for entry in await _next(coming)] == [b"new"]


@pytest.mark.parametrize(("many", "pause"), [(10, 0.1), (1000, 0.2)])
async def test_a_cluster_is_asked_no_more_than_it_can_bear(stores: Stores, many: int, pause: float) -> None:
    """A cluster is polled ten times a second, or less often, so that it gets at most 5,000 requests a second."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await many_streams.xadd("s1", {"data": "1"})

    async with commands(stores.emptied("cluster")) as many_streams:
        keys = [f"s{number}" for number in range(many)]
        async with aclosing(arrivals(many_streams, keys, block=BLOCK, clock=StubClock(sleep=sleep))) as coming:
            assert await anext(coming) == set(keys)
            assert await anext(coming) == {"s1"}
    assert pauses == [pause]


async def test_what_is_appended_is_kept_up_to_about_so_many(client: Redis) -> None:
    """A capped stream keeps about the given number of its latest entries."""
    assert await last_id(client, "a") == EARLIEST
    for number in range(400):
        await append(client, "a", b"%d" % number, most=100)
    assert 100 <= await client.xlen("a") < 400
    entries = await client.xrange("a") or []
    assert entries[-1][1] == {b"data": b"399"}
    assert (await last_id(client, "a")).encode() == entries[-1][0]
