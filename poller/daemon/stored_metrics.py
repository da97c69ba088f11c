"""Metrics of all feeds and subscriptions, read from the store on request.

**Invariants**

- However many requests there are, there is one reading at a time, and none sooner than :data:`FRESH` after the last.
- A store that is away is not read; requests get nothing then, without waiting.
- A slow reading delays no request for longer than :data:`PATIENCE`; until then the one before serves, for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

import msgspec
import structlog
from redis.asyncio import Redis

from poller.clock import Clock
from poller.config.settings import Settings
from poller.config.sources import FeedSettings
from poller.control.orphans import differences, orphaned_feeds
from poller.control.status import SubscriptionStatus, is_ungranted, subscription_statuses
from poller.control.subscriptions import registry_of
from poller.daemon.cluster.membership import StoreObserver
from poller.errors import StoreError, StoreUnavailable
from poller.lifecycle import ended
from poller.store.keys import MemberKeys
from poller.store.members import members_seen
from poller.store.stats import QUICK_SAMPLES, FeedStats, feed_stats
from poller.telemetry.logs import LogOnce
from poller.telemetry.metrics import MetricDescription, Sample, declared, labelled

FRESH: Final = 5.0
"""Seconds that a reading serves."""

PATIENCE: Final = 3.0
"""Seconds that a request waits for a reading."""

_STALE: Final = 60.0  # seconds after which the one before does not serve any more
_WHO: Final = "metrics"

_log = structlog.get_logger("poller.metrics")


class StoredReadings:
    """The readings of one process. Used within one event loop."""

    def __init__(self, settings: Settings, watch: StoreObserver, *, clock: Clock) -> None:
        """Begin without a store.

        Args:
            settings: the configuration.
            watch: is informed when the store is away.
            clock: the store's.
        """
        self._settings = settings
        self._watch = watch
        self._clock = clock
        self._client: Redis | None = None
        self._intervals: Mapping[str, float] = {}
        self._latest: StoredFigures | None = None
        self._read_at = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._failure = LogOnce(_log, "metrics of the store cannot be read")

    def attach(self, client: Redis) -> None:
        """This is the store, and it has answered."""
        self._client = client

    async def detach(self) -> None:
        """It is about to be closed."""
        self._client = None
        if self._reading is not None:
            await ended(self._reading)

    async def latest(self) -> StoredFigures | None:
        """The latest reading; None where there is none that still holds."""
        if self._client is None or self._watch.away:
            return None
        if self._latest is None or self._clock.monotonic() - self._read_at >= FRESH:
            self._reading = self._reading or asyncio.create_task(self._read(self._client), name="figures of the store")
            await asyncio.wait({self._reading}, timeout=PATIENCE)
        held = self._latest is not None and self._clock.monotonic() - self._read_at < _STALE
        return self._latest if held and not self._watch.away else None

    async def _read(self, client: Redis) -> None:
        try:
            if not self._intervals:
                self._intervals = await asyncio.to_thread(intervals, self._settings, self._clock.now())
            self._latest = await stored_figures(client, self._settings, self._intervals, now=self._clock.now())
            self._read_at = self._clock.monotonic()
            self._failure.worked()
        except StoreUnavailable as error:
            self._latest = None
            self._watch.failed(_WHO, str(error))
            self._watch.worked(_WHO)  # not asked again while it counts as away, this could never say that it is back
        except StoreError as error:
            self._latest = None
            self._failure.failed(str(error))
        finally:
            self._reading = None


async def stored_figures(
    client: Redis, settings: Settings, each: Mapping[str, float], *, now: datetime
) -> StoredFigures:
    """Read all of them.

    Args:
        client: of the store.
        settings: the configuration.
        each: seconds between the rounds of each feed, at most.
        now: UTC.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    prefix = settings.redis.prefix
    feeds = await feed_stats(client, prefix, settings.feed_ids, samples=QUICK_SAMPLES, lenient=True)
    kept = await registry_of(settings, client).all()
    subscriptions = await subscription_statuses(client, settings, now=now, only=kept.registered, kept=kept)
    seen = await members_seen(client, MemberKeys.of(prefix))
    orphans = await orphaned_feeds(client, settings, now=now, seen=seen, kept=kept)
    return StoredFigures(
        feeds=tuple(feeds.values()),
        subscriptions=subscriptions,
        intervals=each,
        ungranted={name: is_ungranted(kept, name) for name in kept.registered},
        members=len(seen.roles),
        orphans=[(one.feed, one.undelivered) for one in orphans],
        differences=len(differences(seen.configurations)),
    )


