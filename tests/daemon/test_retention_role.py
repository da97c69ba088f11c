"""Laws of :mod:`poller.daemon.retention_role`: when a stream is trimmed, for which consumers, and what is announced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from poller.config.settings import Settings
from poller.config.validation import subscription_of
from poller.control import subscriptions as subscribing
from poller.control.status import feed_statuses
from poller.control.subscriptions import end_unlisted_feeds, filed, registry_of
from poller.daemon.retention_role import RetentionRole, watched
from poller.redis.client import commands
from poller.store.consumer_state import GracePeriod
from poller.store.erasure import FeedErasure
from poller.store.keys import ConsumerKeys, FeedKeys, operations_key
from poller.store.retention import WatchedConsumer
from poller.store.subscriptions import Registered, Subscriptions
from tests.control.subscribed import FEEDS, NOW, SINK, added, configured
from tests.harness.clock import StubClock
from tests.harness.waiting import patience

FEED = FEEDS[0]
KEYS = FeedKeys.of("poller", FEED)
OPERATIONS = operations_key("poller")
SMALL = 50_000


@dataclass
class Store:
    held: bool = True
    appended: int = 0
    nonce: str = "mine"
    wants_dictionary: bool = False


@dataclass
class Clock:
    moment: float = 100.0

    def __call__(self) -> float:
        return self.moment


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


@pytest.fixture
async def valkey(url: str) -> AsyncIterator[Redis]:
    async with commands(url) as client:
        await client.set(KEYS.lease, "mine")
        yield client


def limited(tmp_path: Path, *ids: str, max_bytes: int = 2**30) -> Settings:
    settings = configured(tmp_path, *ids)
    return settings.model_copy(update={"retention": settings.retention.model_copy(update={"max_bytes": max_bytes})})


def retaining(settings: Settings, client: Redis, store: Store, clock: Clock) -> RetentionRole:
    return RetentionRole(settings, client, {FEED: store}, shebang="", clock=StubClock(now=lambda: NOW, monotonic=clock))


async def published(client: Redis, count: int, *, first: int = 1) -> None:
    for number in range(first, first + count):
        event = f'{{"sequence":"{number:020}","data":"{"x" * 1000}"}}'
        await client.xadd(KEYS.events, {"data": event}, id=f"{number}-0")


async def test_who_has_the_lease_looks_every_minute_and_when_much_was_published(valkey: Redis, tmp_path: Path) -> None:
    """Law: the holder of a feed's lease trims its stream each minute and after each twentieth of ``max_bytes``."""
    store, clock = Store(held=False), Clock()
    trimming = retaining(limited(tmp_path, max_bytes=SMALL), valkey, store, clock)
    for number, (held, moment, appended, left) in enumerate(
        (
            (False, 100.0, 0, 1),
            (True, 100.0, 0, 0),
            (True, 159.0, 2500, 1),
            (True, 159.0, 2501, 0),
            (True, 218.0, 2501, 1),
            (True, 219.5, 2501, 0),
            (False, 1000.0, 10_000, 1),
        ),
        1,
    ):
        if not await valkey.xlen(KEYS.events):
            await published(valkey, 1, first=number)
        store.held, clock.moment, store.appended = held, moment, appended
        await trimming.trim_due()
        assert await valkey.xlen(KEYS.events) == left, (held, moment, appended)


