"""Statistics of feeds and feed consumers, read for many of them together.

**Invariants**

- One script answers for a feed, or for some subscriptions to one, and a handful of them goes with each request: neither
  the store nor this process is busy for longer than some milliseconds at a time.
- Nothing is written. What cannot be read is left out.
- A group that does not exist has an unknown lag, which is not a lag of 0. The server counts entries where it can; where
  it cannot (a group made in the middle of a stream, an old server) the events' sequence numbers tell, without gaps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha1
from typing import Any, Final, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from poller.clock import milliseconds_of
from poller.redis.errors import translated
from poller.store.keys import ConsumerKeys, FeedKeys, group_of
from poller.store.lease import owner_of
from poller.store.scripts import lua

_FEEDS_AT_ONCE: Final = 50
_PAIRS_AT_ONCE: Final = 25  # each may have a thousand parked deliveries, and all of them are looked at
_SAMPLES: Final = "20"  # nodes of a stream, of which the size of all is estimated: 10 µs

_FEED: Final = lua("feed_figures")

_PAIRS: Final = lua("backlog_figures")
_WIDTH: Final = 8

Call = tuple[Sequence[str], Sequence[str]]
"""The keys and the arguments of a script."""


class FeedStats(msgspec.Struct, frozen=True):
    """The figures of one feed.

    Attributes:
        records: that are known.
        entries: of its stream.
        quarantined: unusable records that are kept.
        owned: whether some process has its lease.
        paused: whether an operator has paused it.
        stream_bytes: the memory that the stream takes, about.
        state: the fields of its state that were asked for, None where it has not one.
    """

    records: int
    entries: int
    quarantined: int
    owned: bool
    paused: bool
    stream_bytes: int
    state: tuple[bytes | None, ...]


class ConsumerStats(msgspec.Struct, frozen=True):
    """The figures of one feed consumer.

    Attributes:
        undelivered: events that the group has not delivered; None where there is no group, or it is unknown.
        oldest: when the oldest event that is not delivered was published, in milliseconds; None where there is none.
        begun: whether there is a group.
        parked: how many wait for their next attempt.
        letters: how many were given up.
        lost: how many went before they were delivered, ever.
    """

    undelivered: int | None
    oldest: int | None
    begun: bool
    parked: int
    letters: int
    lost: int


async def feed_amounts(client: Redis, prefix: str, feeds: Sequence[str], fields: Sequence[str]) -> dict[str, FeedStats]:
    """The figures of each of these feeds, with these fields of its state.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    keys = (FeedKeys.of(prefix, feed) for feed in feeds)
    calls = [
        ([one.state, one.snapshots, one.events, one.quarantine, one.lease, one.pause], [_SAMPLES, *fields])
        for one in keys
    ]
    found: dict[str, FeedStats] = {}
    async for at, answer in _answers(client, _FEED, calls, at_once=_FEEDS_AT_ONCE):
        records, entries, quarantined, owned, paused, size, *state = answer
        found[feeds[at]] = FeedStats(records, entries, quarantined, bool(owned), bool(paused), size, tuple(state))
    return found


