"""Laws of :mod:`poller.daemon.stored_metrics`: a known figure has a series, and an unknown figure has none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from poller.clock import milliseconds_of
from poller.config.load import load
from poller.config.settings import Settings
from poller.control.orphans import stated
from poller.control.status import status_of_new
from poller.control.subscriptions import filed, registry_of
from poller.daemon.health import StoreMonitor
from poller.daemon.stored_metrics import (
    FRESH,
    StoredFigures,
    StoredReadings,
    blocks,
    intervals,
    stored_figures,
)
from poller.delivery.endpoint_health import Health, after_failure
from poller.delivery.handshake import Granted, Refused, encoded
from poller.redis.client import commands
from poller.store.feed_state import DELTA_TOKEN_AT, GOOD_AT, HELD, OLDEST, ROUND, ROUND_AT, FeedState
from poller.store.keys import ConsumerKeys, FeedKeys, MemberKeys, group_of, remembered_key
from poller.store.members import MemberConfiguration, MemberList, Members
from poller.store.recovery import store_unread
from poller.store.retention import StreamExtent
from poller.store.stats import FeedStats, LastRound
from poller.store.subscriptions import Paused
from tests.control.subscribed import FEEDS, NOW, added, configured
from tests.harness.clock import StubClock, store_clock
from tests.telemetry.series import Key, key, values

FEED = FeedStats(
    feed="a/x",
    state=FeedState("g", 9, unidentified=2, backwards=4, held_versions=3, tombstones=1, round_at=NOW),
    last_round=LastRound(ok=False),
    snapshots=8,
    stream=StreamExtent(8, 1000, None),
    quarantined=1,
    listings=0,
    lease_ms=5,
    owner=None,
    pause=None,
)
SUBSCRIPTION = msgspec.structs.replace(
    status_of_new("s", "https://sink.example.org", all_feeds=True, now=NOW),
    state="paused",
    parked=2,
    dead_letters=3,
    lost=4,
)
AT = NOW.timestamp()
OF_FEED = {
    "poller_feed_failing": 1,
    "poller_feed_paused": 0,
    "poller_feed_held": 0,
    "poller_feed_unidentified_records": 2,
    "poller_feed_backward_versions_total": 4,
    "poller_feed_held_versions": 3,
    "poller_feed_owned": 1,
    "poller_feed_last_round_timestamp_seconds": AT,
    "poller_feed_records": 7,
    "poller_feed_events_total": 9,
    "poller_stream_entries": 8,
    "poller_stream_bytes": 1000,
    "poller_quarantine_entries": 1,
}
OF_SUBSCRIPTION = {
    "poller_subscription_failing": 0,
    "poller_subscription_paused": 1,
    "poller_subscription_parked_events": 2,
    "poller_subscription_backfill_records": 0,
    "poller_subscription_backfilled_records": 0,
    "poller_subscription_dead_letters": 3,
    "poller_subscription_overrun_events_total": 4,
}


MOMENTS = ("last_round", "last_good_round", "delta_token", "oldest_reading")
MORE = ("interval_seconds", *(f"{name}_timestamp_seconds" for name in MOMENTS))


def exported(figures: StoredFigures) -> dict[Key, float]:
    return values("".join(blocks(figures, openmetrics=False)))


def test_what_is_not_known_has_no_series() -> None:
    """A moment that never came and a lag without a consumer group have no series, rather than the value 0."""
    found = exported(StoredFigures([FEED], [SUBSCRIPTION], members=2))
    expected = {key(name, feed="a/x"): value for name, value in OF_FEED.items()}
    expected |= {key(name, subscription="s"): value for name, value in OF_SUBSCRIPTION.items()}
    assert found == expected | {key("poller_members"): 2, key("poller_configuration_differences"): 0}


def test_what_is_known_has_a_series() -> None:
    """Each known figure is exported under its own name."""
    state = msgspec.structs.replace(FEED.state, good_at=NOW, delta_token_at=NOW)
    whole = msgspec.structs.replace(FEED, state=state)
    lagging = msgspec.structs.replace(SUBSCRIPTION, lag_seconds=1.5, lag_entries=5)
    found = exported(StoredFigures([whole], [lagging], {"a/x": 60.0}, {"s": True}))
    expected = {key(name, feed="a/x"): value for name, value in OF_FEED.items()}
    moments = ("last_good_round", "delta_token", "oldest_reading")
    expected |= {key(f"poller_feed_{name}_timestamp_seconds", feed="a/x"): AT for name in moments}
    expected[key("poller_feed_interval_seconds", feed="a/x")] = 60
    more = {"ungranted": 1, "lag_seconds": 1.5, "backlog_events": 5}
    of_subscription = OF_SUBSCRIPTION | {f"poller_subscription_{name}": value for name, value in more.items()}
    expected |= {key(name, subscription="s"): value for name, value in of_subscription.items()}
    assert found == expected | {key("poller_members"): 0, key("poller_configuration_differences"): 0}


# Readings: seldom, shared by all requests, and never from a store that is unavailable.


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Redis]:
    async with commands(store_url) as one:
        yield one


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return configured(tmp_path, "filed")


class Clock:
    def __init__(self) -> None:
        self.at = 100.0
        self.watch = StoreMonitor("warn", clock=StubClock(now=lambda: NOW, monotonic=lambda: self.at))

    def readings(self, settings: Settings) -> StoredReadings:
        return StoredReadings(settings, self.watch, clock=StubClock(now=lambda: NOW, monotonic=lambda: self.at))


async def test_what_its_sink_has_not_granted_is_failing(client: Redis, settings: Settings) -> None:
    """A subscription without its sink's grant is failing; the metric is absent where no grant is asked for."""
    registry = registry_of(settings, client)
    for name, validate in (("asked", True), ("granted", True), ("unasked", False)):
        values = {"id": name, "sink": "https://sink.example.org/", "validate": validate}
        await registry.add(name, msgspec.json.encode(values), (), NOW)
        await registry.note_handshake(name, encoded(Granted("p.example") if name == "granted" else Refused("no")))
    figures = await stored_figures(client, settings, {}, now=NOW)
    assert {one.subscription: one.state for one in figures.subscriptions} == {
        "asked": "failing",
        "granted": "active",
        "unasked": "active",
    }
    assert figures.ungranted == {"asked": True, "granted": False, "unasked": None}


