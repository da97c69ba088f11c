"""Event streams: ids of entries, and readers of any number of streams, from an entry on and then live.

Where the streams may be on different servers, none of them can wait for all: each stream is asked in turn, ten times a
second, or as seldom as keeps it at 5 000 questions a second.

**Invariants**

- Ids are compared as pairs of numbers, never as text. Nothing lies between an id and the one before it, nor between it
  and the one following it.
- Every entry after the start is given out once, in each stream's order.
- :func:`followed` waits for a store that is away, and goes on after the last entry that it gave out.
- A reader whose place is past the end of its stream is not left behind there: if the stream went back (an older copy,
  a failover) and grows again before that place, it is read from its beginning.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, KeysView, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from poller.clock import Clock
from poller.errors import StoreUnavailable
from poller.redis.client import scattered
from poller.redis.errors import translated
from poller.store.scripts import lua

_LARGEST: Final = 2**64 - 1
_DIGITS: Final = len(str(_LARGEST))


class EntryId(NamedTuple):
    """The id of an entry: milliseconds since 1970, and a number within that millisecond."""

    ms: int
    n: int = 0

    @classmethod
    @lru_cache(maxsize=512)  # all subscriptions of a feed look at the same entries, and each several times
    def parse(cls, text: str | bytes) -> EntryId:
        """The id from what the store answers; a missing number is 0.

        Raises:
            ValueError: it is no id.
        """
        ms, _, n = (text if isinstance(text, str) else text.decode()).partition("-")
        return tuple.__new__(cls, (int(ms), int(n or 0)))  # as cls(…) does, in two thirds of the time

    @classmethod
    def checked(cls, text: str) -> EntryId:
        """The id from what a person or a client wrote.

        Raises:
            ValueError: it is no id that an entry may have.
        """
        ms, dash, n = text.partition("-")
        if not all(one.isascii() and one.isdecimal() and len(one) <= _DIGITS for one in (ms, n if dash else "0")):
            raise ValueError("not an entry's id")
        found = cls(int(ms), int(n or 0))
        if max(found) > _LARGEST:
            raise ValueError("not an entry's id")
        return found

    @property
    def before(self) -> EntryId:
        """The id just before this one; the first is its own."""
        if self.n:
            return EntryId(self.ms, self.n - 1)
        return EntryId(self.ms - 1, _LARGEST) if self.ms else self

    @property
    def following(self) -> EntryId:
        """The id just after this one; the last is its own."""
        if self.n < _LARGEST:
            return EntryId(self.ms, self.n + 1)
        return EntryId(self.ms + 1, 0) if self.ms < _LARGEST else self

    def __str__(self) -> str:
        """As the store writes it."""
        return f"{self.ms}-{self.n}"


FIRST_ID: Final = EntryId(0, 0)
"""Before every entry: no entry has it."""

LAST_ID: Final = EntryId(_LARGEST, _LARGEST)

EARLIEST: Final = str(FIRST_ID)
"""The text after which a reader reads all that a stream holds."""


def before(entry: str) -> str:
    """The text of the id just before this one."""
    return str(EntryId.parse(entry).before)


def before_moment(moment: int) -> str:
    """The text of the id just before those of a moment, in milliseconds; empty for 0, which is not known."""
    return before(f"{moment}-0") if moment else ""


LOOK_BACK: Final = timedelta(seconds=10)
"""How often to look whether a stream has lost its last entries, as one does in a failover."""
_ENTRIES: Final = 200
_FEW: Final = 2  # if fewer have come, the last of them is the end of its stream
_BETWEEN_QUESTIONS: Final = 0.1  # seconds
_QUESTIONS: Final = 5000  # a second
_KEYS_AT_ONCE: Final = 500

_LAST_IDS: Final = lua("last_ids")

_Found = dict[str, list[tuple[bytes, dict[bytes, bytes]]]]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event's place in a stream: the stream's key, the entry's id, the event as JSON."""

    key: str
    id: str
    event: bytes