@pytest.mark.parametrize(("is_complete", "age_minutes", "announced"), [(True, 11, 1), (True, 9, 0), (False, 11, 0)])
async def test_an_erasure_whose_process_died_is_announced(
    valkey: Redis, tmp_path: Path, *, is_complete: bool, age_minutes: int, announced: int
) -> None:
    """Law: once, by the process with the feed's lease, if all is deleted and no living command is about to do it."""
    erasure = FeedErasure(valkey, KEYS, clock=StubClock(now=lambda: NOW - timedelta(minutes=age_minutes)))
    await erasure.open_tally("a", record="A", by="an operator", reason="request 12")
    await valkey.xadd(KEYS.events, {"data": "x"})
    begun = await erasure.place_tombstone(["a"], "a")
    assert [one.events async for one in erasure.erase_events(begun.place, lambda _: "7")] == [1]
    if is_complete:
        assert await erasure.complete_tally()
    store, clock = Store(held=False), Clock()
    role = retaining(configured(tmp_path), valkey, store, clock)
    for held in (False, True, True):
        store.held, clock.moment = held, clock.moment + 90_000
        await role.maintain_due()
        assert await valkey.xlen(OPERATIONS) == (announced if held else 0)
    assert await valkey.hexists(KEYS.erased, "unannounced:a") is not bool(announced)
    found: Any = await valkey.xrange(OPERATIONS)
    for _, fields in found:
        event = json.loads(fields[b"data"])
        assert (event["type"], event["subject"]) == ("poller.record.erased.v1", "A")
        data = {name: event["data"][name] for name in ("by", "events", "feed", "reason", "sequences")}
        assert list(data.values()) == ["an operator", 1, FEED, "request 12", "7"]


async def test_an_overrun_is_announced_and_logged_once(valkey: Redis, tmp_path: Path) -> None:
    """Law: an overrun is announced once, with its group; its subject is the subscription, or the feed if none."""
    settings, store, clock = limited(tmp_path, max_bytes=SMALL), Store(), Clock()
    await added(valkey, settings, "a")
    trimming = retaining(settings, valkey, store, clock)
    await published(valkey, 100)
    for group in ("sub:a", "theirs"):
        await valkey.xgroup_create(KEYS.events, group, id="0")
    with capture_logs() as logs:
        for turn in range(3):
            clock.moment += 60
            await trimming.trim_due()
            await published(valkey, 100, first=101 + 100 * turn)
    found: Any = await valkey.xrange(OPERATIONS)
    told = {event["subject"]: event for event in (json.loads(fields[b"data"]) for _, fields in found)}
    assert len(found) == 2
    assert told["a"]["type"] == told[FEED]["type"] == "poller.subscription.overrun.v1"
    assert (told["a"]["data"]["group"], told[FEED]["data"]["group"]) == ("sub:a", "theirs")
    assert told["a"]["data"]["sequence"] == 1
    assert told["a"]["data"]["events"] == told["a"]["data"]["last_sequence"]
    errors = [line for line in logs if line["log_level"] == "error"]
    assert {line["subscription"] for line in errors} == {"a", None}
    assert len(errors) == 2


async def test_who_died_before_telling_is_made_good(valkey: Redis, tmp_path: Path) -> None:
    """Law: an overrun that is recorded but was not announced is announced once at the next trimming."""
    settings = limited(tmp_path)
    await valkey.hset(KEYS.overruns, "sub:a", "0 1772439300000 1 1-0 7 1 7 8-0 9-0")
    await valkey.hset(KEYS.overruns, "sub:b", "another version's")
    trimming = retaining(settings, valkey, Store(), clock := Clock())
    for _ in range(2):
        await trimming.trim_due()
        clock.moment += 60
    found: Any = await valkey.xrange(OPERATIONS)
    (event,) = [json.loads(fields[b"data"]) for _, fields in found]
    assert (event["subject"], event["time"], event["data"]["events"]) == ("a", "2026-03-02T08:15:00Z", 7)


async def test_trouble_is_said_once_and_tried_again(valkey: Redis, tmp_path: Path) -> None:
    """Law: a trimming that keeps failing with the same error is logged once."""
    await valkey.set(KEYS.events, "no stream")
    trimming = retaining(limited(tmp_path), valkey, Store(), clock := Clock())
    with capture_logs() as logs:
        for _ in range(3):
            clock.moment += 60
            await trimming.trim_due()
    assert [line["event"] for line in logs] == ["not trimmed"]


async def test_it_ends_when_told(valkey: Redis, tmp_path: Path) -> None:
    """Law: the role trims without being asked and ends as soon as it is told to stop."""
    await published(valkey, 3)
    stop = asyncio.Event()
    task = asyncio.create_task(retaining(limited(tmp_path), valkey, Store(), Clock()).run(stop))
    async with patience("an empty stream"):
        while await valkey.xlen(KEYS.events):
            await valkey.xread({OPERATIONS: "$"}, block=10)
        stop.set()
        await task


