"""What subscriptions have not delivered yet, feed by feed. Reads only.

Law: a group that is not there has no lag that could be told, which is not the same as none. The server counts entries
where it can; where it cannot (a group that was made in the middle of a stream, an old server) the events' sequence
numbers tell, for they have no gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from poller.store.connection import translated
from poller.store.keys import FeedKeys, PairKeys, group_of
from poller.store.owners import owner_of
from poller.store.registrations import milliseconds_of

Pair = tuple[str, str]
"""A subscription's id and a feed's ``SOURCE/NAME``."""

_Entries = list[tuple[bytes, Mapping[bytes, bytes]]]


class Backlog(msgspec.Struct, frozen=True):
    """What one subscription to one feed has before it.

    Attributes:
        feed: ``SOURCE/NAME``.
        entries: how many the group has not delivered; None where there is no group yet, or nobody can tell.
        seconds: age of the oldest event that is not delivered, one that waits for its next attempt included; 0 where
            there is none; None where there is no group.
        parked: how many wait for their next attempt.
        dead_letters: how many were given up.
        lost: how many went before they were delivered, ever, for the stream outgrew ``retention.max_bytes``.
        owner: the process that delivers; None where none does, or its name cannot be told.
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
        StoreError: see :func:`~poller.store.connection.translated`.
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
    keys, own = FeedKeys.of(prefix, feed), PairKeys.of(prefix, feed, name)
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
    """How many events a group has not read; None where nobody can tell.

    Args:
        first: the number of the first of them; None where it is no event of ours.
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
