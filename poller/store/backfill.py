"""Backfills: the live records of a feed, delivered to one subscription as events.

**Invariants**

- A backfilled event is in no stream. It stands directly behind the entry at which its record was read, before every
  later one: :class:`DeliveryId` is the id of entries and of such events, and their order.
- Of a backfill only a position in the snapshots is stored, so that a million records cost no more than one.
- A feed consumer has one backfill at a time.
- A command begins it, or the consumer itself when it begins with ``start = "snapshot"``; the process that delivers
  advances it in the script that settles (:mod:`poller.store.consumer_state`).

==================  ==========================================================================================
field of ``state``  holds
==================  ==========================================================================================
``backfill``        the id of the backfill under way
``backfill_at``     each record before this position is settled or parked; empty: none; ``-``: none, and the
                    feed had no state when the consumer began
``backfill_done``   how many records that is
``backfill_total``  how many records were live when it began
``backfilled``      the id of the last backfill that was completed
==================  ==========================================================================================
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, cast

import msgspec
from redis.asyncio import Redis

from poller.redis.errors import translated
from poller.store.keys import ConsumerKeys, FeedKeys, group_of
from poller.store.scripts import lua

UNREAD: Final = "-"
"""The position of a backfill that began when the feed had no state."""

_BEGIN: Final = lua("begin_backfill")
_FIELDS: Final = ("backfill", "backfill_at", "backfill_done", "backfill_total")
_BEHIND: Final = "+"
_PART: Final = 16  # hex digits of the event's id: of a million events at one entry no two have the same


class DeliveryId(NamedTuple):
    """Where an event stands among those of its feed: an entry's id, and for a backfilled event a part of its own."""

    ms: int
    n: int = 0
    part: str = ""

    @classmethod
    def parse(cls, text: str | bytes) -> DeliveryId:
        """The id from what the store answers; a missing number is 0.

        Raises:
            ValueError: it is no id.
        """
        ms, _, n = (text if isinstance(text, str) else text.decode()).partition("-")
        try:
            return tuple.__new__(cls, (int(ms), int(n or 0), ""))
        except ValueError:
            n, behind, part = n.partition(_BEHIND)
            if not (behind and part):
                raise
            return cls(int(ms), int(n or 0), part)

    def behind(self, event_id: str) -> DeliveryId:
        """The id of a backfilled event that stands directly behind this one; its own one if this is of that event."""
        part = event_id[:_PART]
        return self if self.part.endswith(part) else DeliveryId(self.ms, self.n, self.part + part)

    def __str__(self) -> str:
        """As the store writes it."""
        entry = f"{self.ms}-{self.n}"
        return f"{entry}{_BEHIND}{self.part}" if self.part else entry


def is_backfilled(delivery_id: str) -> bool:
    """Whether a delivery has no entry in the stream."""
    return _BEHIND in delivery_id


class Backfill(msgspec.Struct, frozen=True):
    """A backfill under way.

    Attributes:
        id: of this backfill, and of no other.
        at: the text of the position from which on it goes on; empty: the beginning; see :data:`UNREAD`.
        done: how many records are settled or parked.
        total: how many records were live when it began.
    """

    id: str
    at: str = ""
    done: int = 0
    total: int = 0


class BackfillCounts(msgspec.Struct, frozen=True, gc=False):
    """How far a backfill has come, as ``poller status --json`` shows it.

    Attributes:
        id: of the backfill.
        done: how many records are delivered, parked or given up.
        total: how many records there were when it began.
    """

    id: str
    done: int
    total: int

    @property
    def left(self) -> int:
        """How many records are to come, about: records come and go meanwhile."""
        return max(self.total - self.done, 0)


class BackfillPosition(msgspec.Struct, frozen=True):
    """How far a backfill has come.

    Attributes:
        id: of the backfill.
        at: each record before this position is settled or parked; empty: each record is.
        done: how many records that is.
    """

    id: str
    at: str
    done: int


class BackfillStart(IntEnum):
    """The result of a request for a backfill."""

    UNDER_WAY = 0
    BEGUN = 1
    NO_GROUP = 2
    NEVER_READ = 3


async def backfill_of(client: Redis, keys: ConsumerKeys) -> Backfill | None:
    """The backfill of a feed consumer that is under way; None where there is none.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        found = cast("list[bytes | None]", await client.hmget(keys.state, list(_FIELDS)))
    name, at, done, total = found
    if name is None:
        return None
    return Backfill(name.decode(), (at or b"").decode("utf-8", "replace"), _number(done), _number(total))


def counts_of(name: bytes, done: bytes | None, total: bytes | None) -> BackfillCounts:
    """The counts from the values of their fields."""
    return BackfillCounts(name.decode(), _number(done), _number(total))


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


async def start_backfill(
    client: Redis, feed: FeedKeys, keys: ConsumerKeys, subscription: str, *, name: str
) -> tuple[BackfillStart, int]:
    """Begin a backfill, unless one is under way. Returns the result, and how many records it has.

    A subscription that is removed loses its group together with its state: a backfill must not bring that back.

    Args:
        client: of the store.
        feed: the keys of the feed.
        keys: of the feed consumer.
        subscription: its id.
        name: the backfill's id.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    names = [keys.state, feed.events, feed.state, feed.snapshots]
    with translated(client):
        result, live = await client.eval(_BEGIN, len(names), *names, name, group_of(subscription))
    return BackfillStart(result), max(int(live), 0)


async def cancel_backfill(client: Redis, keys: ConsumerKeys) -> bool:
    """Cancel the backfill under way; what was read of it is still delivered. False: there is none.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        return bool(await client.hdel(keys.state, *_FIELDS))


async def is_backfilled_with(client: Redis, keys: ConsumerKeys, backfill: str) -> bool:
    """Whether this backfill was the last one that was completed.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        return cast("bytes | None", await client.hget(keys.state, "backfilled")) == backfill.encode()