async def consumer_groups(client: Redis, key: str) -> dict[str, Mapping[str, Any]]:
    """The consumer groups of a stream by name, as XINFO GROUPS describes them; none where there is no stream.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        try:
            found: Any = await client.xinfo_groups(key)
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            return {}
    return {one["name"].decode("utf-8", "surrogateescape"): one for one in found}


async def last_id(client: Redis, key: str) -> str:
    """The id of a stream's last entry; :data:`EARLIEST` where it has none. What follows it is new."""
    with translated(client):
        newest = cast("list[tuple[bytes, object]]", await client.xrevrange(key, count=1))
    return newest[0][0].decode() if newest else EARLIEST


async def follow(
    client: Redis,
    start: Mapping[str, str],
    *,
    block: timedelta | None,
    clock: Clock,
) -> AsyncGenerator[list[Entry]]:
    """Entries after the given ids, as they are there and then as they come, some at a time.

    Args:
        client: one for blocking reads (:func:`poller.redis.client.blocking`), with room for ``block``.
        start: for each stream's key the id to start after.
        block: how long to wait for something new before an empty list is given out; None: end instead of waiting.
        clock: of this process.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`. Start again after the last entries' ids.
    """
    after = dict(start)
    while True:
        found = await _read(client, after, most=_ENTRIES, block=block, clock=clock)
        entries = [
            Entry(name, number.decode(), fields.get(b"data", b""))
            for name, some in found.items()
            for number, fields in some
        ]
        for entry in entries:
            after[entry.key] = entry.id
        if entries or block is not None:
            yield entries
        else:
            return


async def arrivals(
    client: Redis,
    keys: Iterable[str],
    *,
    block: timedelta,
    look_back: timedelta = LOOK_BACK,
    clock: Clock,
) -> AsyncGenerator[KeysView[str]]:
    """The keys of the streams in which something new has come, again and again; after ``block`` without, none.

    Whatever is in a stream when its key is yielded may be read then; for later entries the key is yielded again. The
    key of a stream that went back is yielded, too, and again when it grows.

    Args:
        client: one for blocking reads (:func:`poller.redis.client.blocking`), with room for ``block``.
        keys: of the streams.
        block: how long to wait.
        look_back: how often to look for lost entries.
        clock: of this process.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`. Start again, and read everything once.
    """
    after, looked = await last_ids(client, list(keys)), clock.monotonic()
    yield after.keys()
    while True:
        found = await _read(client, after, most=_FEW, block=block, clock=clock)
        fresh = dict.fromkeys(found)
        if clock.monotonic() - looked >= look_back.total_seconds():
            ids, looked = await last_ids(client, list(after)), clock.monotonic()
            fresh |= dict.fromkeys(key for key in after if ids[key] != after[key])
            after = ids
        elif found:  # past all that is there: one look for a burst, however long it is; a few entries need none
            after |= {key: entries[-1][0].decode() for key, entries in found.items()}
            bursts = [key for key, entries in found.items() if len(entries) == _FEW]
            after |= await last_ids(client, bursts) if bursts else {}
        yield fresh.keys()


async def _read(
    client: Redis,
    after: Mapping[str, str],
    *,
    most: int,
    block: timedelta | None,
    clock: Clock,
) -> _Found:
    """Up to ``most`` entries of each stream that has some; of none after ``block``."""
    if not scattered(client):
        milliseconds = None if block is None else int(block.total_seconds() * 1000)
        with translated(client):
            return _found(await client.xread(cast("Any", after), count=most, block=milliseconds))
    deadline = clock.monotonic() + (block or timedelta()).total_seconds()
    pause = max(_BETWEEN_QUESTIONS, len(after) / _QUESTIONS)
    while True:
        found = await _asked(client, after, most)
        left = deadline - clock.monotonic()
        if found or left <= 0:
            return found
        await clock.sleep(min(pause, left))


async def _asked(client: Redis, after: Mapping[str, str], most: int) -> _Found:
    found: _Found = {}
    with translated(client):
        asking = client.pipeline(transaction=False)
        for key, place in after.items():
            asking.xread({key: place}, count=most)
        for answer in await asking.execute():
            found |= _found(answer)
    return found


