"""Erases what the store of one feed holds of a record.

Theory of operation
-------------------
An erasure has two parts. The first is one script: it replaces the record's snapshot by a tombstone without content,
raises the feed's sequence number by one, and notes the record as erased, with a place in the stream that comes after
all that was published of it. From then on nothing that began before can be written:

- a commit names the sequence number that it was planned on, and is refused. Its round fails, and the next one begins
  with what is stored now;
- a settlement of deliveries names the last erasure that its process knows of, and is refused until the process has read
  this one and left out what is of the record.

The second part looks for what was written before, and deletes it: dead letters first, then scheduled retries (a dead
letter becomes one, never the other way round without a settlement), quarantined records, and at last the stream, up to
that place. It may be broken off anywhere. Erasing the record again begins with the first part again and finds the rest.

What is found is counted in a *tally*, which is stored beside the mark of the erasure, each time before what it counts
is deleted. It goes when the operational event of the erasure is published. So an erasure that was broken off after it
had deleted all of it is announced all the same, by the next one of the record, or by the daemon once it is complete.

One erasure of a record has the tally at a time: the one that has opened it last. It draws a nonce and goes on with what
the former one has counted. From then on each write of the former one is refused, in one step with the comparison of the
nonce: it deletes nothing that is not counted, announces nothing, and ends with an error. A complete tally changes no
more: the next erasure announces it and begins another one. An event that is repeated by that has the same id.

**Invariants**

- Revision and order stay: a record that comes back has the next revision and a higher sequence number.
- What is published of the record after the first part stays.
- An event is deleted in one step with its acknowledgement in each consumer group, so no reader gets it without its
  content. Its sequence number is noted as erased.
- A record is looked for by its id as text. The text and the integer of the same digits are one: events do not tell
  them apart.
- A tally misses nothing and counts nothing twice, whichever process dies or is superseded; but for deliveries that were
  acknowledged, of which the last ones may be missing. It names what was counted last, which may not be deleted yet.
- Memory is bounded: about 1 MiB of the stream, of dead letters or of the quarantine at a time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from typing import Any, Final, NamedTuple, cast

import msgspec
from redis.asyncio import Redis

from poller.changes.diff import Snapshot
from poller.clock import Clock, milliseconds_of
from poller.errors import ErasureSuperseded, StoreError
from poller.redis.errors import translated
from poller.store import dead_letters
from poller.store.backfill import DeliveryId
from poller.store.feed_state import FORMS
from poller.store.keys import ConsumerKeys, FeedKeys
from poller.store.scripts import lua
from poller.store.snapshots import FORM, SnapshotCodec, SnapshotHead, former_name, key_of, name_of
from poller.store.stream import EARLIEST, EntryId

MARKED_FOR: Final = timedelta(days=30)
"""How long an erasure is noted: longer than a process holds deliveries that it has read."""

NUMBERS: Final = 100_000
"""Sequence numbers that are noted as erased, at most."""

_ERASE_RECORD: Final = lua("erase_record")
_ERASE_EVENTS: Final = lua("erase_events")
_OPEN_TALLY: Final = lua("open_tally")
_STORE_TALLY: Final = lua("store_tally")
_FORGET_TALLY: Final = lua("forget_tally")
_CHANGED: Final = b"CHANGED"
_SUPERSEDED: Final = b"SUPERSEDED"
_UNANNOUNCED: Final = "unannounced:"  # before a record's key, the field of its tally
_FIELD: Final = _UNANNOUNCED.encode()
_ATTEMPTS: Final = 1000  # of the first part: each commit of a round in between costs one
_LETTERS: Final = 16  # at a time, of at most some 70 KiB each
_FEW: Final = 50  # entries of the first request
_MOST: Final = 2000
_BYTES: Final = 1024 * 1024  # of one request, about
_GROWTH: Final = 4  # from one request to the next, should small entries be followed by large ones
_DELETED: Final = 500  # entries of one script


class ErasureTally(msgspec.Struct, omit_defaults=True):
    """What the erasure of a record has found, until its operational event is published.

    Attributes:
        id: of the record, as it was asked for.
        by: who wants it.
        reason: why; empty: not said.
        at_ms: when it began.
        place: see :class:`BegunErasure`; empty: the first part is not done.
        revision: of the record's last event; 0: unknown.
        snapshots, retries, dead_letters, quarantined, held_versions: how many of these.
        sequences: of the events.
        unnumbered: how many events had no sequence number.
        acknowledged: how many pending deliveries of consumer groups were acknowledged.
        counted: names of what was counted last, which may not be deleted yet; sequences need none.
        is_complete: whether all is deleted.
    """

    id: str
    by: str
    reason: str
    at_ms: int
    place: str = ""
    revision: int = 0
    snapshots: int = 0
    retries: int = 0
    dead_letters: int = 0
    quarantined: int = 0
    held_versions: int = 0
    sequences: list[int] = []
    unnumbered: int = 0
    acknowledged: int = 0
    counted: list[str] = []
    is_complete: bool = False

    @property
    def events(self) -> int:
        """How many events."""
        return len(self.sequences) + self.unnumbered

    @property
    def total(self) -> int:
        """How much was found; 0: there is nothing to announce."""
        found = self.events + self.retries + self.dead_letters + self.quarantined
        return found + self.snapshots + self.held_versions

    def following(self, *, snapshots: int, held_versions: int, revision: int) -> ErasureTally:
        """This one after the first part."""
        return msgspec.structs.replace(
            self,
            place="",
            revision=revision,
            snapshots=self.snapshots + snapshots,
            held_versions=self.held_versions + held_versions,
            is_complete=False,
        )

    def joined(self, former: ErasureTally | None) -> ErasureTally:
        """This one with what a complete one before it has found."""
        if former is None:
            return self
        counts = ("snapshots", "retries", "dead_letters", "quarantined", "held_versions", "unnumbered", "acknowledged")
        return msgspec.structs.replace(
            self,
            sequences=sorted({*former.sequences, *self.sequences}),
            **{name: getattr(self, name) + getattr(former, name) for name in counts},
        )

    @property
    def stored(self) -> bytes:
        """As it is stored: the place, a space, and the rest in JSON."""
        return (self.place or EARLIEST).encode() + b" " + self.content

    @property
    def content(self) -> bytes:
        """All but the place, in JSON."""
        return _encode_tally(msgspec.structs.replace(self, place=""))

    @classmethod
    def parse(cls, stored: bytes | None) -> ErasureTally | None:
        """The tally that is stored; None: there is none, or it cannot be read."""
        place, _, content = (stored or b"").partition(b" ")
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            found = _decode_tally(content)
            found.place = "" if place == EARLIEST.encode() else place.decode()
            return found
        return None


_encode_tally: Final = msgspec.json.Encoder().encode
_decode_tally: Final = msgspec.json.Decoder(ErasureTally).decode


class BegunErasure(msgspec.Struct, frozen=True):
    """What the first part has done.

    Attributes:
        place: in the stream: what was published of the record before has lower ids.
        number: of the erasure.
        snapshots: how many snapshots have lost their content.
        held_versions: how many held versions were forgotten.
        revision: of the record's last event; 0: unknown.
    """

    place: str
    number: int
    snapshots: int
    held_versions: int
    revision: int


class ErasedEvents(msgspec.Struct, frozen=True):
    """What was deleted in a part of the stream.

    Attributes:
        looked_at: how many entries were looked at.
        events: how many were deleted.
        acknowledged: how many pending deliveries of consumer groups were acknowledged.
        sequences: of the deleted ones, as far as they are known.
    """

    looked_at: int
    events: int = 0
    acknowledged: int = 0
    sequences: tuple[int, ...] = ()


class _FoundSnapshots(msgspec.Struct, frozen=True):
    generation: str
    sequence: str
    forms: str
    tally: bytes
    held_versions: int
    stored: Mapping[bytes, bytes]


class FeedErasure:
    """Erases a record from the store of one feed. Each method may raise StoreError.

    Attributes:
        tally: what was found of the record; it is stored once :meth:`open_tally` or :meth:`place_tombstone` is done.
        former: the tally of a complete erasure before this one, whose announcement was missing.
    """

    def __init__(self, client: Redis, keys: FeedKeys, *, clock: Clock) -> None:
        """Take the store's client, the feed's keys and the store's clock."""
        self.tally = ErasureTally("", "", "", milliseconds_of(clock.now()))
        self.former: ErasureTally | None = None
        self._client = client
        self._keys = keys
        self._clock = clock
        self._tally_key = ""  # the record's key in the queues of deliveries; empty: the tally is not stored
        self._nonce = ""  # empty: the tally was not opened
        self._inherited = frozenset[str]()  # names of what the erasure before this one may have counted and not deleted

    @property
    def found(self) -> ErasureTally:
        """What was found of the record, also by a complete erasure before this one that was not announced."""
        return self.tally.joined(self.former)

    async def open_tally(self, delivery_key: str, *, record: str, by: str, reason: str) -> ErasureTally | None:
        """Take the record's stored tally over and go on with it, or begin one.

        Args:
            delivery_key: the record's key in the queues of deliveries.
            record: its id.
            by: who wants it erased.
            reason: why; empty: not said.

        Returns:
            The tally of a complete erasure that was not announced. Announce it before anything else: it goes with the
            first thing that is found.
        """
        self._tally_key, self._nonce = delivery_key, f"{self._clock.random.getrandbits(128):032x}"
        now_ms = milliseconds_of(self._clock.now())
        with translated(self._client):
            stored: Any = await self._client.eval(
                _OPEN_TALLY, 1, self._keys.erased, delivery_key, self._nonce, cast("Any", now_ms)
            )
        self.tally, earlier = ErasureTally(record, by, reason, now_ms), ErasureTally.parse(stored)
        self.former = earlier if earlier is not None and earlier.is_complete else None
        if earlier is not None and self.former is None:
            self.tally = msgspec.structs.replace(earlier, id=record, by=by, reason=reason or earlier.reason)
            self._inherited = frozenset(earlier.counted)
        return self.former

    async def complete_tally(self) -> bool:
        """Note that all is deleted, and only the operational event is missing. False: there is nothing to announce.

        Raises:
            ErasureSuperseded: another erasure of the record has begun.
        """
        if not self.tally.total:
            await self._write_tally(b"", ended=True)
            return False
        self.tally.is_complete, self.tally.counted = True, []
        await self._store_tally()
        return True

    async def close_tally(self) -> None:
        """Forget the tally; the operational event is published.

        An erasure that has begun since has announced it, too.
        """
        with suppress(ErasureSuperseded):
            await self._write_tally(b"", ended=True)

    async def _store_tally(self) -> None:
        if self._tally_key:
            await self._write_tally(self.tally.stored)

    async def _write_tally(self, tally: bytes, *, ended: bool = False) -> None:
        """Store it, or forget it if it is empty; in both cases only while no other erasure has taken it over."""
        arguments: list[Any] = [self._tally_key, self._nonce, tally, int(ended)]
        with translated(self._client):
            is_written = await self._client.eval(_STORE_TALLY, 1, self._keys.erased, *arguments)
        if not is_written:
            raise ErasureSuperseded(_superseded_text(self._keys.feed))

    def _uncounted(self, kind: str, entries: Iterable[bytes | str]) -> int:
        """How many of these the erasure before this one has not counted. They are named in the tally."""
        names = {f"{kind} {one.decode() if isinstance(one, bytes) else one}" for one in entries}
        self.tally.counted = sorted(names | self._inherited)
        return len(names - self._inherited)

    async def place_tombstone(self, record_keys: Sequence[str], delivery_key: str) -> BegunErasure:
        """The first part. A record that is erased as it stands gives the place of that erasure; nothing is written.

        Args:
            record_keys: the keys that the record may have.
            delivery_key: its key in the queues of deliveries.
        """
        for _ in range(_ATTEMPTS):
            found = await self._found(record_keys, delivery_key)
            if (former := await self._former(found, delivery_key)) is not None:
                return former
            begun = await self._begun(found, record_keys, delivery_key)
            if begun is not None:
                return begun
        raise StoreError(f"{self._keys.feed} was written again and again meanwhile; nothing was erased, try again")

    async def _found(self, record_keys: Sequence[str], delivery_key: str) -> _FoundSnapshots:
        formers = (name for key in record_keys if (name := former_name(key)))
        names: Any = [*map(name_of, record_keys), *formers]
        held_keys: Any = list(record_keys)
        state: Any = ["generation", "sequence", FORMS]
        with translated(self._client):
            asking = self._client.pipeline(transaction=False)
            asking.hmget(self._keys.state, state)
            asking.hmget(self._keys.snapshots, names)
            asking.hget(self._keys.erased, f"{_UNANNOUNCED}{delivery_key}")
            asking.hmget(self._keys.held_versions, held_keys)
            (generation, sequence, forms), values, tally, held = await asking.execute()
        forms, tally = (forms or b"1").decode(), tally or b""
        if not self._nonce:
            self.tally = ErasureTally.parse(tally) or self.tally
        stored = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        if generation is None or sequence is None:  # nothing is kept of the feed; the next round begins it
            return _FoundSnapshots("", "", forms, tally, 0, {})
        held_versions = sum(one is not None for one in held)
        return _FoundSnapshots(generation.decode(), sequence.decode(), forms, tally, held_versions, stored)

    async def _former(self, found: _FoundSnapshots, delivery_key: str) -> BegunErasure | None:
        """The erasure that has left what was found; None: there is something to erase, or it is not certain.

        A tombstone that a removal has left may be empty, too. Only that of an erasure has a number which an erasure has
        taken: numbers of erased events are noted with leading zeros.
        """
        heads = [SnapshotHead.of(value, sequence=int(found.sequence or 0)) for value in found.stored.values()]
        if not heads and self.former is not None and not self.tally.total:  # of a record without a snapshot
            with translated(self._client):
                number = await self._client.hget(self._keys.erased, "number")
            return BegunErasure(self.former.place, int(number or 0), 0, 0, self.former.revision)
        if not heads or not all(head.removed and head.is_empty and head.sequence for head in heads):
            return None
        names: Any = ["number", f"record:{delivery_key}"]
        with translated(self._client):
            asking = self._client.pipeline(transaction=False)
            asking.hmget(self._keys.erased, names)
            for head in heads:
                asking.zrangebyscore(self._keys.erased_events, head.sequence, head.sequence)
            (number, mark), *taken = await asking.execute()
        is_erased = all(b"%d" % head.sequence in noted for head, noted in zip(heads, taken, strict=True))
        if number is None or mark is None or found.held_versions or not is_erased:
            return None
        place, revision = mark.decode().partition(" ")[0], max(head.revision for head in heads)
        self.tally = msgspec.structs.replace(self.tally, place=place, revision=revision)
        return BegunErasure(place, int(number), 0, 0, revision)

    async def _begun(
        self, found: _FoundSnapshots, record_keys: Sequence[str], delivery_key: str
    ) -> BegunErasure | None:
        """None: the feed is not as it was found."""
        keys, now_ms = self._keys, milliseconds_of(self._clock.now())
        following = int(found.sequence or 0) + 1
        heads = [SnapshotHead.of(value, sequence=following - 1) for value in found.stored.values()]
        tombstones = chain.from_iterable(
            (name, value, _tombstone(key_of(name), head, following, now_ms))
            for (name, value), head in zip(found.stored.items(), heads, strict=True)
        )
        names = [keys.state, keys.snapshots, keys.events, keys.page_digests, keys.held_versions]
        names += [keys.erased, keys.erased_events]
        erased = sum(not (head.removed and head.is_empty) for head in heads)
        revision = max((head.revision for head in heads), default=0)
        tally = self.tally.following(snapshots=erased, held_versions=found.held_versions, revision=revision)
        live = sum(not head.removed for head in heads)
        arguments: list[Any] = [found.generation, found.sequence, FORMS, found.forms, delivery_key, now_ms]
        arguments += [MARKED_FOR // timedelta(milliseconds=1), live, found.tally, tally.content]
        arguments += [self._nonce, found.held_versions, len(record_keys), *record_keys, *tombstones]
        with translated(self._client):
            answer: Any = await self._client.eval(_ERASE_RECORD, len(names), *names, *arguments)
        if answer == _SUPERSEDED:
            raise ErasureSuperseded(_superseded_text(self._keys.feed))
        if answer == _CHANGED:
            return None
        place, number, held = answer
        tally.place = place.decode()
        self.tally, self._tally_key = tally, delivery_key
        return BegunErasure(place.decode(), int(number), erased, held, revision)

    async def unaware(self, pairs: Iterable[ConsumerKeys], number: int) -> list[ConsumerKeys]:
        """The feed consumers among these that a process runs which does not know of this erasure yet."""
        asked = list(pairs)
        with translated(self._client):
            asking = self._client.pipeline(transaction=False)
            for pair in asked:
                asking.exists(pair.lease)
                asking.hget(pair.state, "erasures")
            answers: list[Any] = await asking.execute() if asked else []
        return [
            pair
            for pair, runs, known in zip(asked, answers[::2], answers[1::2], strict=True)
            if runs and int(known or 0) < number
        ]

    async def erase_letters(self, pair: ConsumerKeys, is_of_record: Callable[[bytes], bool]) -> int:
        """Delete the dead letters of the record; their number."""
        entries, erased = await dead_letters.entries(self._client, pair), 0
        for at in range(0, len(entries), _LETTERS):
            some = entries[at : at + _LETTERS]
            found = await dead_letters.letters(self._client, [(pair, entry) for entry in some])
            gone = [entry for entry, letter in zip(some, found, strict=True) if letter and is_of_record(letter)]
            if gone:
                self.tally.dead_letters += self._uncounted(pair.letters, (str(entry) for entry in gone))
                await self._store_tally()
                erased += await dead_letters.drop_events(self._client, pair, gone)
        return erased

    async def erase_retries(self, pair: ConsumerKeys, place: str, is_of_record: Callable[[bytes], bool]) -> int:
        """Delete the scheduled retries of the record from before the place; their number."""
        with translated(self._client):
            entries = cast("list[bytes]", await self._client.hkeys(pair.parked))
        end, erased = DeliveryId(*EntryId.parse(place)), 0
        for at in range(0, len(entries), _LETTERS):
            some: Any = [entry for entry in entries[at : at + _LETTERS] if DeliveryId.parse(entry) < end]
            if not some:
                continue
            with translated(self._client):
                found: Any = await self._client.hmget(pair.parked, some)
            gone = [entry for entry, value in zip(some, found, strict=True) if value and is_of_record(value)]
            if gone:
                self.tally.retries += self._uncounted(pair.parked, gone)
                await self._store_tally()
                with translated(self._client):
                    erased += await self._client.hdel(pair.parked, *gone)
        return erased

    async def erase_quarantined(self, is_of_record: Callable[[bytes, bytes], bool]) -> int:
        """Delete the quarantined copies that are chosen by their bytes and the reason; their number."""
        return await dead_letters.drop_where(self._client, self._keys, is_of_record, self._note_quarantined)

    async def _note_quarantined(self, entries: Sequence[bytes]) -> None:
        self.tally.quarantined += self._uncounted("quarantine", entries)
        await self._store_tally()

    async def erase_events(
        self, place: str, sequence_of: Callable[[bytes], str | None]
    ) -> AsyncGenerator[ErasedEvents]:
        """Delete the record's events from before the place, the oldest first.

        Args:
            place: see :class:`BegunErasure`.
            sequence_of: the sequence number of an event of the record, empty where it has none; None: it is another
                record's.
        """
        most, start = _FEW, "-"
        while True:
            with translated(self._client):
                answer: Any = await self._client.xrange(self._keys.events, start, f"({place}", count=most)
            entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", answer)
            gone: list[tuple[bytes, str]] = []
            size = 0
            for name, fields in entries:
                content = fields.get(b"data", b"")
                size += len(content)
                if (sequence := sequence_of(content)) is not None:
                    gone.append((name, sequence))
            yield await self._deleted(gone, len(entries))
            if len(entries) < most:
                return
            start = f"({entries[-1][0].decode()}"
            most = max(1, min(_MOST, _GROWTH * most, _BYTES * len(entries) // max(size, 1)))

    async def _deleted(self, gone: Sequence[tuple[bytes, str]], looked_at: int) -> ErasedEvents:
        events = acknowledged = 0
        names = [self._keys.events, self._keys.erased_events]
        if gone:
            numbers = {int(one) for _, one in gone if one}
            self.tally.sequences = sorted(numbers.union(self.tally.sequences))
            self.tally.unnumbered += self._uncounted("events", (name for name, one in gone if not one))
            await self._store_tally()
        for at in range(0, len(gone), _DELETED):
            some: list[Any] = list(chain.from_iterable(gone[at : at + _DELETED]))
            with translated(self._client):
                deleted, acked = await self._client.eval(_ERASE_EVENTS, len(names), *names, NUMBERS, *some)
            events, acknowledged = events + deleted, acknowledged + acked
        self.tally.acknowledged += acknowledged
        return ErasedEvents(looked_at, events, acknowledged, tuple(int(one) for _, one in gone if one))


def _superseded_text(feed: str) -> str:
    return (
        f"another erasure of this record of {feed} has begun, and goes on with what this one has counted; this one has "
        "ended, and announces nothing. Wait for the other one; if it has failed, erase the record again"
    )


def _tombstone(key: str, head: SnapshotHead, sequence: int, now_ms: int) -> bytes:
    codec = SnapshotCodec(form=FORM if head.is_sealed else 1)
    return codec.encode(key, Snapshot(head.revision, sequence, b"", removed=True, changed_at=now_ms // 1000))


class CompleteTally(NamedTuple):
    """The tally of a complete erasure that was not announced.

    Attributes:
        tally: what was found.
        field: where it is stored.
        stored: its bytes there.
    """

    tally: ErasureTally
    field: bytes
    stored: bytes


async def complete_tallies(client: Redis, keys: FeedKeys, *, before_ms: int) -> list[CompleteTally]:
    """The tallies of erasures that are complete and not announced; of those that began before then.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        found = cast("dict[bytes, bytes]", await client.hgetall(keys.erased))
    parsed = ((name, ErasureTally.parse(value), value) for name, value in found.items() if name.startswith(_FIELD))
    return [
        CompleteTally(one, name, value)
        for name, one, value in parsed
        if one and one.is_complete and one.at_ms < before_ms
    ]


async def forget_tally(client: Redis, keys: FeedKeys, complete: CompleteTally) -> None:
    """Forget this tally, unless another one stands there by now; its operational event is published.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    arguments: list[Any] = [complete.field, complete.stored]
    with translated(client):
        await client.eval(_FORGET_TALLY, 1, keys.erased, *arguments)


async def is_number_of_erasure(client: Redis, keys: FeedKeys, sequence: int) -> bool:
    """Whether an erasure has taken this sequence number for its tombstone.

    Numbers are forgotten from the lowest on once there are more than :data:`NUMBERS`.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        noted = cast("list[bytes]", await client.zrangebyscore(keys.erased_events, sequence, sequence))
    return b"%d" % sequence in noted  # numbers of erased events are noted with leading zeros


async def erased_between(client: Redis, events: str, after: int, before: int) -> list[int]:
    """The sequence numbers between these two that were erased from the stream of this key, in order.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        erased = f"{events.rpartition(':')[0]}:erased_events"
        found = cast("list[bytes]", await client.zrangebyscore(erased, f"({after}", f"({before}"))
    return list(map(int, found))
