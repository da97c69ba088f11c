"""Dead letters and quarantined records: list, show, redeliver and drop them.

**Invariants**

- A dead letter has one id, which names the place where it is stored: a look-up is one read and no search.
- Lists hold no contents and are read some entries at a time.
- A record that is dropped is quarantined again when it comes again.
- A dead letter is in one place. One script moves it to ``parked``, only as it was seen, so that two concurrent
  redeliveries move it once; and only while fewer than :data:`MOST_WAITING` deliveries wait there, so that no command
  can fill the memory of the process that delivers.

=====================================  ================================================================
id                                     names
=====================================  ================================================================
``SOURCE/NAME:ENTRY``                  the entry of the feed's quarantine
``SOURCE/NAME:SUBSCRIPTION:ENTRY``     the entry of the feed's stream, as that subscription did not get it
``SOURCE/NAME:SUBSCRIPTION:ENTRY+HEX`` the event of a backfill that stood behind the entry
``SOURCE/NAME:SUBSCRIPTION:0-N``       the entries that went in that subscription's Nth overrun
=====================================  ================================================================

No part holds a colon, and no id a character that a shell interprets.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec
from redis.asyncio import Redis

from poller.redis.errors import translated
from poller.store.backfill import DeliveryId
from poller.store.feed import QUARANTINE_BYTES, rejected_digest
from poller.store.keys import ConsumerKeys, FeedKeys
from poller.store.scripts import DROP, lua
from poller.store.stream import EntryId

_AT_ONCE: Final = 16  # entries in one reply: at most 1 MiB of records
_ID: Final = re.compile(r"([\w/-]+):(?:([a-z0-9][a-z0-9-]{0,63}):)?(\d{1,20}-\d{1,20})(\+(?:[0-9a-f]{16})+)?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)

_Entry = tuple[bytes, dict[bytes, bytes]]


class DeadLetterId(NamedTuple):
    """A parsed id of a dead letter: the feed as named, the entry, and for an event the subscription."""

    feed: str
    entry: str
    subscription: str | None = None

    @property
    def text(self) -> str:
        """The id as text."""
        return ":".join(filter(None, (self.feed, self.subscription, self.entry)))


class DeadLetterSummary(msgspec.Struct, frozen=True):
    """One line of ``poller dead-letters list --json``.

    Attributes:
        id: one word that can be pasted into a shell.
        kind: ``record``: a quarantined record; ``event``: an event that was given up; ``overrun``: undelivered events
            that were trimmed because their stream exceeded ``retention.max_bytes``.
        feed: ``SOURCE/NAME``.
        at: when it became a dead letter, RFC 3339 in UTC with milliseconds, by the store's clock.
        reason: in words.
        bytes: the size of its content.
        subscription: of the event; None: a record.
        type: of the event; None: no single event, or unreadable.
        subject: of the event; None: no single event, or unreadable.
    """

    id: str
    kind: Literal["record", "event", "overrun"]
    feed: str
    at: str
    reason: str
    bytes: int
    subscription: str | None = None
    type: str | None = None
    subject: str | None = None


class Opened(msgspec.Struct, frozen=True):
    """A dead letter with its content.

    Attributes:
        letter: its summary.
        raw: its bytes as received, or the first 64 KiB.
        whole: whether these are all bytes; None: unknown, written by an older version.
    """

    letter: DeadLetterSummary
    raw: bytes
    whole: bool | None


class Listed(msgspec.Struct, frozen=True):
    """Some dead letters, the newest last, and the number of older ones."""

    letters: tuple[DeadLetterSummary, ...]
    hidden: int


def letter_id(text: str) -> DeadLetterId | None:
    """The parsed id; None: not an id."""
    match = _ID.fullmatch(text)
    with suppress(ValueError):
        if match is not None and (match[2] or not match[4]):
            EntryId.checked(match[3])
            return DeadLetterId(match[1], match[3] + (match[4] or ""), match[2])
    return None


async def newest(client: Redis, feeds: Mapping[str, FeedKeys], *, most: int) -> Listed:
    """The newest dead letters of these feeds, at most ``most``.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    letters: list[DeadLetterSummary] = []
    total = 0
    for feed, keys in feeds.items():
        with translated(client):
            total += await client.xlen(keys.quarantine)
        letters += await _newest_of(client, feed, keys, most)
        letters = sorted(letters, key=_when)[-most:]
    return Listed(tuple(letters), max(total - len(letters), 0))


