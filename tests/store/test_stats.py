"""Laws of :mod:`poller.store.stats`: thousands at once say what each would say by itself. On each kind of store."""

from __future__ import annotations

from typing import Any, Final

from redis.asyncio import Redis

from poller.clock import moment_of
from poller.redis.client import commands
from poller.store.keys import ConsumerKeys, FeedKeys, group_of
from poller.store.stats import ConsumerStats, FeedStats, backlogs, feed_amounts, pair_amounts

FEEDS: Final = tuple(f"acme/{name}" for name in ("a", "b", "c"))
NAMES: Final = ("one", "two", "none")
NOW: Final = 100_000  # milliseconds


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


async def test_what_waits_is_what_each_backlog_says(any_store: str) -> None:
    """With and without a group, with pending, parked, unread and lost ones, and dead letters."""
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
        await read(client, FEEDS[1], "two", 4)
        found = await pair_amounts(client, "poller", dict.fromkeys(FEEDS, NAMES))
        each = await backlogs(client, "poller", [(name, feed) for name in NAMES for feed in FEEDS], now=moment_of(NOW))
        assert found.keys() == each.keys()
        for pair, one in each.items():
            told = found[pair]
            assert (told.undelivered, told.parked) == (one.entries, one.parked), pair
            assert (told.letters, told.lost) == (one.dead_letters, one.lost), pair
            age = None if told.oldest is None else (NOW - told.oldest) / 1000
            assert age == (one.seconds or None), pair
        assert found["one", FEEDS[1]] == ConsumerStats(2, 20_000, begun=True, parked=1, letters=1, lost=7)


async def test_each_feed_says_what_there_is(any_store: str) -> None:
    """Sizes, the lease, fields of the state; what was never written is nothing, and no error."""
    keys = FeedKeys.of("poller", FEEDS[0])
    async with commands(any_store) as client:
        await published(client, FEEDS[0], 1, 2)
        await client.hset(keys.snapshots, "k", "v")
        await client.xadd(keys.quarantine, {"data": "?"})
        await client.set(keys.lease, "me")
        await client.set(keys.pause, "{}")
        found = await feed_amounts(client, "poller", FEEDS, ["sequence", "held"])
        assert found[FEEDS[1]] == FeedStats(0, 0, 0, owned=False, paused=False, stream_bytes=0, state=(None, None))
        one = found[FEEDS[0]]
        assert (one.records, one.entries, one.quarantined, one.owned, one.paused) == (1, 2, 1, True, True)
        assert one.state == (b"2", None)
        assert 0 < one.stream_bytes < 100_000


async def test_what_cannot_be_read_costs_only_itself(store_url: str) -> None:
    """A key of another type leaves its own feed out; a server that forgot the scripts is sent them again."""
    async with commands(store_url) as client:
        await client.set(FeedKeys.of("poller", FEEDS[1]).snapshots, "no hash")
        for _ in range(2):
            assert (await feed_amounts(client, "poller", FEEDS, ["held"])).keys() == {FEEDS[0], FEEDS[2]}
            await client.script_flush()


async def test_an_event_of_somebody_else_has_no_number(store_url: str) -> None:
    """Then the server's own count is what there is; a number within the data is not taken for the event's."""
    events = FeedKeys.of("poller", FEEDS[0]).events
    async with commands(store_url) as client:
        await read(client, FEEDS[0], "one", 0)
        await client.xadd(events, {"data": b'{"type":"\\"sequence\\":\\"9\\""}'})
        found = await pair_amounts(client, "poller", {FEEDS[0]: ["one"]})
        assert found["one", FEEDS[0]].undelivered == 1


async def test_many_subscriptions_of_a_feed_are_asked_for_in_parts(store_url: str, one_server: None) -> None:
    """Law: nobody keeps the store busy for long: each may have a thousand parked deliveries to be looked at."""
    names = [f"s{number}" for number in range(100)]
    async with commands(store_url) as client:
        for name in names:
            await client.hset(ConsumerKeys.of("poller", FEEDS[0], name).parked, "5-1", "x")
        await pair_amounts(client, "poller", {FEEDS[0]: names})  # the server knows the script from now on
        before = await scripts_run(client)
        found = await pair_amounts(client, "poller", {FEEDS[0]: names})
        assert await scripts_run(client) - before == 4
    assert [(one.parked, one.oldest) for one in found.values()] == [(1, 5)] * 100


async def scripts_run(client: Redis) -> int:
    found: Any = await client.info("commandstats")
    return int(found["cmdstat_evalsha"]["calls"])
