"""Replays: a span of a feed's stream that is delivered to a subscription again.

**Invariants**

- Only a replay's span and one position in it are stored, so that a million events cost no more than one.
- A feed consumer has one replay at a time.
- A command begins a replay; the process that delivers advances it in the script that settles
  (:mod:`poller.store.consumer_state`).

=================  ===========================================================================
field of ``state``  holds
=================  ===========================================================================
``replay``         the id of the replay under way
``replay_after``   each of its entries up to this one is settled or parked
``replay_to``      its last entry
``replayed``       the id of the last replay that was completed
=================  ===========================================================================
"""

from __future__ import annotations

from typing import Final, cast

import msgspec
from redis.asyncio import Redis

from poller.errors import GroupGone, Stale
from poller.redis.errors import translated
from poller.store.keys import ConsumerKeys, group_of
from poller.store.scripts import lua
from poller.store.stream import consumer_groups

_BEGIN: Final = lua("begin_replay")
_GONE: Final = 2
_NO_GROUP: Final = 3
_FIELDS: Final = ("replay", "replay_after", "replay_to")

ReplayedEntry = tuple[str, bytes]
"""An entry's id and its event."""


class ReplaySpan(msgspec.Struct, frozen=True):
    """A span of the stream that is delivered again.

    Attributes:
        id: of this replay, and of no other.
        after: the entries that come after this one,
        to: up to this one.
    """

    id: str
    after: str
    to: str


class ReplayPosition(msgspec.Struct, frozen=True):
    """The position of a replay.

    Attributes:
        id: of the replay.
        after: every entry up to this one is settled or parked; empty: so are all.
    """

    id: str
    after: str


async def replay_of(client: Redis, keys: ConsumerKeys) -> ReplaySpan | None:
    """The replay of a feed consumer that is under way; None where there is none.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        found = cast("list[bytes | None]", await client.hmget(keys.state, list(_FIELDS)))
    kept = [value.decode() for value in found if value is not None]
    return ReplaySpan(*kept) if len(kept) == len(_FIELDS) else None


async def start_replay(
    client: Redis, keys: ConsumerKeys, span: ReplaySpan, *, events: str = "", first: str = "", group: str = ""
) -> bool:
    """Begin a replay. False: another one is under way, and stays.

    A subscription that is removed loses its group together with its state: a replay must not bring that back.

    Args:
        client: of the store.
        keys: of the feed consumer.
        span: of the replay.
        events: the stream's key.
        first: the first entry of the span, which must still exist; empty: not checked.
        group: the subscription's, which must still exist; empty: not checked.

    Raises:
        Stale: that entry is gone; nothing was changed.
        GroupGone: the group is gone; likewise.
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        wanted = (span.id, span.after, span.to, first, group)
        begun = await client.eval(_BEGIN, 2, keys.state, events or keys.state, *wanted)
    if begun == _GONE:
        raise Stale(f"{events} was trimmed meanwhile: {first} is gone; ask again")
    if begun == _NO_GROUP:
        raise GroupGone(f"{events} has no group {group} any more: the subscription was removed meanwhile")
    return bool(begun)


async def cancel(client: Redis, keys: ConsumerKeys) -> bool:
    """Cancel the replay under way; requests already sent are not stopped. False: there is none.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        return bool(await client.hdel(keys.state, *_FIELDS))


async def is_completed(client: Redis, keys: ConsumerKeys, replay: str) -> bool:
    """Whether this replay was completed and not cancelled.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        return cast("bytes | None", await client.hget(keys.state, "replayed")) == replay.encode()


async def parked(client: Redis, keys: ConsumerKeys) -> int:
    """How many deliveries of a pair wait for their next attempt, of a replay or not.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        return await client.hlen(keys.parked)


async def first(client: Redis, events: str, start: str = "-") -> ReplayedEntry | None:
    """The first entry of a stream from this place on.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        return _entry(await client.xrange(events, start, "+", count=1))


async def last(client: Redis, events: str, end: str) -> ReplayedEntry | None:
    """The last entry of a stream up to this place.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        return _entry(await client.xrevrange(events, end, "-", count=1))


async def last_read(client: Redis, events: str, subscription: str) -> str | None:
    """The last entry that was read for a subscription; None where nothing was read yet.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    group = (await consumer_groups(client, events)).get(group_of(subscription))
    return group["last-delivered-id"].decode() if group else None


def _entry(found: object) -> ReplayedEntry | None:
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", found)
    return (entries[0][0].decode(), entries[0][1].get(b"data", b"")) if entries else None
