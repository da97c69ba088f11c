"""Laws of backfills in the store, on every kind of server."""

from __future__ import annotations

from datetime import timedelta

import pytest
from redis.asyncio import Redis

from poller.clock import Clock
from poller.delivery.delivery_codec import Delivery, encode
from poller.errors import Fenced
from poller.redis.client import commands
from poller.store.backfill import (
    UNREAD,
    Backfill,
    BackfillCounts,
    BackfillPosition,
    BackfillStart,
    backfill_of,
    cancel_backfill,
    is_backfilled_with,
    start_backfill,
)
from poller.store.consumer_state import ConsumerScripts, ConsumerStore, Settlement, Start, forget
from poller.store.dead_letters import letter_id
from poller.store.keys import ConsumerKeys, FeedKeys, group_of
from poller.store.replay import last_read
from poller.store.retention import WatchedConsumer, done_of
from poller.store.stats import backlogs
from poller.store.stream import EntryId, consumer_groups
from tests.harness.clock import NOON

FEED = "acme/contractTypes"
FEED_KEYS = FeedKeys.of("poller", FEED)
KEYS = ConsumerKeys.of("poller", FEED, "a")


def consumer(client: Redis, *, nonce: str = "n") -> ConsumerStore:
    return ConsumerStore(
        client,
        ConsumerScripts(client),
        KEYS,
        events=FEED_KEYS.events,
        feed_state=FEED_KEYS.state,
        snapshots=FEED_KEYS.snapshots,
        subscription="a",
        nonce=nonce,
        lease=timedelta(seconds=30),
        clock=Clock(),
    )


async def read_feed(client: Redis, *, records: int = 3, removed: int = 1) -> None:
    """What is stored of a feed whose state, snapshots and stream only their counts matter of."""
    await client.hset(FEED_KEYS.state, mapping={"generation": "g", "sequence": 5, "tombstones": removed})
    await client.hset(FEED_KEYS.snapshots, mapping={f"k{number}": "x" for number in range(records)})
    for number in range(1, 6):
        await client.xadd(FEED_KEYS.events, {"data": f"e{number}"}, id=f"{number}-0")


async def begin(client: Redis, name: str) -> tuple[BackfillStart, int]:
    return await start_backfill(client, FEED_KEYS, KEYS, "a", name=name)


async def test_one_at_a_time(any_store: str) -> None:
    """Law: a consumer has one backfill; another is refused until it is cancelled; it needs a group and a read feed."""
    async with commands(any_store) as client:
        assert await begin(client, "b") == (BackfillStart.NO_GROUP, 0)
        await client.xgroup_create(FEED_KEYS.events, group_of("a"), id="0", mkstream=True)
        assert await begin(client, "b") == (BackfillStart.NEVER_READ, 0)
        await read_feed(client)
        assert await begin(client, "b") == (BackfillStart.BEGUN, 2)
        assert await begin(client, "c") == (BackfillStart.UNDER_WAY, 0)
        assert await backfill_of(client, KEYS) == Backfill("b", "", 0, 2)
        assert await cancel_backfill(client, KEYS)
        assert not await cancel_backfill(client, KEYS)
        assert await backfill_of(client, KEYS) is None
        assert await begin(client, "c") == (BackfillStart.BEGUN, 2)


async def test_its_place_goes_along_with_settlements(store_client: Redis) -> None:
    """Law: a settlement moves or ends only the backfill that it names, not a later one."""
    await read_feed(store_client)
    store = consumer(store_client)
    assert await store.lease.acquire() is None
    await store.open("now")
    await begin(store_client, "b")
    await store.settle(Settlement(backfill=BackfillPosition("b", "p", 1)), now_ms=1)
    assert await store.backfill() == Backfill("b", "p", 1, 2)
    await store.settle(Settlement(place="5-0"), now_ms=1)
    await store.settle(Settlement(backfill=BackfillPosition("former", "", 9)), now_ms=1)
    assert await store.backfill() == Backfill("b", "p", 1, 2)
    assert not await is_backfilled_with(store_client, KEYS, "b")
    await store.settle(Settlement(backfill=BackfillPosition("b", "", 2)), now_ms=1)
    assert await store.backfill() is None
    assert await is_backfilled_with(store_client, KEYS, "b")
    assert await store_client.hget(KEYS.state, "place") == b"5-0"


@pytest.mark.parametrize(("start", "place", "noted"), [("now", "5-0", False), ("earliest", "0-0", False)])
async def test_only_a_snapshot_start_begins_with_a_backfill(
    store_client: Redis, start: Start, place: str, *, noted: bool
) -> None:
    """Law: a consumer that begins now, or with all that the stream holds, has no backfill."""
    await read_feed(store_client)
    store = consumer(store_client)
    assert await store.lease.acquire() is None
    await store.open(start)
    assert await last_read(store_client, FEED_KEYS.events, "a") == place
    assert (await store.backfill() is not None) is noted