async def opened(client: Redis, feed: str, keys: FeedKeys, entry: str) -> Opened | None:
    """A dead letter with its content; None: there is none.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    found = await _entry(client, keys, entry)
    if found is None:
        return None
    raw, digest = found[1].get(b"raw", b""), found[1].get(b"digest")
    if digest is None:
        return Opened(_letter(feed, found), raw, True if len(raw) < QUARANTINE_BYTES else None)
    return Opened(_letter(feed, found), raw, rejected_digest(raw) == digest)


async def drop(client: Redis, keys: FeedKeys, entry: str) -> bool:
    """Delete one of a feed's quarantined records. False: there is none.

    A record beyond 64 KiB that was written without its digest, by an older version, is dropped and not forgotten.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    found = await _entry(client, keys, entry)
    return found is not None and await _dropped(client, keys, [found]) == 1


async def drop_all(client: Redis, keys: FeedKeys) -> int:
    """Delete all present quarantined records of a feed. Returns their number. See :func:`drop`.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    count = 0
    async with aclosing(_backwards(client, keys)) as reading:  # towards the oldest, so that new entries stay
        async for entries in reading:
            count += await _dropped(client, keys, entries)
    return count


async def drop_where(
    client: Redis,
    keys: FeedKeys,
    is_wanted: Callable[[bytes, bytes], bool],
    before: Callable[[Sequence[bytes]], Awaitable[None]],
) -> int:
    """Delete the quarantined records that are chosen by their bytes and the reason. Returns their number.

    Args:
        client: of the store.
        keys: of the feed.
        is_wanted: chooses them.
        before: is awaited before some are deleted, with their entry ids.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    count = 0
    async with aclosing(_backwards(client, keys)) as reading:
        async for entries in reading:
            chosen = [one for one in entries if is_wanted(one[1].get(b"raw", b""), one[1].get(b"reason", b""))]
            if chosen:
                await before([entry for entry, _ in chosen])
                count += await _dropped(client, keys, chosen)
    return count


async def _newest_of(client: Redis, feed: str, keys: FeedKeys, most: int) -> list[DeadLetterSummary]:
    letters: list[DeadLetterSummary] = []
    async with aclosing(_backwards(client, keys)) as reading:
        async for entries in reading:
            letters += [_letter(feed, entry) for entry in entries[: most - len(letters)]]
            if len(letters) == most:
                break
    return letters


async def _backwards(client: Redis, keys: FeedKeys) -> AsyncGenerator[Sequence[_Entry]]:
    """The quarantine's entries from the newest to the oldest, some at a time."""
    before = "+"
    while True:
        with translated(client):
            entries = cast("list[_Entry]", await client.xrevrange(keys.quarantine, max=before, count=_AT_ONCE))
        if entries:
            yield entries
        if len(entries) < _AT_ONCE:
            return
        before = f"({entries[-1][0].decode()}"


async def _entry(client: Redis, keys: FeedKeys, entry: str) -> _Entry | None:
    with translated(client):
        found = cast("list[_Entry]", await client.xrange(keys.quarantine, entry, entry))
    return found[0] if found else None


async def _dropped(client: Redis, keys: FeedKeys, entries: Sequence[_Entry]) -> int:
    arguments: list[Any] = []
    for number, fields in entries:
        arguments += [number, fields.get(b"digest") or rejected_digest(fields.get(b"raw", b""))]
    with translated(client):
        return int(await client.eval(DROP, 2, keys.quarantine, keys.rejected, *arguments))