async def test_who_holds_a_stream_is_shown(valkey: Redis, tmp_path: Path) -> None:
    """Law: the status shows a stream's size, its oldest entry, and the group that keeps entries beyond their age."""
    settings = limited(tmp_path, "a")
    await published(valkey, 9)
    await valkey.xgroup_create(KEYS.events, "theirs", id="4-0")
    await valkey.xgroup_create(KEYS.events, "sub:a", id="9-0")
    status = (await feed_statuses(valkey, settings, now=NOW))[0]
    assert (status.stream_oldest, status.held_by) == ("1970-01-01T00:00:00.001Z", None)
    assert status.stream_bytes is not None
    assert status.stream_bytes > 9_000
    await retaining(settings, valkey, Store(), Clock()).trim_due()
    status, other = await feed_statuses(valkey, settings, now=NOW)
    assert (status.stream_length, status.held_by) == (5, "theirs")
    await valkey.hset(ConsumerKeys.of("poller", FEED, "a").parked, "5-0", "{}")
    await valkey.xgroup_destroy(KEYS.events, "theirs")
    assert (await feed_statuses(valkey, settings, now=NOW))[0].held_by == "sub:a"
    assert (other.stream_bytes, other.stream_oldest, other.held_by) == (0, None, None)


async def test_whom_a_feed_has(valkey: Redis, tmp_path: Path) -> None:
    """Law: a feed has the consumers of registry and file, paused or not; unreadable settings count as ``earliest``."""
    settings = configured(tmp_path, "file")
    await added(valkey, settings, "run")
    kept = await registry_of(settings, valkey).all()
    assert kept.registered["run"].new_after(FEED) == "0-0"
    unreadable = Registered("run", msgspec.Raw(b'{"start": "never"}'), NOW - timedelta(days=1))
    kept = Subscriptions(registered={**kept.registered, "odd": unreadable}, paused=kept.paused)
    found = watched(FEED, kept, filed(settings), "poller", {})
    assert found == {
        "file": WatchedConsumer(ConsumerKeys.of("poller", FEED, "file")),
        "run": WatchedConsumer(ConsumerKeys.of("poller", FEED, "run"), new_after="0-0"),
        "odd": WatchedConsumer(ConsumerKeys.of("poller", FEED, "odd"), earliest=True),
    }
    assert set(watched(FEEDS[1], kept, filed(settings), "poller", {})) == {"file", "odd"}


@pytest.mark.parametrize("start", ["now", "earliest"])
async def test_what_waits_for_one_that_has_not_begun_stays_while_its_feed_is_unlisted(
    valkey: Redis, tmp_path: Path, start: str
) -> None:
    """Law: events that wait where delivery has not begun stay until they waited for ``retention.age`` unlisted."""
    settings = configured(tmp_path)
    registry, age = registry_of(settings, valkey), settings.retention.age
    one = subscription_of({"id": "a", "sink": SINK, "feeds": FEEDS, "start": start}, settings, where="x")
    await valkey.xadd(KEYS.events, {"data": "{}"}, id="1-0")
    await subscribing.add(registry, settings, one, secrets=[], now=NOW)
    await published(valkey, 4, first=2)
    await subscribing.change(registry, settings, one.model_copy(update={"feeds": FEEDS[1:]}))
    waiting = 5 if start == "earliest" else 4

    async def looked(after: timedelta) -> list[str]:
        kept, counts = await registry.all(), age / 2
        found = await end_unlisted_feeds(valkey, settings, kept, now=NOW + after, counts=counts)
        return [f"{feed.feed} {feed.left} {feed.events}" for feed in found]

    async def left() -> int:
        await retaining(settings, valkey, Store(), Clock()).trim_due()
        return await valkey.xlen(KEYS.events)

    assert await left() == waiting  # also before any process that delivers has looked
    for look in range(2):
        assert await looked(look * age / 2) == [f"{FEED} waits {waiting}"]
        assert await left() == waiting
    await subscribing.change(registry, settings, one)
    assert await left() == waiting
    assert await looked(age) == []
    assert await left() == waiting
    await subscribing.change(registry, settings, one.model_copy(update={"feeds": FEEDS[1:]}))
    assert [(await looked(look * age / 2))[0].split()[1] for look in range(3)] == ["waits", "waits", "ended"]
    assert await left() == 0


