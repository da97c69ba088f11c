"""Laws of :mod:`poller.daemon.stored_metrics`: what is known becomes series, and what is not known none."""

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
from poller.control.subscriptions import registry_of
from poller.daemon.health import StoreMonitor
from poller.daemon.stored_metrics import (
    FRESH,
    FeedFigures,
    StoredFigures,
    StoredReadings,
    SubscriptionFigures,
    blocks,
    intervals,
    stored_figures,
)
from poller.delivery.endpoint_health import Health, after_failure
from poller.delivery.handshake import Granted, Refused, encoded
from poller.redis.client import commands
from poller.store.feed_state import DELTA_TOKEN_AT, GOOD_AT, HELD, OLDEST, ROUND, ROUND_AT
from poller.store.keys import ConsumerKeys, FeedKeys, group_of
from poller.store.subscriptions import Paused
from tests.control.subscribed import FEEDS, NOW, added, configured
from tests.harness.clock import StubClock
from tests.telemetry.series import Key, key, values

FEED = FeedFigures(
    feed="a/x",
    failing=True,
    paused=False,
    held=False,
    unidentified=2,
    backward_versions=4,
    held_versions=3,
    owned=True,
    interval=60.0,
    last_round=100.5,
    last_good_round=None,
    delta_token=None,
    oldest_reading=None,
    records=7,
    events=9,
    stream_entries=8,
    stream_bytes=1000,
    quarantine_entries=1,
)
SUBSCRIPTION = SubscriptionFigures(
    "s", failing=False, paused=True, ungranted=True, lag=None, backlog=None, parked=2, dead_letters=3, overrun=4
)


def exported(figures: StoredFigures) -> dict[Key, float]:
    return values("".join(blocks(figures, openmetrics=False)))


def test_what_is_not_known_has_no_series() -> None:
    """A moment that never was, a lag without a group: absent, which is not 0."""
    found = exported(StoredFigures([FEED], [SUBSCRIPTION], 2))
    assert found[key("poller_feed_failing", feed="a/x")] == 1
    assert found[key("poller_feed_unidentified_records", feed="a/x")] == 2
    assert found[key("poller_feed_backward_versions_total", feed="a/x")] == 4
    assert found[key("poller_feed_held_versions", feed="a/x")] == 3
    assert found[key("poller_feed_last_round_timestamp_seconds", feed="a/x")] == 100.5
    assert found[key("poller_feed_events_total", feed="a/x")] == 9
    assert found[key("poller_subscription_paused", subscription="s")] == 1
    assert found[key("poller_subscription_overrun_events_total", subscription="s")] == 4
    assert found[key("poller_members")] == 2
    names = {name for name, _ in found}
    assert not names & {"poller_feed_last_good_round_timestamp_seconds", "poller_subscription_lag_seconds"}


def test_each_figure_has_a_metric() -> None:
    """Each field of both values is exported under a name of its own."""
    whole = msgspec.structs.replace(FEED, last_good_round=1.0, delta_token=2.0, oldest_reading=3.0)
    told = msgspec.structs.replace(SUBSCRIPTION, lag=1.0, backlog=5)
    found = exported(StoredFigures([whole], [told], 1))
    assert sum(("feed", "a/x") in labels for _, labels in found) == len(FeedFigures.__struct_fields__) - 1
    assert sum(("subscription", "s") in labels for _, labels in found) == len(SubscriptionFigures.__struct_fields__) - 1


# Laws of :mod:`poller.daemon.stored_metrics`: read seldom, by one for all, and never from a store that is away.

AT = NOW.timestamp()


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
    """With a metric of its own, whose absence says that no permission is asked for."""
    registry = registry_of(settings, client)
    for name, validate in (("asked", True), ("granted", True), ("unasked", False)):
        values = {"id": name, "sink": "https://sink.example.org/", "validate": validate}
        await registry.add(name, msgspec.json.encode(values), (), NOW)
        await registry.note_handshake(name, encoded(Granted("p.example") if name == "granted" else Refused("no")))
    figures = await stored_figures(client, settings, {}, now=NOW)
    found = {one.subscription: (one.failing, one.ungranted) for one in figures.subscriptions}
    assert found == {"asked": (True, True), "granted": (False, False), "unasked": (False, None)}


async def test_what_is_kept_is_what_is_said(client: Redis, settings: Settings) -> None:
    """Of a feed that failed and is held, of one that was never read, and of subscriptions that rest, fail and lag."""
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
    found = await stored_figures(client, settings, {FEEDS[0]: 66.0}, now=NOW)
    feed, never = found.feeds
    assert (feed.failing, feed.held, feed.owned, feed.interval, feed.events) == (True, True, False, 66.0, 3)
    assert (feed.last_round, feed.last_good_round, feed.delta_token, feed.oldest_reading) == (AT, AT, AT, AT - 3600)
    assert (never.failing, never.last_round, never.oldest_reading, never.interval) == (False, None, None, None)
    one, two = sorted(found.subscriptions, key=lambda each: each.subscription)
    assert (one.lag, one.backlog, one.dead_letters, one.paused, one.failing) == (5.0, 1, 1, False, True)
    assert (two.lag, two.backlog, two.paused) == (None, None, True)


async def test_many_who_ask_make_one_reading(client: Redis, settings: Settings) -> None:
    """All of them get the same; the next one is made when that is old."""
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
    """Nothing is said then, whatever was said before; and one that refuses is no reason to fail."""
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
    """Law: while it counts as away nothing is read, so it is for others to say that it is back."""
    clock = Clock()
    readings = clock.readings(settings)
    async with commands("unix:///nowhere/valkey.sock") as away:
        clock.watch.attach(away, ())
        readings.attach(away)
        assert await readings.latest() is None
    assert clock.watch.away
    assert clock.watch.reasons() == []


def test_how_long_a_feed_is_left_alone(tmp_path: Path) -> None:
    """As configured, with its jitter; of a cron expression the longest gap."""
    file = tmp_path / "poller.toml"
    source = '[[sources]]\nname = "a"\nbase_url = "https://api.example.org"\nauth = { none = true }\n'
    feeds = 'name = "x"\ninterval = "50s"\njitter = "1s"', 'name = "y"\ncron = "0 8 * * 1-5"\njitter = "0s"'
    tables = "".join(f'[[sources.feeds]]\nresource = "contractTypes"\n{one}\n' for one in feeds)
    file.write_text(source + tables, "utf-8")
    assert intervals(load(file, {}), NOW) == {"a/x": 51.0, "a/y": 3 * 86400.0}
