"""A server that is out of memory: it takes no new events, and everything that frees memory goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis

from poller.changes.plan import Commit
from poller.clock import Clock
from poller.errors import StoreUnavailable
from poller.redis.client import commands
from poller.store.consumer_state import ConsumerScripts, ConsumerStore, Remainder, Settlement, end_unlisted
from poller.store.feed import FeedScripts, FeedStore
from poller.store.keys import ConsumerKeys, FeedKeys, SubscriptionKeys
from poller.store.registry import Registry
from poller.store.scripts import SHEBANG
from poller.store.subscriptions import Paused
from tests.harness.waiting import strain
from tests.store.test_feed import begun

KEYS = FeedKeys.of("p", "acme/a")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def client(server: str) -> AsyncIterator[Redis]:
    async with commands(server) as found:
        yield found
        await found.config_set("maxmemory", 0)


def feed_store(client: Redis) -> FeedStore:
    return FeedStore(
        client,
        FeedScripts(client, shebang=SHEBANG),
        KEYS,
        nonce="n",
        lease=timedelta(seconds=1.5 * min(strain(), 4)),
        clock=Clock(),
    )


async def test_a_commit_waits_and_is_refused_whole_while_the_lease_is_kept(client: Redis) -> None:
    """Without memory no round begins and no commit is written in part; the lease is renewed and released."""
    store = feed_store(client)
    state = await begun(store)
    commit = Commit(state.generation, state.sequence, events=(b"{}", b"{}"), marks={"learnt": "x"})
    before = await client.hgetall(KEYS.state)
    await client.config_set("maxmemory", 1)
    committing = asyncio.create_task(store.commit(commit))
    while not committing.done():
        assert await store.lease.renew()
        await asyncio.wait({committing}, timeout=0.05)
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        await committing
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        await feed_store(client).open_round()
    assert await client.hgetall(KEYS.state) == before
    assert not await client.exists(KEYS.events, KEYS.snapshots)
    await client.config_set("maxmemory", 0)
    assert await begun(store) == state
    await store.commit(commit)
    assert await client.xlen(KEYS.events) == 2
    await client.config_set("maxmemory", 1)
    await store.lease.release()
    assert not await client.exists(KEYS.lease)


CONSUMER = ConsumerKeys.of("p", "acme/a", "s")


def consumer_store(client: Redis, nonce: str = "n") -> ConsumerStore:
    return ConsumerStore(
        client,
        ConsumerScripts(client, shebang=SHEBANG),
        CONSUMER,
        events=KEYS.events,
        subscription="s",
        nonce=nonce,
        lease=timedelta(seconds=9),
        clock=Clock(),
    )


async def test_deliveries_go_on(client: Redis) -> None:
    """Without memory, events are still read, delivered and settled, and another process can take over."""
    keys, pair = CONSUMER, consumer_store(client)
    assert await pair.lease.acquire() is None
    await pair.open("earliest")
    added = [await client.xadd(KEYS.events, {"data": "{}"}) for _ in range(2)]
    await client.config_set("maxmemory", 1)
    assert await pair.lease.acquire() is None
    entries = await pair.read(most=2)
    assert [entry.encode() for entry, _ in entries] == added
    first, second = (entry for entry, _ in entries)
    await pair.settle(Settlement(acked=(first, second), parked={second: b"later"}, place=second), now_ms=1)
    assert await client.hkeys(keys.parked) == [second.encode()]
    assert (await client.xpending(KEYS.events, "sub:s"))["pending"] == 0
    assert await pair.lease.renew()
    await pair.lease.release()
    assert not await client.exists(keys.lease)


async def test_deliveries_begin_again(client: Redis) -> None:
    """Without memory, a process that starts delivers what waits; only creating a new group needs memory."""
    before = consumer_store(client)
    assert await before.lease.acquire() is None
    await before.open("earliest")
    await before.lease.release()
    added = await client.xadd(KEYS.events, {"data": "{}"})
    await client.config_set("maxmemory", 1)
    successor = consumer_store(client, "m")
    assert await successor.lease.acquire() is None
    await successor.open("earliest")
    assert [entry.encode() for entry, _ in await successor.read(most=2)] == [added]
    await client.xgroup_destroy(KEYS.events, "sub:s")
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        await successor.open("earliest")


async def test_subscriptions_can_be_paused_and_removed(client: Redis) -> None:
    """Without memory, subscriptions can be paused, resumed and removed, and their sinks' health is stored."""
    registry = Registry(client, SubscriptionKeys.of("p"))
    await registry.add("s", b'{"sink":"https://s.example"}', [], NOW)
    await client.config_set("maxmemory", 1)
    assert await registry.rest("s", Paused("sink", "it is gone", NOW), sink="https://s.example")
    assert (await registry.resume("s")) == Paused("sink", "it is gone", NOW)
    assert await registry.pause("s", Paused("operator", "by request", NOW)) is None
    assert await registry.note_health("s", "acme/a", b"{}")
    assert (
        await asyncio.gather(*(registry.note_health("s", feed, b"{}") for feed in ("acme/a", "acme/b"))) == [True] * 2
    )
    assert await registry.note_pause("s", timedelta())
    await registry.remove("s")
    assert not (await registry.all()).registered


async def test_a_changed_file_is_taken_over(client: Redis) -> None:
    """Without memory, a process that starts with a changed file registers it; else it would deliver nothing."""
    registry = Registry(client, SubscriptionKeys.of("p"))
    await registry.sync([("s", b'{"sink":"https://s.example"}')], NOW)
    await client.config_set("maxmemory", 1)
    file = [("s", b'{"sink":"https://other.example"}'), ("new", b'{"sink":"https://new.example"}')]
    await registry.sync(file, NOW)
    kept = (await registry.all()).registered
    assert [(name, bytes(kept[name].settings)) for name in ("s", "new")] == file
    with pytest.raises(StoreUnavailable, match="maxmemory"):
        await registry.add("run", b'{"sink":"https://run.example"}', [], NOW)


@pytest.mark.parametrize(("has_group", "then"), [(True, "ended"), (False, "waits")])
async def test_what_waits_at_an_unlisted_feed_stays_while_it_cannot_be_counted(
    client: Redis, then: Remainder, *, has_group: bool
) -> None:
    """Without memory time does not count; a group whose time has passed goes, for that frees memory."""
    await client.xadd(KEYS.events, {"data": "{}"}, id="1-0")
    if has_group:
        await client.xgroup_create(KEYS.events, "sub:s", id="0-0")

    async def look(after: timedelta) -> Remainder:
        moment, age = NOW + after, timedelta(days=7)
        left, events = await end_unlisted(
            client, KEYS, CONSUMER, "s", since=1, start="0-0", now=moment, counts=age, grace=age
        )
        assert events == 1
        return left

    assert await look(timedelta(0)) == "waits"
    await client.config_set("maxmemory", 1)
    assert [await look(timedelta(days=days)) for days in (6, 6, 6)] == ["waits"] * 3
    assert await look(timedelta(days=7)) == then
    await client.config_set("maxmemory", 0)
    assert has_group or await look(timedelta(days=7)) == "ended"
