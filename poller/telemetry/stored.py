"""What the store says of feeds, subscriptions and processes: the same whichever process is asked.

Law: what is not known has no series, which is not the same as 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from poller.telemetry.catalogue import Described, Sample, declared, labelled


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


def _of_feed(field: str, name: str, text: str) -> tuple[str, Described]:
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


def _of_subscription(field: str, name: str, text: str) -> tuple[str, Described]:
    kind = "counter" if name.endswith("_total") else "gauge"
    return field, declared(f"poller_subscription_{name}", kind, text, "subscription")  # type: ignore[arg-type]  # as above


_SUBSCRIPTIONS: Final = (
    _of_subscription(
        "failing", "failing", "1 where nothing but failures came for a while, at any feed, or nothing may be sent."
    ),
    _of_subscription("paused", "paused", "1 where it rests, whoever has paused it."),
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
