"""Backfills in a feed consumer: chunks of snapshots as events, spliced into the stream.

A chunk of records is read with the id of the stream's last entry, at one moment. Its events are queued when the group
has read up to that entry: behind what came before that moment, and before what comes after it. So a record's backfilled
event stands behind the changes that its snapshot already has, and before those that it does not have. This is what
DBLog (Andreakis and Papapanagiotou, 2020) does with watermarks in the log of a database.

=====================================  =========================================================================
the process dies when the chunk        then the next owner of the lease
=====================================  =========================================================================
is read, or waits for its entry        reads it again, with the records as they are then
is queued, or in flight                likewise, once it has read what the group holds
is settled or parked in part           likewise; what is parked is loaded, too, and comes first
is settled or parked, and written      goes on behind it
=====================================  =========================================================================

**Invariants**

- The revisions of a record that are delivered never fall, and none that is newer than the backfilled one is missed; but
  for redeliveries and replays, and for what a store that went back publishes again.
- Each record that is live during the whole backfill is delivered. It may come twice with an equal revision.
- The position that is written is never beyond a record that is neither settled nor parked.
- One chunk at a time waits in memory. With what is queued it has the size of a window, about: a crash brings no more
  than this again, however slow one of these events is.
- Nothing is read while the first reading of a feed is under way whose events this subscription does not get.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec
import structlog

from poller.changes.canonical import canonical
from poller.changes.diff import Change, ChangeKind
from poller.changes.events import MAX_EVENT_BYTES, Cause, EventFrame
from poller.changes.records import Record, record_reader
from poller.clock import Clock, rfc3339
from poller.delivery.cloudevent import Event, envelope_of
from poller.errors import Fenced, StoreUnavailable
from poller.failpoints import reach
from poller.source.feed import Feed
from poller.store.backfill import UNREAD, Backfill, BackfillPosition
from poller.store.consumer_state import Entry, FirstReading
from poller.store.records import PACKED_BYTES, RecordChunk, ScanPosition, StoredRecord
from poller.store.stream import EARLIEST, EntryId

_AGAIN: Final = 1.0  # seconds between attempts while the store is unavailable, or the feed is not read yet
_PARTS: Final = 4  # of a window: one is read at a time while the others are sent; a position is written behind each
_FRAMES: Final = 256  # of listings; a feed may have one for each of thousands of qualifications

_log = structlog.get_logger("poller.delivery")


class SnapshotSource(Protocol):
    """The part of :class:`poller.store.records.RecordReader` that backfills need."""

    async def scan(self, position: ScanPosition | None = None, *, count: int, size: int) -> RecordChunk:
        """The records from a position on, and the moment at which they stand so."""
        ...


class EventIdentity(msgspec.Struct, frozen=True):
    """The CloudEvents attributes that identify an event, and its type."""

    id: str
    source: str
    type: str


class BackfillSource:
    """The records of a feed, and their events."""

    def __init__(self, feed: Feed, records: SnapshotSource) -> None:
        """Take the feed, whose types and source the events have, and the reader of its snapshots."""
        self.scan = records.scan
        self._feed = feed
        self._read = record_reader(feed.id_field)
        self._type_stem = f"{feed.type_prefix}.{feed.resource.type_name}"
        self._frames: OrderedDict[tuple[str, str], EventFrame] = OrderedDict()

    def event(self, record: StoredRecord, *, generation: str, recorded: str) -> bytes:
        """The event of a record as it was last published.

        Args:
            record: a live one.
            generation: of the feed.
            recorded: when the record was read, from :func:`~poller.clock.rfc3339`.
        """
        change, path = self._created(record)
        frame = self._frame(generation, path)
        return frame.encode(change, event_id=frame.event_id(change), sequence=record.sequence, recorded=recorded)

    def identity(self, record: StoredRecord, *, generation: str) -> EventIdentity:
        """What identifies that event, for a client that makes it."""
        change, path = self._created(record)
        event_id = self._frame(generation, path).event_id(change)
        return EventIdentity(event_id, self._feed.event_source + path, f"{self._type_stem}.{change.kind}.v1")

    def _created(self, record: StoredRecord) -> tuple[Change, str]:
        """The change that the event is of, and the path of the listing that holds the record."""
        found = self._read(record.raw)
        modified, qualification = (found.modified, found.qualification) if isinstance(found, Record) else (None, None)
        form = canonical(record.raw)
        change = Change(
            ChangeKind.CREATED, record.key, record.subject, modified, record.raw, form, None, (), record.revision
        )
        return change, self._feed.resource.listing_path(qualification)

    def _frame(self, generation: str, path: str) -> EventFrame:
        known = self._frames.get((generation, path))
        if known is not None:
            return known
        made = self._frames[generation, path] = EventFrame(
            feed=self._feed.id,
            generation=generation,
            source=self._feed.event_source + path,
            type_stem=self._type_stem,
            cause=Cause.BACKFILL,
        )
        if len(self._frames) > _FRAMES:
            self._frames.popitem(last=False)
        return made


class BackfillChunk(msgspec.Struct, frozen=True):
    """The events of some records, which stand behind one entry of the stream.

    Attributes:
        backfill: the id of the backfill.
        entry: the last entry of the stream when they were read.
        events: in no order.
        following: the text of the position behind them; empty: that was all.
    """

    backfill: str
    entry: str
    events: Sequence[Event]
    following: str


class _OpenChunk:
    """A chunk of which events are neither settled nor parked."""

    __slots__ = ("done", "following", "name", "open", "records")

    def __init__(self, name: str, following: str, records: int, done: int) -> None:
        self.name = name
        self.following = following
        self.records = records
        self.done = done  # records of the backfill up to its end
        self.open = 0


class BackfillProgress:
    """The progress of a feed consumer's backfill, if there is one.

    Attributes:
        open_bytes: the size of the events that were queued and are neither settled nor parked.
        at: the text of the position from which on it is read; see :class:`poller.store.backfill.Backfill`.
    """

    def __init__(self) -> None:
        """Begin without a backfill."""
        self.open_bytes = 0
        self.at = ""
        self._open: dict[str, tuple[_OpenChunk, int]] = {}
        self._chunks: list[_OpenChunk] = []
        self._backfill: Backfill | None = None
        self._done = 0
        self._is_read = True

    @property
    def under_way(self) -> Backfill | None:
        """The backfill as it was stored when it was followed; None: there is none."""
        return self._backfill

    @property
    def wanted(self) -> Backfill | None:
        """The backfill of which more is to be read; None: there is none."""
        return None if self._is_read else self._backfill

    @property
    def open(self) -> Mapping[str, object]:
        """The deliveries that are neither settled nor parked, of a cancelled backfill, too."""
        return self._open

    @property
    def span(self) -> int:
        """The number of records behind the position that can be written, which a crash now would bring again."""
        first = next((place for place, chunk in enumerate(self._chunks) if chunk.open), len(self._chunks))
        return max(sum(chunk.records for chunk in self._chunks[first:]), len(self._open))

    def follow(self, stored: Backfill | None) -> bool:
        """Follow the stored backfill. False: it is the one followed already."""
        if (stored and stored.id) == (self._backfill and self._backfill.id):
            return False
        self._chunks.clear()
        self._backfill, self._is_read = stored, stored is None
        self.at, self._done = (stored.at, stored.done) if stored else ("", 0)
        return True

    def restart(self) -> None:
        """Read from the beginning: the position has lost its meaning. What is queued stays."""
        self.at, self._done = "", 0

    def took(self, chunk: BackfillChunk) -> None:
        """Record that a chunk comes next."""
        self._done += len(chunk.events)
        self.at, self._is_read = chunk.following, not chunk.following
        self._chunks.append(_OpenChunk(chunk.backfill, chunk.following, len(chunk.events), self._done))

    def add(self, delivery_id: str, size: int) -> bool:
        """Record that an event of the chunk taken last is to be delivered. False: it is already."""
        known = self._open.get(delivery_id)
        if known is not None and known[0] in self._chunks:
            return False
        chunk = self._chunks[-1]
        chunk.open += 1
        if known is None:
            self.open_bytes += size
        self._open[delivery_id] = (chunk, size)
        return known is None

    def settled(self, delivery_id: str) -> None:
        """Record that a delivery is settled or parked."""
        known = self._open.pop(delivery_id, None)
        if known is not None:
            known[0].open -= 1
            self.open_bytes -= known[1]

    def repeat_of(self, delivery_id: str) -> str:
        """The name of the backfill of a delivery; empty: it is not one of them."""
        known = self._open.get(delivery_id)
        return known[0].name if known else ""

    @property
    def place(self) -> BackfillPosition | None:
        """The position to write; None: unchanged."""
        last = None
        for chunk in self._chunks:
            if chunk.open:
                break
            last = chunk
        return None if last is None else BackfillPosition(last.name, last.following, last.done)

    def wrote(self, place: BackfillPosition) -> bool:
        """Record that this position was written. True: the backfill is completed by it."""
        if self._backfill is None or place.id != self._backfill.id:
            return False
        while self._chunks:
            chunk = self._chunks.pop(0)
            if (chunk.following, chunk.done) == (place.at, place.done):
                break
        if place.at:
            return False
        self._backfill = None
        return True


class ReadProgress(Protocol):
    """The part of :class:`poller.delivery.feed_consumer.EntryReader` that says what was read."""

    @property
    def reads(self) -> int:
        """How many reads of new entries have begun."""
        ...

    @property
    def last(self) -> str:
        """The last entry that was read; empty: none was."""
        ...

    def has_read_since(self, entry: str, reads: int) -> bool:
        """Whether all that the group has to deliver up to an entry was read, which existed after this many reads."""
        ...


class BackfillStorage(Protocol):
    """The part of :class:`poller.store.consumer_state.ConsumerStore` for backfills."""

    async def backfill(self) -> Backfill | None:
        """The backfill under way."""
        ...

    async def first_reading(self) -> FirstReading:
        """Whether the feed was read completely once."""
        ...


class BackfillReader:
    """Reads the chunks of backfills for one run of a feed consumer."""

    def __init__(
        self,
        progress: BackfillProgress,
        store: BackfillStorage,
        make_source: Callable[[], BackfillSource | None],
        *,
        window: int,
        window_bytes: int,
        is_live: bool,
        where: Mapping[str, str],
        clock: Clock,
    ) -> None:
        """Begin without a backfill.

        Args:
            progress: of the consumer's tracker.
            store: of the feed consumer.
            make_source: makes the source of the records when there is a backfill; None: this process does not have the
                feed.
            window: the greatest number of records in memory, about.
            window_bytes: of these bytes at most, about.
            is_live: whether the subscription gets no baselines.
            where: feed and subscription, for the log.
            clock: the store's.
        """
        self._progress = progress
        self._store = store
        self._make_source = make_source
        self._source: BackfillSource | None = None
        self._window = window
        self._window_bytes = window_bytes
        self._is_live = is_live
        self._where = where
        self._clock = clock
        self._waiting: tuple[BackfillChunk, int] | None = None
        self._asked = False
        self._limit = window
        self._largest = MAX_EVENT_BYTES
        self._not_before = self._began = clock.monotonic()

    @property
    def next_moment(self) -> float:
        """When reading is possible again after a failure, perhaps in the past."""
        return self._not_before

    @property
    def is_waiting(self) -> bool:
        """Whether a chunk waits for what came before it to be read."""
        return self._waiting is not None

    @property
    def is_asked(self) -> bool:
        """Whether to look again, see :meth:`ask`."""
        return self._asked

    @property
    def wanted(self) -> bool:
        """Whether there is more of a backfill to read."""
        return self._progress.wanted is not None

    def ask(self) -> None:
        """Look again: a command may have begun or cancelled a backfill."""
        self._asked = True

    async def follow_asked(self) -> None:
        """Look again, after :meth:`ask`.

        Raises:
            StoreRefused: the store refuses the command.
        """
        if not self._asked or self._clock.monotonic() < self._not_before:
            return
        self._asked = False
        try:
            await self.follow()
        except StoreUnavailable as error:
            _log.debug("backfill not read", **self._where, error=str(error))
            self._asked = True
            self._later()

    async def follow(self) -> None:
        """Look which backfill is stored, as at the start of a run.

        Raises:
            StoreError: it cannot be read.
        """
        stored = await self._store.backfill()
        if not self._progress.follow(stored):
            return
        self._waiting, self._began = None, self._clock.monotonic()
        if stored is not None:
            self._source = self._source or self._make_source()
            begun = "backfill continues" if stored.at and stored.at != UNREAD else "backfill begins"
            _log.info(begun, **self._where, backfill=stored.id, done=stored.done, total=stored.total)

    def spliced(self, entries: Sequence[Entry], order: ReadProgress) -> Iterator[Sequence[Entry] | BackfillChunk]:
        """What was read, in parts, with the chunk that waits at its place among them.

        Args:
            entries: the ones read last, perhaps none.
            order: says what was read, these included.
        """
        if self._waiting is None:
            yield entries
            return
        chunk, reads = self._waiting
        place = EntryId.parse(chunk.entry)
        before = sum(EntryId.parse(entry) <= place for entry, _ in entries)
        yield entries[:before]
        if before < len(entries) or order.has_read_since(chunk.entry, reads):
            self._waiting = None
            yield chunk
            reach("backfill.queued")
        yield entries[before:]

    async def read(self, order: ReadProgress) -> bool:
        """Read the next chunk if there is room. True: there is something to do.

        Raises:
            Fenced: the store has lost what was read of the stream.
            StoreRefused: the store refuses the command.
        """
        backfill, source = self._progress.wanted, self._source
        if backfill is None or source is None or (count := self._room()) <= 0:
            return False
        try:
            return await self._read(order, backfill.id, source, count)
        except StoreUnavailable as error:
            _log.debug("backfill not read", **self._where, error=str(error))
            self._later()
            return False

    def _room(self) -> int:
        """How many records may be read now."""
        progress = self._progress
        room = self._window_bytes - progress.open_bytes
        is_held = self._waiting is not None or self._clock.monotonic() < self._not_before
        left = self._window - progress.span
        if is_held or room <= 0 or left < self._window // _PARTS:
            return 0
        return min(self._limit, left, max(1, self._window // _PARTS), 1 + room // self._largest)

    async def _read(self, order: ReadProgress, name: str, source: BackfillSource, count: int) -> bool:
        progress = self._progress
        position = _position(progress.at)
        if position is None and not await self._may_begin(name):
            return self._waiting is not None
        chunk = await source.scan(position, count=count, size=min(PACKED_BYTES, self._window_bytes))
        if not chunk.generation:  # the state is lost, and the feed will be reset
            self._later()
            return False
        if chunk.restarted:
            _log.info("backfill begins again", **self._where, reason="the store or the feed is not what it was")
            progress.restart()
            return True
        if order.last and EntryId.parse(chunk.as_of.entry) < EntryId.parse(order.last):
            raise Fenced(f"the store lost what was read of {self._where['feed']}; all that it holds is read again")
        read = self._made(source, chunk, count)
        if read is None:
            return True
        following = str(chunk.next) if chunk.next else ""
        self._waiting = (BackfillChunk(name, chunk.as_of.entry, read, following), order.reads)
        reach("backfill.read")
        return True

    async def _may_begin(self, name: str) -> bool:
        """Whether the snapshots are to be read now.

        While a feed is read for the first time, records come that a scan has passed. They are in the stream as
        baselines, which some subscriptions do not get: those wait.
        """
        first = await self._store.first_reading()
        progress = self._progress
        if first.has_begun and progress.at == UNREAD and not (first.is_repeated or self._is_live):
            self._waiting = (BackfillChunk(name, EARLIEST, (), ""), 0)  # all comes as baselines
            return False
        if first.has_begun and (first.has_ended or not (first.is_repeated or self._is_live)):
            return True
        _log.debug("backfill waits", **self._where, reason="the feed was not read completely yet")
        self._later()
        return False

    def _made(self, source: BackfillSource, chunk: RecordChunk, count: int) -> list[Event] | None:
        """The events of a chunk; None: it is too large, and fewer records are to be read."""
        recorded, made, size = rfc3339(self._clock.now()), list[Event](), 0
        for record in chunk.records:
            event = source.event(record, generation=chunk.generation, recorded=recorded)
            size += len(event)
            if size > self._window_bytes and made and count > 1:
                self._limit = max(1, count // 2)
                return None
            made.append((envelope_of(event), event))
        self._largest = max((len(event) for _, event in made), default=self._largest)
        if count == self._limit < self._window:
            self._limit *= 2
        return made

    def completed(self, place: BackfillPosition) -> None:
        """Log that the backfill was completed."""
        seconds = round(self._clock.monotonic() - self._began, 3)
        _log.info("backfill completed", **self._where, backfill=place.id, records=place.done, seconds=seconds)

    def _later(self) -> None:
        self._not_before = self._clock.monotonic() + _AGAIN


def _position(text: str) -> ScanPosition | None:
    """The position in the snapshots; None: their beginning, also where another version has written it."""
    try:
        return ScanPosition.parse(text) if text and text != UNREAD else None
    except ValueError:
        return None
