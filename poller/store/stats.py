"""What the store holds of feeds and of feed consumers: the one reader for status, page, JSON and metrics.

**Invariants**

- One script answers for a feed, or for some subscriptions to one, and a handful of them goes with each request: neither
  the store nor this process is busy for longer than some milliseconds at a time.
- Nothing is written. What cannot be read is an error, or with ``lenient`` is left out.
- A group that does not exist has an unknown lag, which is not a lag of 0, unless the caller says where it will begin
  and events wait there. The server counts entries where it can; where it cannot (a group made in the middle of a stream
  or not yet, an old server) the events' sequence numbers tell, without gaps: two of them, however many events wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from hashlib import sha1
from types import MappingProxyType
from typing import Any, Final

import msgspec
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from poller.changes.plan import RoundCounts
from poller.clock import milliseconds_of
from poller.redis.errors import translated
from poller.store.backfill import BackfillCounts, counts_of
from poller.store.commands import FeedPause, pause_of
from poller.store.feed_state import FeedState, state_of
from poller.store.keys import ConsumerKeys, FeedKeys, group_of
from poller.store.lease import owner_of
from poller.store.retention import SAMPLES, StreamExtent
from poller.store.scripts import lua
from poller.store.stream import EntryId

QUICK_SAMPLES: Final = 20
"""Nodes of a stream, of which the size of all is estimated: 10 µs. See :data:`~poller.store.retention.SAMPLES`."""

_FEEDS_AT_ONCE: Final = 50
_CONSUMERS_AT_ONCE: Final = 25  # each may have a thousand parked deliveries, and all of them are looked at

_FEED: Final = lua("feed_stats")
_BACKLOGS: Final = lua("backlogs")
_WIDTH: Final = 10  # answers of that script for each consumer

Pair = tuple[str, str]
"""A subscription's id and a feed's ``SOURCE/NAME``."""

_Call = tuple[Sequence[str], Sequence[str]]  # the keys and the arguments of a script


class LastRound(RoundCounts):
    """The last round as its feed's state keeps it."""

    mode: str | None = None
    ok: bool = True
    error: str | None = None

    @property
    def counts(self) -> RoundCounts:
        """The counters alone."""
        return RoundCounts(*(getattr(self, name) for name in RoundCounts.__struct_fields__))


class FeedStats(msgspec.Struct, frozen=True, gc=False):
    """What the store holds of one feed.

    Attributes:
        feed: ``SOURCE/NAME``.
        state: its state.
        last_round: how its last round ended; None before the first, or where another version wrote it.
        snapshots: of records, removed ones included.
        stream: the extent of its stream.
        quarantined: how many unusable records are kept.
        listings: how many are kept, of a feed with one for each qualification.
        lease_ms: how long its lease still lasts unless it is renewed; 0: no process has it.
        owner: the process that has the lease; None where there is none, or its name is not known.
        pause: by whom it is paused, why and since when; None where it is not.
    """

    feed: str
    state: FeedState
    last_round: LastRound | None
    snapshots: int
    stream: StreamExtent
    quarantined: int
    listings: int
    lease_ms: int
    owner: str | None
    pause: FeedPause | None

    @property
    def records(self) -> int:
        """How many records are known and not removed."""
        return max(self.snapshots - (self.state.tombstones or 0), 0)


class Backlog(msgspec.Struct, frozen=True, gc=False):
    """The undelivered events of one feed consumer.

    Attributes:
        feed: ``SOURCE/NAME``.
        entries: how many the group has not delivered; None where there is no group yet and none is known to wait for
            it, or it is unknown.
        seconds: age of the oldest event that is not delivered, one that waits for its next attempt included; 0 where
            there is none; None where there is no group and none is known to wait.
        parked: how many wait for their next attempt.
        dead_letters: how many were given up.
        lost: how many went before they were delivered, ever, for the stream outgrew ``retention.max_bytes``.
        owner: the process that delivers; None where none does, or its name is unknown.
        backfill: how far the backfill under way has come; None where there is none.
    """

    feed: str
    entries: int | None
    seconds: float | None
    parked: int
    dead_letters: int
    lost: int = 0
    owner: str | None = None
    backfill: BackfillCounts | None = None


