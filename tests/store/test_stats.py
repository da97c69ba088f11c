"""Laws of :mod:`poller.store.stats`, on each kind of store: figures of many feeds and consumers are read together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from poller.changes.plan import RoundCounts
from poller.clock import moment_of
from poller.errors import StoreError
from poller.redis.client import commands
from poller.store.feed_state import FeedState
from poller.store.keys import ConsumerKeys, FeedKeys, group_of
from poller.store.retention import StreamExtent
from poller.store.stats import Backlog, FeedStats, backlogs, feed_stats, unread
from poller.store.stream import EntryId, _found

FEEDS: Final = tuple(f"acme/{name}" for name in ("a", "b", "c"))
NAMES: Final = ("one", "two", "none")
NOW: Final = moment_of(100_000)


async def published(client: Redis, feed: str, *seconds: int) -> None:
    keys = FeedKeys.of("poller", feed)
    for at in seconds:
        sequence = await client.hincrby(keys.state, "sequence", 1)
        await client.xadd(keys.events, {"data": b'{"sequence":"%020d","data":{}}' % sequence}, id=f"{at * 1000}-0")


async def read(client: Redis, feed: str, name: str, count: int) -> list[bytes]:
    events = FeedKeys.of("poller", feed).events
    await client.xgroup_create(events, group_of(name), id="0", mkstream=True)
    if count:
        await client.xreadgroup(group_of(name), "deliverer", {events: ">"}, count=count)
    found: Any = await client.xpending_range(events, group_of(name), "-", "+", 100)
    return [one["message_id"] for one in found]


async def test_many_consumers_are_read_together(any_store: str) -> None:
    """Each consumer gets its own figures: group, pending, scheduled, unread and lost events, dead letters."""
    async with commands(any_store) as client:
        for feed in FEEDS[:2]:
            await published(client, feed, 10, 20, 30, 40)
        await read(client, FEEDS[0], "one", 0)
        held = await read(client, FEEDS[1], "one", 3)
        own = ConsumerKeys.of("poller", FEEDS[1], "one")
        await client.xack(FeedKeys.of("poller", FEEDS[1]).events, group_of("one"), held[0], held[1])
        await client.hset(own.parked, held[1].decode(), "x")
        await client.hset(own.letters, held[0].decode(), "x")
        await client.hset(own.state, "lost", "7")
        await client.set(own.lease, "web1/5ec2e7")
        await read(client, FEEDS[1], "two", 4)
        found = await backlogs(client, "poller", [(name, feed) for name in NAMES for feed in FEEDS], now=NOW)
        assert list(found) == [(name, feed) for name in NAMES for feed in FEEDS]
        assert found["one", FEEDS[0]] == Backlog(FEEDS[0], 4, 90.0, 0, 0)
        assert found["one", FEEDS[1]] == Backlog(FEEDS[1], 2, 80.0, 1, 1, 7, "web1")
        assert found["two", FEEDS[1]] == Backlog(FEEDS[1], 4, 90.0, 0, 0)
        for name, feed in (("two", FEEDS[0]), ("one", FEEDS[2]), ("none", FEEDS[1])):
            assert found[name, feed] == Backlog(feed, None, None, 0, 0)


async def test_each_feed_says_what_there_is(any_store: str) -> None:
    """The sizes, lease, pause and state of each feed are read; a feed that was never written gives zeros."""
    keys = FeedKeys.of("poller", FEEDS[0])
    async with commands(any_store) as client:
        await published(client, FEEDS[0], 1, 2)
        await client.hset(keys.snapshots, mapping={"k": "v", "gone": "v"})
        await client.hset(keys.state, mapping={"tombstones": "1", "round": '{"ok":false,"created":2,"new_key":1}'})
        await client.hset(keys.listings, "q", "v")
        await client.xadd(keys.quarantine, {"data": "?"})
        await client.set(keys.lease, "web1/5ec2e7", px=60_000)
        await client.set(keys.pause, "{}")
        found = await feed_stats(client, "poller", FEEDS)
        assert list(found) == list(FEEDS)
        assert found[FEEDS[1]] == FeedStats(
            FEEDS[1], FeedState("", 0), None, 0, StreamExtent(0, 0, None), 0, 0, 0, None, None
        )
        one = found[FEEDS[0]]
        assert (one.snapshots, one.records, one.quarantined, one.listings) == (2, 1, 1, 1)
        assert (one.stream.length, one.stream.first, one.state.sequence) == (2, EntryId(1000), 2)
        assert 0 < one.stream.size < 100_000
        assert (one.owner, one.pause is not None) == ("web1", True)
        assert 0 < one.lease_ms <= 60_000
        assert one.last_round is not None
        assert (one.last_round.ok, one.last_round.counts) == (False, RoundCounts(created=2))


async def test_what_cannot_be_read_is_an_error_or_costs_only_itself(store_url: str) -> None:
    """An unreadable feed is left out when lenient (metrics), and an error otherwise (status).

    A server that forgot the scripts gets them again.
    """
    pairs = [("one", feed) for feed in FEEDS]
    async with commands(store_url) as client:
        await client.set(FeedKeys.of("poller", FEEDS[1]).snapshots, "no hash")
        await client.set(FeedKeys.of("poller", FEEDS[1]).events, "no stream")
        for _ in range(2):
            assert (await feed_stats(client, "poller", FEEDS, lenient=True)).keys() == {FEEDS[0], FEEDS[2]}
            found = await backlogs(client, "poller", pairs, now=NOW, lenient=True)
            assert list(found) == [("one", FEEDS[0]), ("one", FEEDS[2])]
            await client.script_flush()
        with pytest.raises(StoreError):
            await feed_stats(client, "poller", FEEDS)
        with pytest.raises(StoreError):
            await backlogs(client, "poller", pairs, now=NOW)
        await client.hset(FeedKeys.of("poller", FEEDS[0]).state, "sequence", "none")
        assert (await feed_stats(client, "poller", FEEDS, lenient=True)).keys() == {FEEDS[2]}


async def test_an_event_of_somebody_else_has_no_number(store_url: str) -> None:
    """Without a sequence number the server's own count is used; a number inside the data is ignored."""
    events = FeedKeys.of("poller", FEEDS[0]).events
    async with commands(store_url) as client:
        await read(client, FEEDS[0], "one", 0)
        await client.xadd(events, {"data": b'{"type":"\\"sequence\\":\\"9\\""}'})
        found = await backlogs(client, "poller", [("one", FEEDS[0])], now=NOW)
        assert found["one", FEEDS[0]].entries == 1


