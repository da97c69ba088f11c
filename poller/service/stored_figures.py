"""What the store says of all feeds and subscriptions, read when somebody asks and not more often than is good for it.

Law: however many ask, there is one reading at a time and none sooner than :data:`FRESH` after the last. A store that is
away is not asked, and whoever asks then gets nothing at once. A reading that takes long holds up nobody for longer than
:data:`PATIENCE`; until it is there the one before serves, though not for ever.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import msgspec
import structlog
from redis.asyncio import Redis

from poller.config.feeds import FeedSettings
from poller.config.settings import Settings
from poller.errors import StoreError, StoreUnavailable
from poller.service.configurations import differences
from poller.service.membership import Watch
from poller.service.orphans import orphaned_feeds
from poller.service.subscribing import registry_of
from poller.service.subscription_status import health_in, is_ungranted
from poller.stopping import ended
from poller.store.backlogs import Pair
from poller.store.figures import FeedAmounts, PairAmounts, feed_amounts, pair_amounts
from poller.store.keys import MemberKeys
from poller.store.members import members_seen
from poller.store.registrations import Subscriptions, milliseconds_of
from poller.store.state import (
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
from poller.telemetry.stored import FeedFigures, StoredFigures, SubscriptionFigures

FRESH: Final = 5.0
"""Seconds that a reading serves."""

PATIENCE: Final = 3.0
"""Seconds that whoever asks waits for one."""

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

    def __init__(
        self, settings: Settings, watch: Watch, *, now: Callable[[], datetime], clock: Callable[[], float]
    ) -> None:
        """Begin without a store.

        Args:
            settings: the configuration.
            watch: told when the store is away.
            now: the store's clock, UTC.
            clock: seconds that only go forward.
        """
        self._settings = settings
        self._watch = watch
        self._now = now
        self._clock = clock
        self._client: Redis | None = None
        self._intervals: Mapping[str, float] = {}
        self._latest: StoredFigures | None = None
        self._read_at = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._failing: str | None = None

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
        if self._latest is None or self._clock() - self._read_at >= FRESH:
            self._reading = self._reading or asyncio.create_task(self._read(self._client), name="figures of the store")
            await asyncio.wait({self._reading}, timeout=PATIENCE)
        held = self._latest is not None and self._clock() - self._read_at < _STALE
        return self._latest if held and not self._watch.away else None

    async def _read(self, client: Redis) -> None:
        try:
            if not self._intervals:
                self._intervals = await asyncio.to_thread(intervals, self._settings, self._now())
            self._latest = await stored_figures(client, self._settings, self._intervals, now=self._now())
            self._read_at = self._clock()
            self._failing = None
        except StoreUnavailable as error:
            self._latest = None
            self._watch.failed(_WHO, str(error))
            self._watch.worked(_WHO)  # not asked again while it counts as away, this could never say that it is back
        except StoreError as error:
            self._latest = None
            if str(error) != self._failing:
                self._failing = str(error)
                _log.warning("metrics of the store cannot be read", error=self._failing)
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
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    prefix, feeds = settings.redis.prefix, settings.feed_ids
    amounts = await feed_amounts(client, prefix, feeds, _FIELDS)
    kept = await registry_of(settings, client).all()
    wanted: dict[str, list[str]] = defaultdict(list)
    for name, one in kept.registered.items():
        for feed in _wanted(bytes(one.settings)) or feeds:
            wanted[feed].append(name)
    waiting: dict[str, list[PairAmounts]] = defaultdict(list)
    pairs: Mapping[Pair, PairAmounts] = await pair_amounts(client, prefix, wanted)
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
    from poller.config.gaps import longest_gap  # noqa: PLC0415 -- slow, and few feeds have a cron expression

    return longest_gap(feed.cron, now).total_seconds()


class _Ended(msgspec.Struct, frozen=True):
    ok: bool = True


def _feed(feed: str, amounts: FeedAmounts, interval: float | None) -> FeedFigures:
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


def _subscription(name: str, kept: Subscriptions, waiting: list[PairAmounts], now: datetime) -> SubscriptionFigures:
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


class _Wanted(msgspec.Struct, frozen=True):
    feeds: tuple[str, ...] | None = None


def _wanted(settings: bytes) -> tuple[str, ...] | None:
    """The feeds that a subscription gets; None: all."""
    try:
        return msgspec.json.decode(settings, type=_Wanted).feeds
    except msgspec.MsgspecError:
        return None
