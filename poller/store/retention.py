"""Retention of event streams: trimming, and the record of undelivered events that were trimmed.

Theory of operation
-------------------
Events go when they are older than ``retention.age`` and no reader needs them: no consumer group that has not read or
acknowledged them (the daemon's own or another's), no delivery that waits for its next attempt, no replay under way,
and no subscription that wants them and has not begun: it is paused, or its sink has not granted events. One that has
not begun and lists the feed no more needs them until a process that delivers has noted that nothing waits there.

``retention.max_bytes`` is the last resort: a stream that is larger loses its oldest events, needed or not, until it
fits. It is looked at only once no entry may go for its age. What a group loses then is an *overrun*: it lasts until the
group is past everything that was in the stream when it last lost something, and is published once; the row in
``overruns`` says whether it was.

A trim reads where every reader stands, decides, and lets a script cut. Readers that go forward in between cost nothing.
A reader that needs more than before is seen by the script: then no entry goes, and the trim reads again.

**Invariants**

- An entry goes for its age only if every reader is done with it, and what may go does go.
- A subscription that is removed while a stream is trimmed keeps no dead letter: the later of both deletes
  it. One script cannot check both, for on a cluster the registry is on another server.
- A reader never counts as further than it is. An entry that is gone from the stream is needed by no reader.
- Each script checks the feed's lease, and runs on a server that is out of memory: what it frees is what is missing.
- Entries go by whole nodes of the stream first, then the rest of one node; a script takes some milliseconds.

A stream's size is the server's estimate from :data:`SAMPLES` of its nodes: within 2 % where the sizes of events are
mixed, for a tenth of a millisecond; all nodes of a stream of 300 MB take 6 ms.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final, cast

import msgspec
from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from poller.clock import milliseconds_of, moment_of, rfc3339
from poller.errors import Fenced, StoreError
from poller.redis.errors import translated
from poller.store.backfill import is_backfilled
from poller.store.consumer_state import forget_unbegun
from poller.store.keys import ConsumerKeys, FeedKeys, group_of
from poller.store.scripts import ScriptBatch, ScriptCall, in_any_case, lua
from poller.store.stream import EARLIEST, EntryId, consumer_groups

FENCED: Final = b"FENCED"
REPLAY: Final = "replay:"


TRIM: Final = lua("trim")

SHRINK: Final = lua("shrink")

REPLACE: Final = lua("mark_overrun")


class TrimScripts:
    """The scripts, registered once for a client and shared by its feeds."""

    def __init__(self, client: Redis, *, shebang: str = "") -> None:
        """Register them; ``shebang`` is their first line where the server knows it."""
        first = in_any_case(shebang)
        self.trim: AsyncScript = client.register_script(first + TRIM)
        self.shrink: AsyncScript = client.register_script(first + SHRINK)
        self.replace: AsyncScript = client.register_script(first + REPLACE)


_ROOM: Final = 0.95  # of max_bytes that is left full, so that the next event does not trim again


class StreamExtent(msgspec.Struct, frozen=True, gc=False):
    """The size of a stream, and its first entry.

    Attributes:
        length: entries.
        size: bytes of memory.
        first: its first entry; None where it has none.
    """

    length: int
    size: int
    first: EntryId | None


class TrimUpTo(msgspec.Struct, frozen=True):
    """Entries up to this one go, for their age."""

    last: EntryId


class TrimToLength(msgspec.Struct, frozen=True):
    """The oldest entries go, until ``entries`` are left."""

    entries: int


def pressing(stream: StreamExtent, *, oldest: EntryId, max_bytes: int) -> bool:
    """Whether the stream exceeds one of its limits; see :func:`next_step`."""
    return stream.first is not None and (stream.first < oldest or stream.size > max_bytes)


def next_step(
    stream: StreamExtent, done: Mapping[str, EntryId], *, oldest: EntryId, max_bytes: int
) -> TrimUpTo | TrimToLength | None:
    """The next trim; None: nothing may go.

    Args:
        stream: the stream.
        done: for each reader, the entry up to which it needs none any more.
        oldest: entries before this place are old enough to go.
        max_bytes: how large the stream may be.
    """
    if stream.first is None:
        return None
    last = min((oldest.before, *done.values()))
    if stream.first <= last:
        return TrimUpTo(last)
    if stream.size > max_bytes:
        return TrimToLength(min(int(stream.length * max_bytes / stream.size * _ROOM), stream.length - 1))
    return None


def holder(stream: StreamExtent, done: Mapping[str, EntryId], *, oldest: EntryId) -> str | None:
    """The reader furthest behind that still needs the first entry, which is old enough to go."""
    if stream.first is None or stream.first >= oldest or not done:
        return None
    last = min(done, key=lambda name: (done[name], name))
    return last if done[last] < stream.first else None


SAMPLES: Final = 2000
_OURS: Final = group_of("")
_FIELDS: Final = ("place", "replay_after", "replay_to")


class WatchedConsumer(msgspec.Struct, frozen=True):
    """A feed consumer as trimming sees it.

    Attributes:
        keys: of the pair.
        earliest: whether it wants all there is, where it has not begun.
        new_after: the entry after which all is new to it; empty: not known.
    """

    keys: ConsumerKeys
    earliest: bool = False
    new_after: str = ""

    @property
    def start(self) -> str:
        """The entry after which it begins, where it has not; empty: it needs nothing yet."""
        return EARLIEST if self.earliest else self.new_after


Groups = Mapping[str, Mapping[str, Any]]
"""The server's description of each consumer group of a stream, by its name."""