async def test_many_subscriptions_of_a_feed_are_asked_for_in_parts(store_url: str, one_server: None) -> None:
    """Many subscriptions of a feed are read in parts, so that no script runs long."""
    pairs = [(f"s{number}", FEEDS[0]) for number in range(100)]
    async with commands(store_url) as client:
        for name, _ in pairs:
            await client.hset(ConsumerKeys.of("poller", FEEDS[0], name).parked, "5-1", "x")
        await backlogs(client, "poller", pairs, now=NOW)  # the server knows the script from now on
        before = await scripts_run(client)
        found = await backlogs(client, "poller", pairs, now=NOW)
        assert await scripts_run(client) - before == 4
    assert [(one.parked, one.seconds) for one in found.values()] == [(1, 99.995)] * 100


async def scripts_run(client: Redis) -> int:
    found: Any = await client.info("commandstats")
    return int(found["cmdstat_evalsha"]["calls"])


# What subscriptions have not delivered: over the simulated store, Valkey and Redis.

FEED: Final = "acme/contractTypes"
KEYS: Final = FeedKeys.of("poller", FEED)
PAIR: Final = ConsumerKeys.of("poller", FEED, "a")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
BACKLOG_AT: Final = EPOCH + timedelta(seconds=100)


async def publish(client: Redis, *seconds: int) -> None:
    """Publish an event at each of these seconds."""
    for at in seconds:
        sequence = await client.hincrby(KEYS.state, "sequence", 1)
        await client.xadd(KEYS.events, {"data": b'{"sequence":"%020d"}' % sequence}, id=f"{at * 1000}-0")


async def read_by_group(client: Redis, count: int) -> list[bytes]:
    """Read this number of entries with the group; returns their ids."""
    answer = await client.xreadgroup(group_of("a"), "deliverer", {KEYS.events: ">"}, count=count)
    return [entry for entry, _ in _found(answer)[KEYS.events]]


async def backlog(client: Redis) -> Backlog:
    return (await backlogs(client, "poller", [("a", FEED)], now=BACKLOG_AT))[("a", FEED)]


