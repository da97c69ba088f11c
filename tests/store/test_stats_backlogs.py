"""What subscriptions have not delivered: over fakeredis, Valkey and Redis."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from redis.asyncio import Redis

from poller.redis.client import commands
from poller.store.keys import ConsumerKeys, FeedKeys, group_of
from poller.store.stats import Backlog, backlogs, unread
from poller.store.stream import _found

FEED: Final = "acme/contractTypes"
KEYS: Final = FeedKeys.of("poller", FEED)
PAIR: Final = ConsumerKeys.of("poller", FEED, "a")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NOW: Final = EPOCH + timedelta(seconds=100)


async def publish(client: Redis, *seconds: int) -> None:
    """An event at each of these seconds."""
    for at in seconds:
        sequence = await client.hincrby(KEYS.state, "sequence", 1)
        await client.xadd(KEYS.events, {"data": b'{"sequence":"%020d"}' % sequence}, id=f"{at * 1000}-0")


async def read(client: Redis, count: int) -> list[bytes]:
    """Have the group read so many; their ids."""
    answer = await client.xreadgroup(group_of("a"), "deliverer", {KEYS.events: ">"}, count=count)
    return [entry for entry, _ in _found(answer)[KEYS.events]]


async def backlog(client: Redis) -> Backlog:
    return (await backlogs(client, "poller", [("a", FEED)], now=NOW))[("a", FEED)]


async def test_from_no_group_to_nothing_left(store_client: Redis) -> None:
    """Law: unread, held and parked entries count where they are; the age is that of the oldest of them all."""
    assert await backlog(store_client) == Backlog(FEED, None, None, 0, 0)
    await store_client.xgroup_create(KEYS.events, group_of("a"), id="0", mkstream=True)
    assert await backlog(store_client) == Backlog(FEED, 0, 0.0, 0, 0)
    await publish(store_client, 10, 20, 30, 40)
    assert await backlog(store_client) == Backlog(FEED, 4, 90.0, 0, 0)
    first, second = await read(store_client, 2)
    assert await backlog(store_client) == Backlog(FEED, 4, 90.0, 0, 0)
    await store_client.xack(KEYS.events, group_of("a"), first)
    assert await backlog(store_client) == Backlog(FEED, 3, 80.0, 0, 0)
    await store_client.hset(PAIR.parked, first.decode(), "x")
    await store_client.xack(KEYS.events, group_of("a"), second)
    await store_client.hset(PAIR.letters, second.decode(), "x")
    assert await backlog(store_client) == Backlog(FEED, 2, 90.0, 1, 1)
    await store_client.hdel(PAIR.parked, first.decode())
    await store_client.xack(KEYS.events, group_of("a"), *await read(store_client, 2))
    assert await backlog(store_client) == Backlog(FEED, 0, 0.0, 0, 1)


@pytest.mark.parametrize("trimmed", [False, True])
async def test_a_group_in_the_middle(store_client: Redis, *, trimmed: bool) -> None:
    """Law: where the server cannot count, the sequence numbers do; what was deleted before changes nothing."""
    await publish(store_client, 10, 20, 30, 40, 50)
    await store_client.xgroup_create(KEYS.events, group_of("a"), id="20000-0")
    await store_client.xdel(KEYS.events, *(["10000-0", "20000-0"] if trimmed else ["20000-0"]))
    found = await backlog(store_client)
    assert (found.entries, found.seconds) == (3, 70.0)


def test_what_is_no_event_is_not_counted() -> None:
    """Law: an entry of somebody else's makes the count unknown, never wrong."""
    assert unread(None, 7, None) is None
    assert unread(None, 7, 3) == 3


async def test_what_went_unread_is_not_waited_for(any_store: str) -> None:
    """Law: what the stream lost before it was read is no lag, whatever the server counts; it is told as lost."""
    async with commands(any_store) as client:
        await publish(client, *range(1, 11))
        await client.xgroup_create(KEYS.events, group_of("a"), id="0")
        await read(client, 2)
        await client.xack(KEYS.events, group_of("a"), "1000-0", "2000-0")
        await client.xtrim(KEYS.events, minid="7000-0", approximate=False)
        await client.hset(PAIR.state, "lost", "4")
        assert await backlog(client) == Backlog(FEED, 4, 93.0, 0, 0, 4)
        await client.xack(KEYS.events, group_of("a"), *await read(client, 3))
        assert await backlog(client) == Backlog(FEED, 1, 90.0, 0, 0, 4)
        await client.xack(KEYS.events, group_of("a"), *await read(client, 3))
        assert await backlog(client) == Backlog(FEED, 0, 0.0, 0, 0, 4)
