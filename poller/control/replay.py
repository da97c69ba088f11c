"""Requests for replays: the events of a span, and whether the stream still holds them.

**Invariants**

* A request is checked for every feed before a replay is requested on any of them.
* A replay covers only events that the subscription has read already; it will get the others anyway.

The number of events of a span follows from the sequence numbers of its first and last event, which have no gaps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from redis.asyncio import Redis

from poller.clock import Clock, rfc3339
from poller.config.settings import Settings
from poller.config.validation import decode_subscription
from poller.control.subscriptions import registered, registry_of
from poller.delivery.cloudevent import envelope_of
from poller.errors import ConfigurationError, PollerError
from poller.store import replay as replays
from poller.store.keys import ConsumerKeys, FeedKeys, SubscriptionKeys, group_of
from poller.store.registry import Registry
from poller.store.replay import ReplayedEntry, ReplaySpan
from poller.store.stream import EntryId, before
from poller.text import one_line

EARLIEST = "-"
LATEST = "+"
_LOOK_AGAIN: Final = 0.5  # seconds between two reads of the progress


class PlannedReplay(msgspec.Struct, frozen=True):
    """A replay of one feed, before its start.

    Attributes:
        feed: ``SOURCE/NAME``.
        subscription: its id.
        span: the entries.
        entry: the first entry.
        first: the sequence number of the first event.
        events: the number of events, before the subscription's filters.
    """

    feed: str
    subscription: str
    span: ReplaySpan
    entry: str
    first: int
    events: int

    @property
    def since(self) -> str:
        """The publication time of the first event, RFC 3339."""
        return _moment(self.entry)


class SubscriptionFeeds(msgspec.Struct, frozen=True):
    """The feeds of a subscription, and whether it is paused."""

    feeds: tuple[str, ...]
    paused: bool


async def subscribed(client: Redis, settings: Settings, subscription: str) -> SubscriptionFeeds:
    """The feeds of a subscription.

    Raises:
        SubscriptionUnknown: no subscription has this id.
        ConfigurationError: its stored settings cannot be used.
        StoreError: the store is unavailable.
    """
    kept = await registry_of(settings, client).all()
    one = decode_subscription(bytes(registered(kept, settings, subscription).settings))
    return SubscriptionFeeds(tuple(one.feeds or settings.feed_ids), subscription in kept.paused)


class ReplayControl:
    """The replays of one subscription. Each method may raise StoreError."""

    def __init__(self, client: Redis, prefix: str, subscription: str) -> None:
        """Read and change replays through this client."""
        self._client = client
        self._prefix = prefix
        self._subscription = subscription

    async def planned(self, feed: str, start: str, end: str, *, name: str) -> PlannedReplay | None:
        """The replay of a feed's entries from ``start`` to ``end``, both included; None: there are no events.

        Args:
            feed: ``SOURCE/NAME``.
            start: an entry's id, or :data:`EARLIEST`.
            end: an entry's id, or :data:`LATEST`.
            name: the replay's id.

        Raises:
            PollerError: the stream begins later than ``start``, or the subscription was never started at this feed.
        """
        events = FeedKeys.of(self._prefix, feed).events
        read = await replays.last_read(self._client, events, self._subscription)
        if read is None:
            raise PollerError(f"{feed} has not begun for {self._subscription} yet: a daemon does that soon; try again")
        oldest = await replays.first(self._client, events)
        if oldest and start != EARLIEST and _sequence(oldest) > 1 and EntryId.parse(start) < EntryId.parse(oldest[0]):
            raise PollerError(
                f"{feed} does not go back so far any more: it begins at {_moment(oldest[0])}, "
                f"--from {oldest[0]} (or earliest) takes all its events"
            )
        if oldest is None and start != EARLIEST and EntryId.parse(start) <= EntryId.parse(read) != (0, 0):
            raise PollerError(f"{feed} holds none of its events any more; the last of them was from {_moment(read)}")
        upto = read if end == LATEST or EntryId.parse(end) > EntryId.parse(read) else end
        first = await replays.first(self._client, events, start)
        last = await replays.last(self._client, events, upto)
        if first is None or last is None or EntryId.parse(first[0]) > EntryId.parse(last[0]):
            return None
        count = _sequence(last) - _sequence(first) + 1
        return PlannedReplay(
            feed,
            self._subscription,
            ReplaySpan(name, before(first[0]), last[0]),
            first[0],
            _sequence(first),
            max(count, 1),
        )

    async def start(self, wanted: Sequence[PlannedReplay]) -> list[str]:
        """Start these replays. Returns the feeds with a replay under way, which stay unchanged.

        Raises:
            Stale: the first entry of a replay was trimmed meanwhile; this replay and those after it were not started.
            GroupGone: the subscription was removed meanwhile; likewise.
        """
        try:
            return [one.feed for one in wanted if not await self._start(one)]
        finally:
            await self._announce()

    async def _start(self, one: PlannedReplay) -> bool:
        events, group = FeedKeys.of(self._prefix, one.feed).events, group_of(self._subscription)
        pair = self._pair(one.feed)
        return await replays.start_replay(self._client, pair, one.span, events=events, first=one.entry, group=group)

    async def under_way(self, feed: str) -> PlannedReplay | None:
        """The remaining span of a feed's replay; None: no replay is under way."""
        span = await replays.replay_of(self._client, self._pair(feed))
        if span is None:
            return None
        events = FeedKeys.of(self._prefix, feed).events
        first = await replays.first(self._client, events, f"({span.after}")
        last = await replays.last(self._client, events, span.to)
        left = _sequence(last) - _sequence(first) + 1 if first and last else 0
        entry, number = (first[0], _sequence(first)) if first else (span.to, 1)
        return PlannedReplay(feed, self._subscription, span, entry, number, max(left, 0))

    async def cancel(self, feeds: Sequence[str]) -> list[str]:
        """Cancel the replays of these feeds. Returns the feeds that had one."""
        ended = [feed for feed in feeds if await replays.cancel(self._client, self._pair(feed))]
        await self._announce()
        return ended

    async def progress(self, one: PlannedReplay, clock: Clock) -> AsyncIterator[int]:
        """Yield the number of settled or scheduled events regularly until the replay is complete.

        Args:
            one: the started replay.
            clock: of this process.

        Raises:
            PollerError: the replay was cancelled, or waits because the subscription is paused.
        """
        keys = self._pair(one.feed)
        events = FeedKeys.of(self._prefix, one.feed).events
        while (kept := await replays.replay_of(self._client, keys)) and kept.id == one.span.id:
            following = await replays.first(self._client, events, f"({kept.after}")
            yield max(_sequence(following) - one.first, 0) if following else one.events
            await self._refuse_paused()
            await clock.sleep(_LOOK_AGAIN)
        if not await replays.is_completed(self._client, keys, one.span.id):
            raise PollerError(f"{one.feed}: the replay was cancelled")
        yield one.events

    async def parked(self, feed: str) -> int:
        """The number of scheduled retries of a feed."""
        return await replays.parked(self._client, self._pair(feed))

    async def _refuse_paused(self) -> None:
        kept = await Registry(self._client, SubscriptionKeys.of(self._prefix)).all()
        pause = kept.paused.get(self._subscription)
        if pause is not None:
            raise PollerError(
                f"{self._subscription} is paused ({pause.by}: {one_line(pause.reason)}): the replay stays, and goes on "
                f"after `poller subscriptions resume {self._subscription}`"
            )

    def _pair(self, feed: str) -> ConsumerKeys:
        return ConsumerKeys.of(self._prefix, feed, self._subscription)

    async def _announce(self) -> None:
        await Registry(self._client, SubscriptionKeys.of(self._prefix)).tell_parked()


def feeds_of(all_of: SubscriptionFeeds, named: Sequence[str], subscription: str) -> tuple[str, ...]:
    """The named feeds, or all feeds of the subscription.

    Raises:
        ConfigurationError: one of them is not the subscription's.
    """
    for feed in named:
        if feed not in all_of.feeds:
            raise ConfigurationError(f"{subscription} does not subscribe to {feed}")
    return tuple(named) or all_of.feeds


def _sequence(entry: ReplayedEntry) -> int:
    """The event's sequence number; 1 if it has none."""
    try:
        return int(envelope_of(entry[1]).sequence or 1)
    except ValueError:
        return 1


def _moment(entry: str) -> str:
    return rfc3339(datetime.fromtimestamp(EntryId.parse(entry).ms / 1000, UTC))