async def test_what_is_kept_is_what_is_said(client: Redis, settings: Settings) -> None:
    """Figures match the store: a failing held feed, a feed never read, a paused and a failing subscription."""
    keys = FeedKeys.of("poller", FEEDS[0])
    moments = dict.fromkeys((ROUND_AT, GOOD_AT, DELTA_TOKEN_AT), NOW.isoformat())
    read = (NOW - timedelta(hours=1)).isoformat()
    state: dict[Any, Any] = {"sequence": "3", ROUND: '{"ok":false}', HELD: "too many", OLDEST: read, **moments}
    await client.hset(keys.state, mapping=state)
    await added(client, settings, "one")
    await added(client, settings, "two")
    registry = registry_of(settings, client)
    await registry.note_health("one", FEEDS[0], msgspec.json.encode(after_failure(Health(), NOW)))
    await registry.pause("two", Paused("operator", "rest", NOW))
    await client.xadd(keys.events, {"data": b'{"sequence":"%020d"}' % 3}, id=f"{milliseconds_of(NOW) - 5000}-0")
    await client.xgroup_create(keys.events, group_of("one"), id="0")
    await client.hset(ConsumerKeys.of("poller", FEEDS[0], "one").letters, "1-0", "x")
    found = exported(await stored_figures(client, settings, {FEEDS[0]: 66.0}, now=NOW))

    def of_feed(feed: str) -> dict[str, float | None]:
        names = (*OF_FEED, *(f"poller_feed_{name}" for name in MORE))
        return {name.removeprefix("poller_feed_"): found.get(key(name, feed=feed)) for name in names}

    def of(subscription: str, *names: str) -> list[float | None]:
        return [found.get(key(f"poller_subscription_{name}", subscription=subscription)) for name in names]

    feed, never = of_feed(FEEDS[0]), of_feed(FEEDS[1])
    assert [feed[name] for name in ("failing", "held", "owned", "interval_seconds", "events_total")] == [1, 1, 0, 66, 3]
    assert [feed[f"{name}_timestamp_seconds"] for name in MOMENTS] == [AT, AT, AT, AT - 3600]
    assert [never[name] for name in ("failing", "interval_seconds")] == [0, None]
    assert [never[f"{name}_timestamp_seconds"] for name in MOMENTS] == [None] * 4
    told = "lag_seconds", "backlog_events", "dead_letters", "paused", "failing"
    assert of("one", *told) == [5, 1, 1, 0, 1]
    assert of("two", *told) == [5, 1, 0, 1, 0]


