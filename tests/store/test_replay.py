"""Replays in the store, on real servers and, where it behaves the same, on fakeredis."""

from __future__ import annotations

from datetime import timedelta

import pytest
from redis.asyncio import Redis

from poller.clock import Clock
from poller.errors import GroupGone, Stale
from poller.redis.client import commands
from poller.store.consumer_state import ConsumerScripts, ConsumerStore, Settlement, forget
from poller.store.keys import ConsumerKeys, FeedKeys, SubscriptionKeys
from poller.store.registry import Registry, RegistryVersions
from poller.store.replay import (
    ReplayPosition,
    ReplaySpan,
    cancel,
    first,
    is_completed,
    last,
    last_read,
    replay_of,
    start_replay,
)

FEED = "acme/contractTypes"
EVENTS = FeedKeys.of("poller", FEED).events
KEYS = ConsumerKeys.of("poller", FEED, "a")
SPAN = ReplaySpan("r", "1-0", "9-0")


def pair(client: Redis) -> ConsumerStore:
    lease = timedelta(seconds=30)
    return ConsumerStore(
        client, ConsumerScripts(client), KEYS, events=EVENTS, subscription="a", nonce="n", lease=lease, clock=Clock()
    )


async def test_one_at_a_time(store_client: Redis) -> None:
    """Law: a feed consumer has one replay; another is refused until it is cancelled or has ended."""
    assert await replay_of(store_client, KEYS) is None
    assert await start_replay(store_client, KEYS, SPAN)
    assert not await start_replay(store_client, KEYS, ReplaySpan("s", "0-0", "2-0"))
    assert await replay_of(store_client, KEYS) == SPAN
    assert await cancel(store_client, KEYS)
    assert not await cancel(store_client, KEYS)
    assert not await is_completed(store_client, KEYS, "r")
    assert await start_replay(store_client, KEYS, ReplaySpan("s", "0-0", "2-0"))


async def test_its_place_goes_along_with_settlements(store_client: Redis) -> None:
    """Law: a settlement moves or ends only the replay that it names, not a later one."""
    store = pair(store_client)
    assert await store.lease.acquire() is None
    await start_replay(store_client, KEYS, SPAN)
    await store.settle(Settlement(replay=ReplayPosition("r", "5-0")), now_ms=1)
    assert await store.replay() == ReplaySpan("r", "5-0", "9-0")
    await store.settle(Settlement(place="7-0"), now_ms=1)
    await store.settle(Settlement(replay=ReplayPosition("former", "")), now_ms=1)
    assert await store.replay() == ReplaySpan("r", "5-0", "9-0")
    await store.settle(Settlement(replay=ReplayPosition("r", "")), now_ms=1)
    assert await store.replay() is None
    assert await is_completed(store_client, KEYS, "r")
    assert await store_client.hmget(KEYS.state, ["place", "replay_after", "replay_to"]) == [b"7-0", None, None]


async def test_what_is_read_of_it(any_store: str) -> None:
    """Law: a replay's entries come from its position to its end, a limited number at a time."""
    async with commands(any_store) as client:
        store = pair(client)
        assert await store.lease.acquire() is None
        assert await first(client, EVENTS) is None
        assert await last_read(client, EVENTS, "a") is None
        for number in range(1, 6):
            await client.xadd(EVENTS, {"data": f"e{number}"}, id=f"{number}-0")
        assert await last_read(client, EVENTS, "a") is None
        span = ReplaySpan("r", "1-0", "4-0")
        assert await store.past(span, most=2) == [("2-0", b"e2"), ("3-0", b"e3")]
        assert await store.past(ReplaySpan("r", "3-0", "4-0"), most=2) == [("4-0", b"e4")]
        assert await first(client, EVENTS, "(3-0") == ("4-0", b"e4")
        assert await last(client, EVENTS, "3-7") == ("3-0", b"e3")
        await store.open("earliest")
        await store.read(most=2)
        assert await last_read(client, EVENTS, "a") == "2-0"


async def test_what_was_parked_by_others(store_client: Redis) -> None:
    """Law: a consumer loads only scheduled retries that it does not know; a mark tells that there may be some."""
    registry = Registry(store_client, SubscriptionKeys.of("poller"))
    assert await registry.marks() == RegistryVersions(0, 0, 0)
    await registry.tell_parked()
    assert await registry.marks() == RegistryVersions(0, 1, 0)
    await store_client.hset(KEYS.parked, mapping={"1-0": "d", "2-0": "e"})
    assert await pair(store_client).parked_besides({"1-0"}) == {"2-0": b"e"}
    assert await pair(store_client).parked_besides({"1-0", "2-0"}) == {}


async def test_what_it_begins_with_has_to_be_there(any_store: str) -> None:
    """Law: a replay is refused if its first entry has been trimmed since it was planned."""
    async with commands(any_store) as client:
        await client.xadd(EVENTS, {"data": "e"}, id="5-0")
        with pytest.raises(Stale, match="4-0 is gone"):
            await start_replay(client, KEYS, SPAN, events=EVENTS, first="4-0")
        assert await replay_of(client, KEYS) is None
        assert await start_replay(client, KEYS, SPAN, events=EVENTS, first="5-0")


async def test_no_replay_of_a_subscription_that_is_removed_meanwhile(any_store: str) -> None:
    """Law: a replay that was planned before its subscription was removed leaves nothing behind."""
    async with commands(any_store) as client:
        for group in ("sub:b", "sub:a"):
            await client.xgroup_create(EVENTS, group, id="0", mkstream=True)
        assert await start_replay(client, KEYS, ReplaySpan("s", "0-0", "2-0"), events=EVENTS, group="sub:a")
        await forget(client, FeedKeys.of("poller", FEED), KEYS, "a")
        with pytest.raises(GroupGone, match="has no group sub:a any more"):
            await start_replay(client, KEYS, SPAN, events=EVENTS, group="sub:a")
        await client.delete(EVENTS)
        with pytest.raises(GroupGone):
            await start_replay(client, KEYS, SPAN, events=EVENTS, group="sub:a")
        assert not await client.keys("*")