async def stream_of(client: Redis, events: str) -> StreamExtent:
    """The extent of a stream; one that does not exist has no entries.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        asking = client.pipeline(transaction=False)
        asking.xlen(events)
        asking.memory_usage(events, samples=SAMPLES)
        asking.xrange(events, count=1)
        length, size, found = await asking.execute()
    return StreamExtent(length, size or 0, EntryId.parse(found[0][0]) if found else None)


_EXTENT: Final = lua("stream_extent")


class StreamLook(msgspec.Struct, frozen=True, gc=False):
    """What a regular look finds: the extent of a stream, and whether an overrun was not published yet."""

    extent: StreamExtent
    has_news: bool


async def looks(batch: ScriptBatch, feeds: Sequence[FeedKeys]) -> list[StreamLook | StoreError]:
    """A look at the stream of each of these feeds, in one request; in place of one that fails, its error."""
    calls = [ScriptCall(_EXTENT, (keys.events, keys.overruns), (SAMPLES,)) for keys in feeds]
    return [one if isinstance(one, StoreError) else _look(*one) for one in await batch.send(calls)]


def _look(length: int, size: int, first: bytes, rows: Sequence[bytes]) -> StreamLook:
    found = map(overrun_of, rows[::2], rows[1::2])
    has_news = any(one is not None and not one.is_announced for one in found)
    return StreamLook(StreamExtent(length, size, EntryId.parse(first) if first else None), has_news)


def pairs_of(
    groups: Groups, prefix: str, feed: str, known: Mapping[str, WatchedConsumer]
) -> dict[str, WatchedConsumer]:
    """The subscriptions of a feed by their groups: those that are known, and those that have a group all the same."""
    found = {group_of(name): one for name, one in known.items()}
    for name in groups:
        if name.startswith(_OURS) and name not in found:
            found[name] = WatchedConsumer(ConsumerKeys.of(prefix, feed, name.removeprefix(_OURS)))
    return found


async def done_of(
    client: Redis, events: str, first: EntryId, groups: Groups, pairs: Mapping[str, WatchedConsumer]
) -> dict[str, EntryId]:
    """By each group, the entry up to which it needs none any more.

    Args:
        client: of the store.
        events: the stream's key.
        first: its first entry.
        groups: its consumer groups.
        pairs: the subscriptions to it, by their groups, whether or not these are there.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    done = {name: EntryId.parse(group["last-delivered-id"]) for name, group in groups.items()}
    held = [name for name, group in groups.items() if group["pending"]]
    with translated(client):
        asking = client.pipeline(transaction=False)
        for name in held:
            asking.xpending_range(events, name, min=str(first), max="+", count=1)
        for one in pairs.values():
            asking.hmget(one.keys.state, list(_FIELDS))
            asking.hkeys(one.keys.parked)
        answers = await asking.execute()
    for name, found in zip(held, answers, strict=False):
        if found:
            done[name] = min(done[name], EntryId.parse(found[0]["message_id"]).before)
    rest = answers[len(held) :]
    for (name, one), kept, parked in zip(pairs.items(), rest[::2], rest[1::2], strict=True):
        stands = [done[name]] if name in done else _unbegun(one, kept)
        needs = [*stands, *_begun(kept, first), *_waiting(parked, first)]
        if needs:
            done[name] = min(needs)
    return done