def intervals(settings: Settings, now: datetime) -> dict[str, float]:
    """Seconds between the rounds of each feed, at most. Takes a tenth of a second for each cron expression."""
    return {
        source.feed_id(feed): _interval(feed, now) + feed.jitter.total_seconds()
        for source in settings.sources
        for feed in source.feeds
    }


def _interval(feed: FeedSettings, now: datetime) -> float:
    if feed.interval is not None or feed.cron is None:
        return feed.interval.total_seconds() if feed.interval else 0.0
    from poller.config.cron import longest_gap  # noqa: PLC0415 -- slow, and few feeds have a cron expression

    return longest_gap(feed.cron, now).total_seconds()


# Metrics of the store are the same in all processes. What is not known has no series, which is not the same as 0.


class StoredFigures(msgspec.Struct, frozen=True):
    """All that was read at one time.

    Attributes:
        feeds: those of the configuration.
        subscriptions: all.
        intervals: seconds between the rounds of each feed, at most.
        ungranted: whether the sink of a subscription has not granted events; None: it is not to be asked.
        members: processes that share the work.
        orphans: the feeds that no running configuration has, each with how many events wait for subscriptions.
        differences: how many things that must be equal in all configurations are not.
    """

    feeds: Sequence[FeedStats] = ()
    subscriptions: Sequence[SubscriptionStatus] = ()
    intervals: Mapping[str, float] = {}
    ungranted: Mapping[str, bool | None] = {}
    members: int = 0
    orphans: Sequence[tuple[str, int]] = ()
    differences: int = 0


T = TypeVar("T")
_Value = Callable[[T], float | None]  # None: not known


def _metric(name: str, text: str, label: str) -> MetricDescription:
    return declared(f"poller_{name}", "counter" if name.endswith("_total") else "gauge", text, label)


def _of_feed(name: str, text: str, value: _Value[FeedStats]) -> tuple[MetricDescription, _Value[FeedStats]]:
    return _metric(name, text, "feed"), value


def _of_subscription(
    name: str, text: str, value: _Value[SubscriptionStatus]
) -> tuple[MetricDescription, _Value[SubscriptionStatus]]:
    return _metric(f"subscription_{name}", text, "subscription"), value