async def pair_amounts(client: Redis, prefix: str, wanted: Mapping[str, Sequence[str]]) -> dict[Pair, ConsumerStats]:
    """The figures of the feed consumers of these subscriptions, by the feed that they get.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    some = [
        (feed, names[first : first + _PAIRS_AT_ONCE])
        for feed, names in wanted.items()
        for first in range(0, len(names), _PAIRS_AT_ONCE)
    ]
    found: dict[Pair, ConsumerStats] = {}
    async for at, (sequence, *flat) in _answers(client, _PAIRS, [_call(prefix, *one) for one in some], at_once=1):
        feed, names = some[at]
        for place, name in enumerate(names):
            found[name, feed] = _pair(int(sequence), flat[place * _WIDTH : (place + 1) * _WIDTH])
    return found


def _call(prefix: str, feed: str, names: Sequence[str]) -> Call:
    keys = FeedKeys.of(prefix, feed)
    own = (ConsumerKeys.of(prefix, feed, name) for name in names)
    each = [key for one in own for key in (one.parked, one.letters, one.state)]
    return [keys.events, keys.state, *each], [group_of(name) for name in names]


def _pair(sequence: int, answer: Sequence[Any]) -> ConsumerStats:
    begun, lag, pending, first, oldest, parked, letters, lost = answer
    counted = lag if isinstance(lag, int) else None
    left: int | None = 0 if first == b"" else unread(int(first) if first.isdigit() else None, sequence, counted)
    return ConsumerStats(
        undelivered=left + pending if begun and left is not None else None,
        oldest=int(oldest) if oldest else None,
        begun=bool(begun),
        parked=parked,
        letters=letters,
        lost=int(lost),
    )


async def _answers(
    client: Redis, script: str, calls: Sequence[Call], *, at_once: int
) -> AsyncIterator[tuple[int, list[Any]]]:
    """The answers of a script by the place of the call; those that are errors are left out."""
    digest = sha1(script.encode(), usedforsecurity=False).hexdigest()
    for first in range(0, len(calls), at_once):
        some = calls[first : first + at_once]
        with translated(client):
            answers = await _piped(client, "EVALSHA", digest, some)
            if any(isinstance(one, NoScriptError) for one in answers):
                answers = await _piped(client, "EVAL", script, some)
            for failed in answers:
                if isinstance(failed, Exception) and not isinstance(failed, ResponseError):
                    raise failed
        for place, answer in enumerate(answers, first):
            if not isinstance(answer, Exception):
                yield place, answer


async def _piped(client: Redis, command: str, script: str, calls: Sequence[Call]) -> list[Any]:
    asking = client.pipeline(transaction=False)
    for keys, arguments in calls:
        asking.execute_command(command, script, len(keys), *keys, *arguments)
    return await asking.execute(raise_on_error=False)


Pair = tuple[str, str]
"""A subscription's id and a feed's ``SOURCE/NAME``."""

_Entries = list[tuple[bytes, Mapping[bytes, bytes]]]


class Backlog(msgspec.Struct, frozen=True):
    """The undelivered events of one feed consumer.

    Attributes:
        feed: ``SOURCE/NAME``.
        entries: how many the group has not delivered; None where there is no group yet, or it is unknown.
        seconds: age of the oldest event that is not delivered, one that waits for its next attempt included; 0 where
            there is none; None where there is no group.
        parked: how many wait for their next attempt.
        dead_letters: how many were given up.
        lost: how many went before they were delivered, ever, for the stream outgrew ``retention.max_bytes``.
        owner: the process that delivers; None where none does, or its name is unknown.
    """

    feed: str
    entries: int | None
    seconds: float | None
    parked: int
    dead_letters: int
    lost: int = 0
    owner: str | None = None


class _Numbered(msgspec.Struct, frozen=True):
    sequence: str = ""


class _Group(msgspec.Struct, frozen=True):
    last: bytes
    lag: int | None


async def backlogs(client: Redis, prefix: str, pairs: Sequence[Pair], *, now: datetime) -> dict[Pair, Backlog]:
    """The backlog of each pair.

    Args:
        client: of the store.
        prefix: of the keys.
        pairs: which.
        now: UTC.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    feeds = dict.fromkeys(feed for _, feed in pairs)
    groups = {feed: await _groups(client, FeedKeys.of(prefix, feed)) for feed in feeds}
    return {pair: await _backlog(client, prefix, pair, groups[pair[1]].get(group_of(pair[0])), now) for pair in pairs}


async def _groups(client: Redis, keys: FeedKeys) -> dict[str, _Group]:
    with translated(client):
        try:
            found = await client.xinfo_groups(keys.events)
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            return {}
    return {one["name"].decode(): _Group(one["last-delivered-id"], one.get("lag")) for one in found}


async def _backlog(client: Redis, prefix: str, pair: Pair, group: _Group | None, now: datetime) -> Backlog:
    name, feed = pair
    keys, own = FeedKeys.of(prefix, feed), ConsumerKeys.of(prefix, feed, name)
    with translated(client):
        asking = client.pipeline(transaction=False)
        asking.hkeys(own.parked)
        asking.hlen(own.letters)
        asking.hget(own.state, "lost")
        asking.hget(keys.state, "sequence")
        asking.get(own.lease)
        if group is not None:
            asking.xpending(keys.events, group_of(name))
            asking.xrange(keys.events, min=f"({group.last.decode()}", count=1)
        parked, letters, lost, sequence, lease, *answers = await asking.execute()
    owner = owner_of(lease)
    if group is None:
        seconds = None if not parked else _age(parked, now)
        return Backlog(feed, None, seconds, len(parked), letters, int(lost or 0), owner)
    pending, following = cast("tuple[dict[str, Any], _Entries]", answers)
    unread = _unread(following, int(sequence or 0), group.lag)
    oldest = [*parked, *filter(None, [pending["min"]]), *(entry for entry, _ in following)]
    return Backlog(
        feed=feed,
        entries=None if unread is None else unread + pending["pending"],
        seconds=_age(oldest, now),
        parked=len(parked),
        dead_letters=letters,
        lost=int(lost or 0),
        owner=owner,
    )


def _unread(following: _Entries, last: int, lag: int | None = None) -> int | None:
    if not following:
        return 0
    try:
        first = int(msgspec.json.decode(following[0][1].get(b"data", b""), type=_Numbered).sequence)
    except (msgspec.DecodeError, ValueError):
        first = None
    return unread(first, last, lag)


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


def _age(entries: Sequence[bytes], now: datetime) -> float:
    if not entries:
        return 0.0
    oldest = min(int(entry.partition(b"-")[0]) for entry in entries)
    return max(round((milliseconds_of(now) - oldest) / 1000, 3), 0.0)