async def held_by(client: Redis, prefix: str, feed: str, stream: StreamExtent, *, oldest: EntryId) -> str | None:
    """The consumer group for which the stream's first entry stays, though it is old enough to go; None: there is none.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    if stream.first is None or stream.first >= oldest:
        return None
    events = FeedKeys.of(prefix, feed).events
    groups = await consumer_groups(client, events)
    done = await done_of(client, events, stream.first, groups, pairs_of(groups, prefix, feed, {}))
    return holder(stream, done, oldest=oldest)


def _unbegun(one: WatchedConsumer, kept: list[bytes | None]) -> Iterable[EntryId]:
    """The start position of a consumer without a group."""
    if kept[0] is not None:
        yield EntryId.parse(kept[0])
    elif one.start:
        yield EntryId.parse(one.start)


def _begun(kept: list[bytes | None], first: EntryId) -> Iterable[EntryId]:
    """The position of its replay, if one is under way."""
    if kept[1] is not None and kept[2] is not None and EntryId.parse(kept[2]) >= first:
        yield EntryId.parse(kept[1])


def _waiting(parked: Iterable[bytes], first: EntryId) -> Iterable[EntryId]:
    """The place before the first delivery that waits and has its event in the stream."""
    in_stream = (entry for entry in parked if not is_backfilled(entry.decode()))
    there = [entry for entry in map(EntryId.parse, in_stream) if entry >= first]
    if there:
        yield min(there).before


_UNKNOWN: Final = "-"
_GROUP: Final = "sub:"


class StreamOverrun(msgspec.Struct, frozen=True):
    """Events that a group lost because the stream outgrew ``retention.max_bytes``.

    Attributes:
        name: the group, or ``replay:`` and the group.
        row: as stored.
        is_announced: whether it was published.
        at: when it began, UTC.
        first: the first entry that went.
        events: how many went, at most.
        sequence: of the first of them; None where it was not an event of the daemon.
        last_sequence: of the last; None likewise.
    """

    name: str
    row: bytes
    is_announced: bool
    at: datetime
    first: str
    events: int
    sequence: int | None
    last_sequence: int | None

    @property
    def replay(self) -> bool:
        """Whether what went was to be delivered once more."""
        return self.name.startswith(REPLAY)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.name.removeprefix(REPLAY)

    @property
    def subscription(self) -> str | None:
        """The subscription of the group; None for a group that is not the daemon's."""
        return self.group.removeprefix(_GROUP) if self.group.startswith(_GROUP) else None

    @property
    def announced_row(self) -> bytes:
        """The row that says that it was published."""
        return b"1" + self.row[1:]


def overrun_of(name: bytes, row: bytes) -> StreamOverrun | None:
    """An overrun from its row; None where another version wrote it in an unknown form."""
    parts = row.decode("utf-8", "replace").split(" ")
    try:
        is_announced, at, _, first, events, sequence, last, _, _ = parts
        return StreamOverrun(
            name.decode("utf-8", "replace"),
            row,
            is_announced == "1",
            moment_of(int(at)),
            first,
            int(events),
            _number(sequence),
            _number(last),
        )
    except (ValueError, OverflowError):
        return None


def _number(text: str) -> int | None:
    return None if text == _UNKNOWN else int(text)


_LOOKS: Final = 20  # of one call at most: each but the last has trimmed something, or found a reader that had moved
_MOST: Final = 10_000  # entries that one script takes away
_MOST_BYTES: Final = 16 * 1024 * 1024  # 2 ms
_LEAST: Final = 200  # entries; more than a node of the stream holds
_LOST: Final = '"the stream outgrew retention.max_bytes, and these went before they were delivered"'
_LOST_AGAIN: Final = '"the stream outgrew retention.max_bytes, and these went before they were delivered once more"'

Known = Callable[[], Awaitable[Mapping[str, WatchedConsumer]]]
"""Asks for the subscriptions to a feed, by id."""


class RetentionRule(msgspec.Struct, frozen=True):
    """The limits of a stream: the age of its events and its size in bytes."""

    age: timedelta
    max_bytes: int

    def oldest(self, now: datetime) -> EntryId:
        """Entries before this place are old enough to go."""
        return EntryId(max(milliseconds_of(now - self.age), 0))


