"""Laws of :mod:`poller.store.stream` on real servers: nothing new goes by unnoticed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from poller.store.connection import blocking
from poller.store.stream import EARLIEST, append, arrivals, last_id

BLOCK = timedelta(seconds=10)


@pytest.fixture
async def client(any_store: str) -> AsyncIterator[Redis]:
    one = blocking(any_store, block=BLOCK)
    yield one
    await one.aclose()


async def test_all_streams_are_looked_at_once_and_then_those_with_something_new(client: Redis) -> None:
    """A burst is told of once, and a stream that is not there yet when it has its first entry."""
    await client.xadd("a", {"data": "1"})
    async with aclosing(arrivals(client, ["a", "b"], block=BLOCK)) as coming:
        assert await anext(coming) == {"a", "b"}
        for _ in range(300):
            await client.xadd("b", {"data": "1"})
        assert await anext(coming) == {"b"}
        await client.xadd("a", {"data": "2"})
        assert await anext(coming) == {"a"}


async def test_after_a_while_without_anything_an_empty_set(client: Redis) -> None:
    """So whoever listens comes round."""
    async with aclosing(arrivals(client, ["a"], block=timedelta(milliseconds=1))) as coming:
        assert await anext(coming) == {"a"}
        assert await anext(coming) == set()


async def test_what_is_appended_is_kept_up_to_about_so_many(client: Redis) -> None:
    """The latest of them."""
    assert await last_id(client, "a") == EARLIEST
    for number in range(400):
        await append(client, "a", b"%d" % number, most=100)
    assert 100 <= await client.xlen("a") < 400
    entries = await client.xrange("a") or []
    assert entries[-1][1] == {b"data": b"399"}
    assert (await last_id(client, "a")).encode() == entries[-1][0]