def _letter(feed: str, entry: _Entry) -> DeadLetterSummary:
    number, fields = entry[0].decode(), entry[1]
    milliseconds = min(EntryId.parse(number).ms, _LAST_MS)
    at = _EPOCH + timedelta(milliseconds=milliseconds)
    return DeadLetterSummary(
        id=f"{feed}:{number}",
        kind="record",
        feed=feed,
        at=at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        reason=fields.get(b"reason", b"").decode("utf-8", "replace"),
        bytes=len(fields.get(b"raw", b"")),
    )


def _when(letter: DeadLetterSummary) -> EntryId:
    return EntryId.parse(letter.id.rpartition(":")[2])


# Dead letters of one feed consumer; their contents are opaque here.

MOST_WAITING: Final = 1000
_DELETED_AT_ONCE: Final = 500

_REDELIVER: Final = lua("redeliver_letter")

_DROP: Final = lua("drop_letters")


class Moved(IntEnum):
    """The result of redelivering a dead letter."""

    ABSENT = 0
    MOVED = 1
    FULL = 2


class Owner(NamedTuple):
    """The subscription and the feed of dead letters."""

    feed: str
    subscription: str


class DeadLetterEntry(NamedTuple):
    """The place of a dead letter: its time in milliseconds, its subscription and feed, its entry."""

    at: int
    owner: Owner
    entry: str


async def newest_events(
    client: Redis, pairs: dict[Owner, ConsumerKeys], *, most: int
) -> tuple[list[DeadLetterEntry], int]:
    """The newest dead letters of these feed consumers, at most ``most``, the newest last; and their total number.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        asking = client.pipeline(transaction=False)
        for keys in pairs.values():
            asking.zcard(keys.letter_times)
            asking.zrevrange(keys.letter_times, 0, most - 1, withscores=True)
        answers = await asking.execute()
    found = [
        DeadLetterEntry(int(at), owner, entry.decode())
        for owner, newest_first in zip(pairs, answers[1::2], strict=True)
        for entry, at in newest_first
    ]
    return sorted(found)[-most:], sum(answers[0::2])


async def letters(client: Redis, places: Iterable[tuple[ConsumerKeys, str]]) -> list[bytes | None]:
    """The dead letters of these entries; None: there is none.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        asking = client.pipeline(transaction=False)
        for keys, entry in places:
            asking.hget(keys.letters, entry)
        return cast("list[bytes | None]", await asking.execute())


async def entries(client: Redis, keys: ConsumerKeys) -> list[str]:
    """The entries of all dead letters of a feed consumer, in stream order, also of those whose time the store has lost.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        found = cast("list[bytes]", await client.hkeys(keys.letters))
    return sorted((entry.decode() for entry in found), key=DeliveryId.parse)


async def redeliver(client: Redis, keys: ConsumerKeys, entry: str, *, letter: bytes, delivery: bytes) -> Moved:
    """Turn a dead letter into a scheduled retry, if it is unchanged.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    names = [keys.letters, keys.letter_times, keys.parked]
    with translated(client):
        return Moved(await client.eval(_REDELIVER, len(names), *names, entry, letter, delivery, MOST_WAITING))


async def drop_events(client: Redis, keys: ConsumerKeys, dropped: Sequence[str]) -> int:
    """Delete the dead letters of these entries. Returns their number.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    count = 0
    for some in (dropped[at : at + _DELETED_AT_ONCE] for at in range(0, len(dropped), _DELETED_AT_ONCE)):
        with translated(client):
            count += int(await client.eval(_DROP, 2, keys.letters, keys.letter_times, *some))
    return count


def pairs_of(prefix: str, feeds: Iterable[str], subscriptions: Iterable[str]) -> dict[Owner, ConsumerKeys]:
    """The keys of all feed consumers of these subscriptions and feeds."""
    named = list(subscriptions)
    owners = chain.from_iterable((Owner(feed, one) for one in named) for feed in feeds)
    return {owner: ConsumerKeys.of(prefix, owner.feed, owner.subscription) for owner in owners}