async def test_an_orphaned_feed_has_a_series_of_what_waits_there(client: Redis, settings: Settings) -> None:
    """What waits for subscriptions at a feed without a configuration is counted, feed by feed."""
    await registry_of(settings, client).sync(filed(settings), NOW)
    waiting = {"acme/old": 3, "acme/older": 1}
    for feed, events in waiting.items():
        keys = FeedKeys.of("poller", feed)
        await store_unread(client, remembered_key("poller"), feed)
        for number in range(1, events + 1):
            await client.xadd(keys.events, {"data": f'{{"sequence":"{number:020}"}}'}, id=f"{number}-0")
        await client.hset(keys.state, mapping={"generation": "g", "sequence": str(events)})
        await client.xgroup_create(keys.events, group_of("filed"), id="0")
    found = exported(await stored_figures(client, settings, {}, now=NOW))
    series = {name: value for name, value in found.items() if name[0] == "poller_orphaned_feed_events"}
    assert series == {key("poller_orphaned_feed_events", feed=feed): events for feed, events in waiting.items()}


async def test_what_differs_between_processes_is_counted(client: Redis, settings: Settings) -> None:
    """Each source and each sink in which running processes differ counts once."""
    one = stated(settings)
    other = MemberConfiguration(one.feeds, dict.fromkeys(one.sources, "x"), dict.fromkeys(one.sinks or (), "x"))
    for name, said in (("a", one), ("b", other)):
        members = Members(
            client,
            MemberKeys.of("poller"),
            name=name,
            ttl=timedelta(minutes=1),
            clock=store_clock(),
            configuration=said,
        )
        await members.beat(["poll"], MemberList())
    found = exported(await stored_figures(client, settings, {}, now=NOW))
    assert found[key("poller_members")] == 2
    assert found[key("poller_configuration_differences")] == 2


async def test_many_who_ask_make_one_reading(client: Redis, settings: Settings) -> None:
    """Concurrent requests share one reading; a new one is made when it is no longer fresh."""
    clock = Clock()
    readings = clock.readings(settings)
    assert await readings.latest() is None
    readings.attach(client)
    first = await asyncio.gather(*(readings.latest() for _ in range(5)))
    assert first[0] is not None
    assert all(one is first[0] for one in first)
    clock.at += FRESH - 1
    assert await readings.latest() is first[0]
    clock.at += 1
    again = await readings.latest()
    assert again is not None
    assert again is not first[0]
    await readings.detach()
    assert await readings.latest() is None


async def test_a_store_that_is_away_is_not_asked(client: Redis, settings: Settings) -> None:
    """An unavailable store is not read, and a fresh reading is not reused; a refused read does not raise."""
    clock = Clock()
    readings = clock.readings(settings)
    readings.attach(client)
    assert await readings.latest()
    clock.watch.failed("somebody", "away")
    assert await readings.latest() is None
    other = Clock()
    await client.set("poller:{subscriptions}:registry", "no hash")
    refused = other.readings(settings)
    refused.attach(client)
    assert await refused.latest() is None
    assert not other.watch.away


async def test_a_reading_that_fails_is_told_and_not_held_against_the_store(settings: Settings) -> None:
    """A reading that cannot connect marks the store as unavailable, but does not make the process unready."""
    clock = Clock()
    readings = clock.readings(settings)
    async with commands("unix:///nowhere/valkey.sock") as away:
        clock.watch.attach(away, ())
        readings.attach(away)
        assert await readings.latest() is None
    assert clock.watch.away
    assert clock.watch.reasons() == []


def test_how_long_a_feed_is_left_alone(tmp_path: Path) -> None:
    """A feed's interval includes its jitter; that of a cron expression is its longest gap."""
    file = tmp_path / "poller.toml"
    source = '[[sources]]\nname = "a"\nbase_url = "https://api.example.org"\nauth = { none = true }\n'
    feeds = 'name = "x"\ninterval = "50s"\njitter = "1s"', 'name = "y"\ncron = "0 8 * * 1-5"\njitter = "0s"'
    tables = "".join(f'[[sources.feeds]]\nresource = "contractTypes"\n{one}\n' for one in feeds)
    file.write_text(source + tables, "utf-8")
    assert intervals(load(file, {}), NOW) == {"a/x": 51.0, "a/y": 3 * 86400.0}