async def test_a_snapshot_start_begins_once(any_store: str) -> None:
    """Law: start "snapshot" begins now, with a backfill noted in the same script as the place; and never again."""
    async with commands(any_store) as client:
        await read_feed(client)
        store = consumer(client)
        assert await store.lease.acquire() is None
        await store.open("snapshot")
        assert await last_read(client, FEED_KEYS.events, "a") == "5-0"
        begun = await store.backfill()
        assert begun is not None
        assert (begun.at, begun.done, begun.total) == ("", 0, 2)
        await store.settle(Settlement(backfill=BackfillPosition(begun.id, "", 2)), now_ms=1)
        await client.xgroup_destroy(FEED_KEYS.events, group_of("a"))
        await store.open("snapshot")
        assert await store.backfill() is None


async def test_a_snapshot_start_without_a_lease_begins_nothing(store_client: Redis) -> None:
    """Law: a process that has lost the lease notes neither place nor backfill."""
    await read_feed(store_client)
    assert await consumer(store_client, nonce="m").lease.acquire() is None
    with pytest.raises(Fenced):
        await consumer(store_client).open("snapshot")
    assert await backfill_of(store_client, KEYS) is None


async def test_a_snapshot_start_before_the_first_reading(store_client: Redis) -> None:
    """Law: where the feed has no state, the backfill waits until the consumer knows whether it had one before."""
    store = consumer(store_client)
    assert await store.lease.acquire() is None
    await store.open("snapshot")
    begun = await store.backfill()
    assert begun is not None
    assert (begun.at, begun.total) == (UNREAD, 0)
    reading = await store.first_reading()
    assert (reading.has_begun, reading.has_ended, reading.is_repeated) == (False, False, False)
    await store_client.hset(FEED_KEYS.state, mapping={"generation": "g", "sequence": 0})
    assert (await store.first_reading()).has_begun
    await store_client.hset(FEED_KEYS.state, mapping={"read_at": "2026-01-01T00:00:00Z", "anew_at": 1, "begun_at": 1})
    reading = await store.first_reading()
    assert (reading.has_begun, reading.has_ended, reading.is_repeated) == (True, True, True)


async def test_what_is_parked_of_it_holds_nothing_of_the_stream(any_store: str) -> None:
    """Law: a parked event of a backfill is no reason to keep an entry, and no sign that an old one is not delivered."""
    async with commands(any_store) as client:
        await read_feed(client)
        store = consumer(client)
        assert await store.lease.acquire() is None
        await store.open("now")
        await store.settle(Settlement(parked={"2-0+ab": encode(Delivery("k", due=1))}), now_ms=1)
        groups = await consumer_groups(client, FEED_KEYS.events)
        done = await done_of(client, FEED_KEYS.events, EntryId(1), groups, {group_of("a"): WatchedConsumer(KEYS)})
        assert done == {group_of("a"): EntryId(5)}
        (backlog,) = (await backlogs(client, "poller", [("a", FEED)], now=NOON)).values()
        assert (backlog.parked, backlog.seconds, backlog.backfill) == (1, 0.0, None)
        await begin(client, "b")
        (backlog,) = (await backlogs(client, "poller", [("a", FEED)], now=NOON)).values()
        assert backlog.backfill == BackfillCounts("b", 0, 2)


async def test_it_goes_with_its_subscription(store_client: Redis) -> None:
    """Law: a removed subscription leaves nothing of its backfill, and one that is requested then is refused."""
    await read_feed(store_client)
    await store_client.xgroup_create(FEED_KEYS.events, group_of("a"), id="0")
    await begin(store_client, "b")
    await forget(store_client, FEED_KEYS, KEYS, "a")
    assert not await store_client.exists(KEYS.state)
    assert await begin(store_client, "c") == (BackfillStart.NO_GROUP, 0)
    assert not await store_client.exists(KEYS.state)


def test_a_dead_letter_of_it_has_an_id() -> None:
    """Law: the id of a told event's dead letter is read back, and what is none is not."""
    text = f"{FEED}:a:5-0+0123456789abcdef"
    found = letter_id(text)
    assert found is not None
    assert (found.text, found.entry, found.subscription) == (text, "5-0+0123456789abcdef", "a")
    for wrong in (
        f"{FEED}:a:5-0+",
        f"{FEED}:a:5-0+0123456789ABCDEF",
        f"{FEED}:5-0+0123456789abcdef",
        f"{FEED}:a:5+ab-0",
    ):
        assert letter_id(wrong) is None