def _timestamp(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


_FEEDS: Final = (
    _of_feed(
        "feed_failing",
        "1 where the last round failed, whichever process ran it.",
        lambda one: one.last_round is not None and not one.last_round.ok,
    ),
    _of_feed("feed_paused", "1 where an operator has paused the feed.", lambda one: one.pause is not None),
    _of_feed(
        "feed_held",
        "1 where removals, or another base_url, wait for an operator.",
        lambda one: one.state.held is not None,
    ),
    _of_feed(
        "feed_unidentified_records",
        "Records of the last full reading whose id cannot be read; while there are any, nothing is removed.",
        lambda one: one.state.unidentified,
    ),
    _of_feed(
        "feed_backward_versions_total",
        "Versions that were older than the known one by their lastModifiedAt, published or held back.",
        lambda one: one.state.backwards,
    ),
    _of_feed(
        "feed_held_versions",
        "Older versions that are held back until two full readings show them.",
        lambda one: one.state.held_versions,
    ),
    _of_feed("feed_owned", "1 where some process has the lease.", lambda one: one.lease_ms > 0),
    _of_feed(
        "feed_last_round_timestamp_seconds",
        "When the last round ended, in seconds since 1970.",
        lambda one: _timestamp(one.state.round_at),
    ),
    _of_feed(
        "feed_last_good_round_timestamp_seconds",
        "When the last good round ended, in seconds since 1970.",
        lambda one: _timestamp(one.state.good_at),
    ),
    _of_feed(
        "feed_delta_token_timestamp_seconds",
        "When the delta token was taken, in seconds since 1970.",
        lambda one: _timestamp(one.state.delta_token_at),
    ),
    _of_feed(
        "feed_oldest_reading_timestamp_seconds",
        "When the oldest part of what is known was read, in seconds since 1970: of rotated listings the one read "
        "longest ago, else the last good round.",
        lambda one: _timestamp(one.state.oldest or one.state.good_at),
    ),
    _of_feed("feed_records", "Records that are known and not removed.", lambda one: one.records),
    _of_feed(
        "feed_events_total",
        "Events that were published: the number of the last one.",
        lambda one: one.state.sequence,
    ),
    _of_feed("stream_entries", "Events that the stream holds.", lambda one: one.stream.length),
    _of_feed("stream_bytes", "Memory that the stream takes, about, in bytes.", lambda one: one.stream.size),
    _of_feed("quarantine_entries", "Records that could not be used and are kept.", lambda one: one.quarantined),
)
_INTERVAL: Final = _metric(
    "feed_interval_seconds", "Time between rounds in seconds as configured; of a cron the longest.", "feed"
)
_SUBSCRIPTIONS: Final = (
    _of_subscription(
        "failing",
        "1 where nothing but failures came for a while, at any feed, or nothing may be sent.",
        lambda one: one.state == "failing",
    ),
    _of_subscription(
        "paused",
        "1 while the subscription is paused, by an operator, its sink or its failures.",
        lambda one: one.state == "paused",
    ),
    _of_subscription(
        "lag_seconds", "Age of the oldest event that is not delivered, in seconds.", lambda one: one.lag_seconds
    ),
    _of_subscription(
        "backlog_events",
        "Events that are not delivered, without those that are parked.",
        lambda one: one.lag_entries,
    ),
    _of_subscription("parked_events", "Events that wait for their next attempt.", lambda one: one.parked),
    _of_subscription(
        "backfill_records",
        "Records that a backfill is still to deliver, about; 0 where none is under way.",
        lambda one: one.backfill_records,
    ),
    _of_subscription(
        "backfilled_records",
        "Records that the backfill under way has delivered, parked or given up; 0 where none is under way.",
        lambda one: sum(feed.backfill.done for feed in one.feeds if feed.backfill is not None),
    ),
    _of_subscription("dead_letters", "Events that were given up and are kept.", lambda one: one.dead_letters),
    _of_subscription(
        "overrun_events_total", "Events lost because a stream outgrew retention.max_bytes.", lambda one: one.lost
    ),
)
_UNGRANTED: Final = _metric(
    "subscription_ungranted",
    "1 where its sink has not granted events, 0 where it has; with validate = true alone.",
    "subscription",
)
_MEMBERS: Final = declared("poller_members", "gauge", "Processes that share the work.")
_ORPHANS: Final = _metric(
    "orphaned_feed_events", "Events that wait for subscriptions at a feed that no running configuration has.", "feed"
)
_DIFFERENCES: Final = declared(
    "poller_configuration_differences",
    "gauge",
    "Sources and subscriptions whose base_url, sink or feeds are not the same in all running processes.",
)


def blocks(figures: StoredFigures, *, openmetrics: bool) -> Iterator[str]:
    """All of it as text."""
    feeds = [(labelled(feed=one.feed), one) for one in figures.feeds]
    for metric, of_feed in _FEEDS:
        yield metric.block(_known((labels, of_feed(one)) for labels, one in feeds), openmetrics=openmetrics)
    each = ((labels, figures.intervals.get(one.feed)) for labels, one in feeds)
    yield _INTERVAL.block(_known(each), openmetrics=openmetrics)
    subscriptions = [(labelled(subscription=one.subscription), one) for one in figures.subscriptions]
    for metric, of_subscription in _SUBSCRIPTIONS:
        samples = ((labels, of_subscription(one)) for labels, one in subscriptions)
        yield metric.block(_known(samples), openmetrics=openmetrics)
    ungranted = ((labels, figures.ungranted.get(one.subscription)) for labels, one in subscriptions)
    yield _UNGRANTED.block(_known(ungranted), openmetrics=openmetrics)
    yield _MEMBERS.block([("", figures.members)], openmetrics=openmetrics)
    yield _ORPHANS.block([(labelled(feed=feed), events) for feed, events in figures.orphans], openmetrics=openmetrics)
    yield _DIFFERENCES.block([("", figures.differences)], openmetrics=openmetrics)


def _known(samples: Iterable[tuple[str, float | None]]) -> Iterator[Sample]:
    return ((labels, float(value)) for labels, value in samples if value is not None)