async def test_from_no_group_to_nothing_left(store_client: Redis) -> None:
    """Unread, pending and scheduled entries are all counted; the lag is the age of the oldest of them."""
    assert await backlog(store_client) == Backlog(FEED, None, None, 0, 0)
    await store_client.xgroup_create(KEYS.events, group_of("a"), id="0", mkstream=True)
    assert await backlog(store_client) == Backlog(FEED, 0, 0.0, 0, 0)
    await publish(store_client, 10, 20, 30, 40)
    assert await backlog(store_client) == Backlog(FEED, 4, 90.0, 0, 0)
    first, second = await read_by_group(store_client, 2)
    assert await backlog(store_client) == Backlog(FEED, 4, 90.0, 0, 0)
    await store_client.xack(KEYS.events, group_of("a"), first)
    assert await backlog(store_client) == Backlog(FEED, 3, 80.0, 0, 0)
    await store_client.hset(PAIR.parked, first.decode(), "x")
    await store_client.xack(KEYS.events, group_of("a"), second)
    await store_client.hset(PAIR.letters, second.decode(), "x")
    assert await backlog(store_client) == Backlog(FEED, 2, 90.0, 1, 1)
    await store_client.hdel(PAIR.parked, first.decode())
    await store_client.xack(KEYS.events, group_of("a"), *await read_by_group(store_client, 2))
    assert await backlog(store_client) == Backlog(FEED, 0, 0.0, 0, 1)


@pytest.mark.parametrize(
    ("begins", "place", "expected"),
    [
        ("0-0", None, (4, 90.0)),
        ("19999-18446744073709551615", None, (3, 80.0)),
        ("20000-0", None, (2, 70.0)),
        ("0-0", "30000-0", (1, 60.0)),
        ("40000-0", None, (None, None)),
        ("", None, (None, None)),
        ("", "30000-0", (None, None)),
    ],
    ids=["earliest", "since a moment", "after an entry", "a place", "nothing waits", "not known", "not asked for"],
)
async def test_what_waits_where_a_consumer_has_not_begun(
    store_client: Redis, begins: str, place: str | None, expected: tuple[int | None, float | None]
) -> None:
    """Law: without a group, the events after the start position are counted, as far as that is known."""
    await publish(store_client, 10, 20, 30, 40)
    if place:
        await store_client.hset(PAIR.state, "place", place)
    pairs = [("a", FEED), ("b", FEED)]
    found = await backlogs(store_client, "poller", pairs, now=BACKLOG_AT, begins={("a", FEED): begins})
    assert [found["a", FEED], found["b", FEED]] == [Backlog(FEED, *expected, 0, 0), Backlog(FEED, None, None, 0, 0)]


@pytest.mark.parametrize("trimmed", [False, True])
async def test_a_group_in_the_middle(store_client: Redis, *, trimmed: bool) -> None:
    """Where the server cannot count, the sequence numbers are used; entries deleted before change nothing."""
    await publish(store_client, 10, 20, 30, 40, 50)
    await store_client.xgroup_create(KEYS.events, group_of("a"), id="20000-0")
    await store_client.xdel(KEYS.events, *(["10000-0", "20000-0"] if trimmed else ["20000-0"]))
    found = await backlog(store_client)
    assert (found.entries, found.seconds) == (3, 70.0)


def test_what_is_no_event_is_not_counted() -> None:
    """An entry of another program makes the count unknown, never wrong."""
    assert unread(None, 7, None) is None
    assert unread(None, 7, 3) == 3


async def test_what_went_unread_is_not_waited_for(any_store: str) -> None:
    """Events trimmed unread count as lost, not as lag, whatever the server counts."""
    async with commands(any_store) as client:
        await publish(client, *range(1, 11))
        await client.xgroup_create(KEYS.events, group_of("a"), id="0")
        await read_by_group(client, 2)
        await client.xack(KEYS.events, group_of("a"), "1000-0", "2000-0")
        await client.xtrim(KEYS.events, minid="7000-0", approximate=False)
        await client.hset(PAIR.state, "lost", "4")
        assert await backlog(client) == Backlog(FEED, 4, 93.0, 0, 0, 4)
        await client.xack(KEYS.events, group_of("a"), *await read_by_group(client, 3))
        assert await backlog(client) == Backlog(FEED, 1, 90.0, 0, 0, 4)
        await client.xack(KEYS.events, group_of("a"), *await read_by_group(client, 3))
        assert await backlog(client) == Backlog(FEED, 0, 0.0, 0, 0, 4)