def _found(answer: Any) -> _Found:
    """Of XREAD: pairs of name and entries; with RESP3 each name's entries in a list of their own.

    Redis 7.0 answers a waiting reader with no entries where a script has added one and deleted it.
    """
    pairs = [(name, some[0]) for name, some in answer.items()] if isinstance(answer, dict) else answer or []
    return {name.decode(): some for name, some in pairs if some}


async def last_ids(client: Redis, keys: Sequence[str]) -> dict[str, str]:
    """Where each stream ends: the id of its last entry, also if that was deleted; :data:`EARLIEST`: there is no stream.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    at_once = 1 if scattered(client) else _KEYS_AT_ONCE
    ids: list[bytes] = []
    with translated(client):
        asking = client.pipeline(transaction=False)
        for some in (keys[at : at + at_once] for at in range(0, len(keys), at_once)):
            asking.eval(_LAST_IDS, len(some), *some)
        for answer in await asking.execute():
            ids += answer
    return {key: found.decode() for key, found in zip(keys, ids, strict=True)}


async def append(client: Redis, key: str, event: bytes, *, most: int) -> None:
    """Add an event to a stream that is trimmed to about ``most`` entries.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        await client.xadd(key, {"data": event}, maxlen=most, approximate=True)


class RollbackWatch:
    """Notices that a reader's place in a stream is one that the store does not know any more.

    A store that goes back may give lower ids to what comes next, if its clock is behind or was ahead once. A process
    that knew the feed before prevents that (:mod:`poller.store.recovery`); so a reader waits until the stream grows.
    """

    def __init__(self) -> None:
        """Begin without a place past the end."""
        self._ends: dict[str, str] = {}

    def is_lost(self, key: str, place: EntryId, end: str) -> bool:
        """Whether entries have come before this place since the stream went back behind it.

        Args:
            key: of the stream.
            place: the id of an entry that the reader got.
            end: the last id of the stream now, from :func:`last_ids`.
        """
        before = self._ends.pop(key, end)
        if EntryId.parse(end) >= place:
            return False
        if before == end:
            self._ends[key] = end
        return before != end


_FIRST_PAUSE: Final = 0.1  # seconds before the store is asked again; doubles up to
_LONGEST_PAUSE: Final = 2.0


async def followed(
    client: Redis,
    start: Mapping[str, str],
    *,
    block: timedelta,
    away: Callable[[StoreUnavailable], None],
    back: Callable[[str], None] = lambda _: None,
    clock: Clock,
) -> AsyncGenerator[list[Entry]]:
    """Entries as they come, some at a time, the oldest first; an empty list where nothing came for ``block``.

    Args:
        client: for blocking reads, with room for ``block``.
        start: for each stream's key the id to start after.
        block: how long to wait before an empty list.
        away: called once each time that the store becomes unavailable.
        back: called with the key of a stream that went back and is read from its beginning.
        clock: of this process.

    Raises:
        StoreRefused: the store refuses access.
    """
    after, given, watch = dict(start), dict[str, EntryId](), RollbackWatch()
    pause, looked = _FIRST_PAUSE, clock.monotonic()
    while True:
        try:
            async with aclosing(follow(client, after, block=block, clock=clock)) as reading:
                async for entries in reading:
                    pause = _FIRST_PAUSE
                    after.update((entry.key, entry.id) for entry in entries)
                    given.update((entry.key, EntryId.parse(entry.id)) for entry in entries)
                    yield sorted(entries, key=lambda entry: EntryId.parse(entry.id))
                    if not given or clock.monotonic() - looked < LOOK_BACK.total_seconds():
                        continue
                    ends, looked = await last_ids(client, list(given)), clock.monotonic()
                    lost = [key for key, place in given.items() if watch.is_lost(key, place, ends[key])]
                    for key in lost:
                        back(key)
                        after[key] = EARLIEST
                        del given[key]
                    if lost:
                        break
        except StoreUnavailable as error:
            if pause == _FIRST_PAUSE:
                away(error)
        await clock.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