async def feed_stats(
    client: Redis, prefix: str, feeds: Sequence[str], *, samples: int = SAMPLES, lenient: bool = False
) -> dict[str, FeedStats]:
    """What the store holds of each of these feeds.

    Args:
        client: of the store.
        prefix: of the keys.
        feeds: which.
        samples: of how many nodes of a stream its size is estimated.
        lenient: leave out what cannot be read.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    keys = (FeedKeys.of(prefix, feed) for feed in feeds)
    calls = [
        ([one.state, one.snapshots, one.events, one.quarantine, one.listings, one.lease, one.pause], [str(samples)])
        for one in keys
    ]
    found: dict[str, FeedStats] = {}
    async for at, answer in _answers(client, _FEED, calls, at_once=_FEEDS_AT_ONCE, lenient=lenient):
        with suppress(ValueError) if lenient else nullcontext():  # a number that is none
            found[feeds[at]] = _feed(feeds[at], answer)
    return found


def _feed(feed: str, answer: Sequence[Any]) -> FeedStats:
    fields, snapshots, length, size, first, quarantined, listings, lease, lease_ms, pause = answer
    state = state_of(dict(zip(fields[::2], fields[1::2], strict=True)))
    return FeedStats(
        feed=feed,
        state=state,
        last_round=_last_round(state.round),
        snapshots=snapshots,
        stream=StreamExtent(length, size, EntryId.parse(first) if first else None),
        quarantined=quarantined,
        listings=listings,
        lease_ms=max(lease_ms, 0),
        owner=owner_of(lease),
        pause=None if pause is None else pause_of(pause),
    )


def _last_round(text: str | None) -> LastRound | None:
    try:
        return msgspec.json.decode(text, type=LastRound) if text else None
    except msgspec.MsgspecError:
        return None


async def backlogs(
    client: Redis,
    prefix: str,
    pairs: Sequence[Pair],
    *,
    now: datetime,
    begins: Mapping[Pair, str] = MappingProxyType({}),
    lenient: bool = False,
) -> dict[Pair, Backlog]:
    """The backlog of each pair, in their order.

    Args:
        client: of the store.
        prefix: of the keys.
        pairs: which.
        now: UTC.
        begins: the entry after which a pair begins, where it has not. Without it, what waits for that is not counted.
        lenient: leave out what cannot be read.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    names: dict[str, list[str]] = {}
    for name, feed in pairs:
        names.setdefault(feed, []).append(name)
    parts = [
        (feed, of_feed[first : first + _CONSUMERS_AT_ONCE])
        for feed, of_feed in names.items()
        for first in range(0, len(of_feed), _CONSUMERS_AT_ONCE)
    ]
    calls = [_backlogs_call(prefix, feed, of_feed, begins) for feed, of_feed in parts]
    found: dict[Pair, Backlog] = {}
    async for at, (sequence, *flat) in _answers(client, _BACKLOGS, calls, at_once=1, lenient=lenient):
        feed, some = parts[at]
        for place, name in enumerate(some):
            with suppress(ValueError) if lenient else nullcontext():  # a number that is none
                found[name, feed] = _backlog(feed, int(sequence), flat[place * _WIDTH : (place + 1) * _WIDTH], now)
    return {pair: found[pair] for pair in pairs if pair in found}


def _backlogs_call(prefix: str, feed: str, names: Sequence[str], begins: Mapping[Pair, str]) -> _Call:
    keys = FeedKeys.of(prefix, feed)
    own = (ConsumerKeys.of(prefix, feed, name) for name in names)
    each = [key for one in own for key in (one.parked, one.letters, one.state, one.lease)]
    groups = [group_of(name) for name in names]
    return [keys.events, keys.state, *each], groups + [begins.get((name, feed), "") for name in names]


def _backlog(feed: str, sequence: int, answer: Sequence[Any], now: datetime) -> Backlog:
    begun, lag, pending, first, oldest, parked, letters, lost, lease, backfill = answer
    counted = lag if isinstance(lag, int) else None
    left: int | None = 0 if first == b"" else unread(int(first) if first.isdigit() else None, sequence, counted)
    age = max((milliseconds_of(now) - int(oldest)) / 1000, 0.0) if oldest else 0.0
    return Backlog(
        feed=feed,
        entries=left + pending if begun and left is not None else None,
        seconds=age if begun or oldest else None,
        parked=parked,
        dead_letters=letters,
        lost=int(lost),
        owner=owner_of(lease),
        backfill=counts_of(*backfill) if backfill else None,
    )


def unread(first: int | None, last: int, lag: int | None) -> int | None:
    """The number of events that a group has not read; None where it is unknown.

    Args:
        first: the number of the first of them; None where it is not an event of the daemon.
        last: the number of the feed's last event.
        lag: as the server counts it, where it can; it goes on counting what went unread, the numbers do not.
    """
    if first is None:
        return lag
    if lag is None or first <= last < first + lag:
        return max(last - first + 1, 1)
    return lag


async def _answers(
    client: Redis, script: str, calls: Sequence[_Call], *, at_once: int, lenient: bool
) -> AsyncIterator[tuple[int, list[Any]]]:
    """The answers of a script by the place of the call; ``lenient`` leaves out those that are refused."""
    digest = sha1(script.encode(), usedforsecurity=False).hexdigest()
    for first in range(0, len(calls), at_once):
        some = calls[first : first + at_once]
        with translated(client):
            answers = await _piped(client, "EVALSHA", digest, some)
            if any(isinstance(one, NoScriptError) for one in answers):
                answers = await _piped(client, "EVAL", script, some)
            for failed in answers:
                if isinstance(failed, Exception) and not (lenient and isinstance(failed, ResponseError)):
                    raise failed
        for place, answer in enumerate(answers, first):
            if not isinstance(answer, Exception):
                yield place, answer


async def _piped(client: Redis, command: str, script: str, calls: Sequence[_Call]) -> list[Any]:
    asking = client.pipeline(transaction=False)
    for keys, arguments in calls:
        asking.execute_command(command, script, len(keys), *keys, *arguments)
    return await asking.execute(raise_on_error=False)
