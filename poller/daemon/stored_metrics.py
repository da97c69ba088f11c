"""Metrics of all feeds and subscriptions, read from the store on request.

**Invariants**

- However many requests there are, there is one reading at a time, and none sooner than :data:`FRESH` after the last.
- A store that is away is not read; requests get nothing then, without waiting.
- A slow reading delays no request for longer than :data:`PATIENCE`; until then the one before serves, for a while.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
import structlog
from redis.asyncio import Redis

from poller.clock import Clock, milliseconds_of
from poller.config.settings import Settings
from poller.config.sources import FeedSettings
from poller.control.orphans import differences, orphaned_feeds
from poller.control.status import health_in, is_ungranted
from poller.control.subscriptions import registry_of
from poller.daemon.cluster.membership import StoreObserver
from poller.errors import StoreError, StoreUnavailable
from poller.lifecycle import ended
from poller.store.feed_state import (
    BACKWARDS,
    DELTA_TOKEN_AT,
    GOOD_AT,
    HELD,
    HELD_VERSIONS,
    OLDEST,
    ROUND,
    ROUND_AT,
    TOMBSTONES,
    UNIDENTIFIED,
)
from poller.store.keys import MemberKeys
from poller.store.members import members_seen
from poller.store.stats import ConsumerStats, FeedStats, Pair, feed_amounts, pair_amounts
from poller.store.subscriptions import Subscriptions
from poller.telemetry.logs import LogOnce
from poller.telemetry.metrics import MetricDescription, Sample, declared, labelled

FRESH: Final = 5.0
"""Seconds that a reading serves."""

PATIENCE: Final = 3.0
"""Seconds that a request waits for a reading."""

_STALE: Final = 60.0  # seconds after which the one before does not serve any more
_FIELDS: Final = (
    "sequence",
    ROUND,
    ROUND_AT,
    GOOD_AT,
    DELTA_TOKEN_AT,
    OLDEST,
    HELD,
    UNIDENTIFIED,
    TOMBSTONES,
    BACKWARDS,
    HELD_VERSIONS,
)
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
    prefix, feeds = settings.redis.prefix, settings.feed_ids
    amounts = await feed_amounts(client, prefix, feeds, _FIELDS)
    kept = await registry_of(settings, client).all()
    wanted: dict[str, list[str]] = defaultdict(list)
    for name, one in kept.registered.items():
        for feed in one.outline.feeds or feeds:
            wanted[feed].append(name)
    waiting: dict[str, list[ConsumerStats]] = defaultdict(list)
    pairs: Mapping[Pair, ConsumerStats] = await pair_amounts(client, prefix, wanted)
    for (name, _), amount in pairs.items():
        waiting[name].append(amount)
    seen = await members_seen(client, MemberKeys.of(prefix))
    orphans = await orphaned_feeds(client, settings, now=now, seen=seen, kept=kept)
    return StoredFigures(
        feeds=[_feed(feed, one, each.get(feed)) for feed, one in amounts.items()],
        subscriptions=[_subscription(name, kept, waiting[name], now) for name in kept.registered],
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


class _Ended(msgspec.Struct, frozen=True):
    ok: bool = True


def _feed(feed: str, amounts: FeedStats, interval: float | None) -> FeedFigures:
    sequence, last, last_at, good_at, token_at, oldest, held, unidentified, tombstones, *versions = amounts.state
    backwards, held_versions = versions
    good = _seconds(good_at)
    return FeedFigures(
        feed=feed,
        failing=_failed(last),
        paused=amounts.paused,
        held=bool(held),
        unidentified=_whole(unidentified),
        backward_versions=_whole(backwards),
        held_versions=_whole(held_versions),
        owned=amounts.owned,
        interval=interval,
        last_round=_seconds(last_at),
        last_good_round=good,
        delta_token=_seconds(token_at),
        oldest_reading=_seconds(oldest) or good,
        records=max(amounts.records - _whole(tombstones), 0),
        events=_whole(sequence),
        stream_entries=amounts.entries,
        stream_bytes=amounts.stream_bytes,
        quarantine_entries=amounts.quarantined,
    )


def _failed(last: bytes | None) -> bool:
    try:
        return last is not None and not msgspec.json.decode(last, type=_Ended).ok
    except msgspec.MsgspecError:  # another version's
        return False


def _whole(number: bytes | None) -> int:
    return int(number) if number and number.isdigit() else 0


def _seconds(moment: bytes | None) -> float | None:
    try:
        return datetime.fromisoformat(moment.decode()).timestamp() if moment else None
    except ValueError:  # another version's
        return None


def _subscription(name: str, kept: Subscriptions, waiting: list[ConsumerStats], now: datetime) -> SubscriptionFigures:
    health, ungranted = health_in(kept, name), is_ungranted(kept, name)
    paused = name in kept.paused
    begun = [one for one in waiting if one.begun]
    oldest = min((one.oldest for one in waiting if one.oldest is not None), default=None)
    age = 0.0 if oldest is None else max((milliseconds_of(now) - oldest) / 1000, 0.0)
    known = [one.undelivered for one in begun if one.undelivered is not None]
    return SubscriptionFigures(
        subscription=name,
        failing=not paused and (health.failing_since is not None or bool(ungranted)),
        paused=paused,
        ungranted=ungranted,
        lag=age if begun or oldest is not None else None,
        backlog=sum(known) if known else None,
        parked=sum(one.parked for one in waiting),
        dead_letters=sum(one.letters for one in waiting),
        overrun=sum(one.lost for one in waiting),
    )


# Metrics of the store are the same in all processes. What is not known has no series, which is not the same as 0.


class FeedFigures(msgspec.Struct, frozen=True):
    """One feed, each field under the name of its metric; moments are seconds since 1970, None: not known.

    Attributes:
        feed: ``SOURCE/NAME``.
        failing: whether its last round failed.
        paused: whether an operator has paused it.
        held: whether removals wait for an operator.
        unidentified: how many records of the last full reading had no id that can be read.
        backward_versions: how many versions were older than the known one.
        held_versions: how many of these are held back.
        owned: whether some process has its lease.
        interval: seconds between its rounds, at most.
        last_round: when the last one ended.
        last_good_round: when the last good one ended.
        delta_token: when its delta token was taken.
        oldest_reading: when what is known was read, the oldest part of it.
        records: how many are known.
        events: how many were published.
        stream_entries: how many of these the stream holds.
        stream_bytes: the memory that it takes, about.
        quarantine_entries: how many unusable records are kept.
    """

    feed: str
    failing: bool
    paused: bool
    held: bool
    unidentified: int
    backward_versions: int
    held_versions: int
    owned: bool
    interval: float | None
    last_round: float | None
    last_good_round: float | None
    delta_token: float | None
    oldest_reading: float | None
    records: int
    events: int
    stream_entries: int
    stream_bytes: int
    quarantine_entries: int


class SubscriptionFigures(msgspec.Struct, frozen=True):
    """One subscription, likewise.

    Attributes:
        subscription: its id.
        failing: whether nothing has succeeded for a while.
        paused: whether it rests.
        ungranted: whether its sink has not granted events; None: it is not to be asked.
        lag: seconds; age of the oldest event that is not delivered.
        backlog: events that are not delivered, without those that are parked.
        parked: events that wait for their next attempt.
        dead_letters: events that were given up and are kept.
        overrun: events that went before they were delivered, ever.
    """

    subscription: str
    failing: bool
    paused: bool
    ungranted: bool | None
    lag: float | None
    backlog: int | None
    parked: int
    dead_letters: int
    overrun: int


class StoredFigures(msgspec.Struct, frozen=True):
    """All that was read at one time.

    Attributes:
        feeds: those of the configuration.
        subscriptions: all.
        members: processes that share the work.
        orphans: the feeds that no running configuration has, each with how many events wait for subscriptions.
        differences: how many things that must be equal in all configurations are not.
    """

    feeds: Sequence[FeedFigures] = ()
    subscriptions: Sequence[SubscriptionFigures] = ()
    members: int = 0
    orphans: Sequence[tuple[str, int]] = ()
    differences: int = 0


def _of_feed(field: str, name: str, text: str) -> tuple[str, MetricDescription]:
    kind = "counter" if name.endswith("_total") else "gauge"
    return field, declared(f"poller_feed_{name}", kind, text, "feed")  # type: ignore[arg-type]  # one of the two


_FEEDS: Final = (
    _of_feed("failing", "failing", "1 where the last round failed, whichever process ran it."),
    _of_feed("paused", "paused", "1 where an operator has paused the feed."),
    _of_feed("held", "held", "1 where removals, or another base_url, wait for an operator."),
    _of_feed(
        "unidentified",
        "unidentified_records",
        "Records of the last full reading whose id cannot be read; while there are any, nothing is removed.",
    ),
    _of_feed(
        "backward_versions",
        "backward_versions_total",
        "Versions that were older than the known one by their lastModifiedAt, published or held back.",
    ),
    _of_feed("held_versions", "held_versions", "Older versions that are held back until two full readings show them."),
    _of_feed("owned", "owned", "1 where some process has the lease."),
    _of_feed("interval", "interval_seconds", "Time between rounds in seconds as configured; of a cron the longest."),
    _of_feed("last_round", "last_round_timestamp_seconds", "When the last round ended, in seconds since 1970."),
    _of_feed(
        "last_good_round", "last_good_round_timestamp_seconds", "When the last good round ended, in seconds since 1970."
    ),
    _of_feed("delta_token", "delta_token_timestamp_seconds", "When the delta token was taken, in seconds since 1970."),
    _of_feed(
        "oldest_reading",
        "oldest_reading_timestamp_seconds",
        "When the oldest part of what is known was read, in seconds since 1970: of rotated listings the one read "
        "longest ago, else the last good round.",
    ),
    _of_feed("records", "records", "Records that are known and not removed."),
    _of_feed("events", "events_total", "Events that were published: the number of the last one."),
)
_STREAMS: Final = (
    ("stream_entries", declared("poller_stream_entries", "gauge", "Events that the stream holds.", "feed")),
    (
        "stream_bytes",
        declared("poller_stream_bytes", "gauge", "Memory that the stream takes, about, in bytes.", "feed"),
    ),
    (
        "quarantine_entries",
        declared("poller_quarantine_entries", "gauge", "Records that could not be used and are kept.", "feed"),
    ),
)


def _of_subscription(field: str, name: str, text: str) -> tuple[str, MetricDescription]:
    kind = "counter" if name.endswith("_total") else "gauge"
    return field, declared(f"poller_subscription_{name}", kind, text, "subscription")  # type: ignore[arg-type]  # as above


_SUBSCRIPTIONS: Final = (
    _of_subscription(
        "failing", "failing", "1 where nothing but failures came for a while, at any feed, or nothing may be sent."
    ),
    _of_subscription(
        "paused", "paused", "1 while the subscription is paused, by an operator, its sink or its failures."
    ),
    _of_subscription(
        "ungranted", "ungranted", "1 where its sink has not granted events, 0 where it has; with validate = true alone."
    ),
    _of_subscription("lag", "lag_seconds", "Age of the oldest event that is not delivered, in seconds."),
    _of_subscription("backlog", "backlog_events", "Events that are not delivered, without those that are parked."),
    _of_subscription("parked", "parked_events", "Events that wait for their next attempt."),
    _of_subscription("dead_letters", "dead_letters", "Events that were given up and are kept."),
    _of_subscription("overrun", "overrun_events_total", "Events lost because a stream outgrew retention.max_bytes."),
)
_MEMBERS: Final = declared("poller_members", "gauge", "Processes that share the work.")


_ORPHANS: Final = declared(
    "poller_orphaned_feed_events",
    "gauge",
    "Events that wait for subscriptions at a feed that no running configuration has.",
    "feed",
)
_DIFFERENCES: Final = declared(
    "poller_configuration_differences",
    "gauge",
    "Sources and subscriptions whose base_url or sink is not the same in all running processes.",
)


def blocks(figures: StoredFigures, *, openmetrics: bool) -> Iterator[str]:
    """All of it as text."""
    feeds = [(labelled(feed=one.feed), one) for one in figures.feeds]
    for field, metric in (*_FEEDS, *_STREAMS):
        yield metric.block(_samples(feeds, field), openmetrics=openmetrics)
    subscriptions = [(labelled(subscription=one.subscription), one) for one in figures.subscriptions]
    for field, metric in _SUBSCRIPTIONS:
        yield metric.block(_samples(subscriptions, field), openmetrics=openmetrics)
    yield _MEMBERS.block([("", figures.members)], openmetrics=openmetrics)
    yield _ORPHANS.block([(labelled(feed=feed), events) for feed, events in figures.orphans], openmetrics=openmetrics)
    yield _DIFFERENCES.block([("", figures.differences)], openmetrics=openmetrics)


def _samples(of: Sequence[tuple[str, msgspec.Struct]], field: str) -> Iterator[Sample]:
    for labels, one in of:
        value = getattr(one, field)
        if value is not None:
            yield labels, float(value)