async def test_a_subscription_that_never_listed_a_feed_keeps_nothing(valkey: Redis, tmp_path: Path) -> None:
    """Law: one that wanted all feeds keeps what waited in those that had entries, and nothing of later feeds."""
    settings = configured(tmp_path)
    registry = registry_of(settings, valkey)
    one = subscription_of({"id": "a", "sink": SINK}, settings, where="x")
    await subscribing.add(registry, settings, one, secrets=[], now=NOW)
    await published(valkey, 2)
    await subscribing.change(registry, settings, one.model_copy(update={"feeds": ("acme/other",)}))
    kept = await registry.all()
    assert [list(watched(feed, kept, [], "poller", {})) for feed in FEEDS] == [["a"], []]
    since = kept.registered["a"].unlisted_at(FEED)
    for mark, expected in ((GracePeriod(since, is_ended=True), []), (GracePeriod(since - 1, is_ended=True), ["a"])):
        assert list(watched(FEED, kept, [], "poller", {"a": mark})) == expected


async def test_an_old_dictionary_is_replaced_beside_the_rounds(tmp_path: Path, valkey: Redis) -> None:
    """Law: the next round is asked for a new one; a minute later snapshots are looked at, and the old one is emptied.

    Without the lease nothing is looked at, and what another process has found is forgotten.
    """
    store, clock = Store(held=False), Clock()
    role = retaining(limited(tmp_path), valkey, store, clock)
    await valkey.hset(KEYS.state, mapping={"generation": "g", "sequence": "0"})
    await valkey.hset(KEYS.dictionaries, "1", "values of records")
    await role.maintain_due()
    wanted = [store.wants_dictionary]
    store.held = True
    await role.maintain_due()
    wanted.append(store.wants_dictionary)
    await valkey.hset(KEYS.dictionaries, "2", "")
    clock.moment += 59
    await role.maintain_due()
    wanted.append(store.wants_dictionary)
    clock.moment += 2
    for _ in range(2):
        await role.maintain_due()
    assert await valkey.hgetall(KEYS.dictionaries) == {b"1": b"", b"2": b""}
    assert [*wanted, store.wants_dictionary] == [False, True, True, False]


async def test_the_upkeep_begins_anew_with_a_lease_that_was_away(tmp_path: Path, valkey: Redis) -> None:
    """Law: another process has changed what this one knew; it looks as soon as it has the lease again."""
    store, clock = Store(), Clock()
    role = retaining(limited(tmp_path), valkey, store, clock)
    await valkey.hset(KEYS.state, mapping={"generation": "g", "sequence": "0"})
    await role.maintain_due()
    await valkey.hset(KEYS.dictionaries, "1", "values of records")
    wanted = []
    for held in (True, False, True):
        store.held, clock.moment = held, clock.moment + 11
        await role.maintain_due()
        wanted.append(store.wants_dictionary)
    assert wanted == [False, False, True]


async def test_a_failed_upkeep_is_tried_again(tmp_path: Path, valkey: Redis) -> None:
    """Law: what the store refuses is logged once, and looked at again a minute later; trimming goes on."""
    store, clock = Store(), Clock()
    role = retaining(limited(tmp_path), valkey, store, clock)
    await valkey.set(KEYS.dictionaries, "no hash")
    with capture_logs() as logs:
        for _ in range(2):
            await role.maintain_due()
            clock.moment += 61
    assert [one["event"] for one in logs if one["log_level"] != "debug"] == ["snapshots not kept up"]
    await valkey.delete(KEYS.dictionaries)
    await role.maintain_due()