class Trimmer:
    """Trims the stream of one feed, for the process that has the feed's lease."""

    def __init__(self, client: Redis, scripts: TrimScripts, *, prefix: str, feed: str, nonce: str) -> None:
        """Take what is worked with.

        Args:
            client: without retries of its own.
            scripts: of that client.
            prefix: of the store's keys.
            feed: ``SOURCE/NAME``.
            nonce: the token of the feed's lease.
        """
        self._client = client
        self._scripts = scripts
        self._prefix = prefix
        self._feed = feed
        self._nonce = nonce
        self._keys = FeedKeys.of(prefix, feed)

    async def trim(self, rule: RetentionRule, known: Known, *, now: datetime) -> int:
        """Trim the stream; returns how many entries went. Runs many scripts of some milliseconds each.

        Args:
            rule: how long events stay.
            known: the subscriptions to this feed; asked for only where something might go.
            now: the store's clock, UTC.

        Raises:
            Fenced: the feed's lease is another's.
            StoreError: what is gone is gone, by the same rule.
        """
        total, oldest = 0, rule.oldest(now)
        for _ in range(_LOOKS):
            stream = await stream_of(self._client, self._keys.events)
            if stream.first is None or not pressing(stream, oldest=oldest, max_bytes=rule.max_bytes):
                break
            groups = await consumer_groups(self._client, self._keys.events)
            pairs = pairs_of(groups, self._prefix, self._feed, await known())
            done = await done_of(self._client, self._keys.events, stream.first, groups, pairs)
            step = next_step(stream, done, oldest=oldest, max_bytes=rule.max_bytes)
            gone = 0 if step is None else await self._cut(step, stream, pairs, now)
            if gone == 0:
                break
            if isinstance(step, TrimToLength):
                await self._forget_removed(pairs, await known())
            total += gone or 0
        return total

    async def _forget_removed(self, pairs: Mapping[str, WatchedConsumer], known: Mapping[str, WatchedConsumer]) -> None:
        """Delete the dead letters of subscriptions that were removed since the readers were read."""
        for name, one in pairs.items():
            subscription = name.removeprefix(_OURS)
            if subscription not in known:
                await forget_unbegun(self._client, self._keys, one.keys, subscription, nonce=self._nonce)

    async def unannounced(self) -> list[StreamOverrun]:
        """The overruns that were not published yet.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        with translated(self._client):
            rows = cast("dict[bytes, bytes]", await self._client.hgetall(self._keys.overruns))
        found = (overrun_of(name, row) for name, row in rows.items())
        return [one for one in found if one is not None and not one.is_announced]

    async def mark_announced(self, overrun: StreamOverrun) -> None:
        """Mark an overrun as published, unless the group has lost more since.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        with translated(self._client):
            await self._scripts.replace([self._keys.overruns], [overrun.name, overrun.row, overrun.announced_row])

    async def _cut(
        self, step: TrimUpTo | TrimToLength, stream: StreamExtent, pairs: Mapping[str, WatchedConsumer], now: datetime
    ) -> int | None:
        """How many entries were trimmed; None: read the stream again."""
        most = max(_LEAST, min(_MOST, _MOST_BYTES * stream.length // max(stream.size, 1)))
        script, limits = self._scripts.trim, _limits(step, now)
        if isinstance(step, TrimToLength):
            script = self._scripts.shrink
        keys = self._keys
        names = [keys.lease, keys.events, keys.state, keys.overruns]
        names += chain.from_iterable(
            (one.keys.state, one.keys.letters, one.keys.letter_times) for one in pairs.values()
        )
        begins = chain.from_iterable((name, one.start) for name, one in pairs.items())
        arguments = [self._nonce, most, *limits, *begins]
        total = 0
        while True:
            with translated(self._client):
                gone: bytes | int = await script(names, arguments)
            if gone == FENCED:
                raise Fenced(f"lost lease {keys.lease}; nothing trimmed")
            if not isinstance(gone, int):  # CHANGED
                return total or None
            total += gone
            if gone * 2 < most:
                return total


def _limits(step: TrimUpTo | TrimToLength, now: datetime) -> list[str | int]:
    """The third to the eighth argument of the scripts."""
    if isinstance(step, TrimUpTo):
        return [str(step.last), str(step.last.following), "", "", "", ""]
    return [step.entries, milliseconds_of(now), rfc3339(now), _LOST, _LOST_AGAIN, ""]
