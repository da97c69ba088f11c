"""The records of a feed as its store knows them, read with the moment at which they stand so.

One script reads snapshots, the end of the stream, the feed's state and its dictionaries, so all of them are of one
moment. What was published until then has entries up to :attr:`AsOf.entry` and is in the snapshots; what is published
later has greater entries. So a consumer that reads records and then the stream after that entry misses nothing.

**Invariants**

- Each record that is live during a whole scan is given out at least once, with its revision of that moment or a later
  one. It may come twice.
- A scan begins again where its cursor has lost its meaning: with another process of the server, another generation,
  other forms of snapshots, or a store that went back.
- While snapshots are converted from the first form, a scan raises :class:`~poller.errors.Converting`: records move to
  other fields then, and would be missed.
- About :data:`PACKED_BYTES` are read at a time, and one record is unpacked at a time.
- Nothing is written.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

import msgspec
import structlog
from redis.asyncio import Redis

from poller.changes.diff import Snapshot, checked
from poller.changes.records import Record, record_reader, subject_of
from poller.clock import moment_of
from poller.errors import Converting, StoreError, StoreRefused
from poller.redis.errors import translated
from poller.store.feed_state import FORMS
from poller.store.keys import FeedKeys
from poller.store.scripts import lua
from poller.store.snapshots import SnapshotCodec, UnknownDictionary, former_name, key_of, name_of
from poller.store.stream import EARLIEST, EntryId

SCANNED: Final = 500
"""Records of a chunk, if not said otherwise."""

PACKED_BYTES: Final = 1024 * 1024
"""Of a chunk, about: the last step of the scan may exceed it."""

LOOKED_UP: Final = 100
"""Records that are looked up at one moment, at most."""

_READ: Final = lua("read_records")
_FIRST_FORM: Final = "1"  # what stands for no field in the state
_CONVERTING: Final = "1 2"
_LONGEST_POSITION: Final = 1024
_LARGEST_CURSOR: Final = 2**64 - 1

_log = structlog.get_logger("poller.store")


class AsOf(msgspec.Struct, frozen=True):
    """A moment of a feed.

    Attributes:
        entry: id of the last entry that its stream was given; ``0-0`` for none.
        sequence: of its last event; 0 for none.
    """

    entry: str
    sequence: int

    def is_before(self, other: AsOf) -> bool:
        """Whether the stream or the sequence has gone on since: the other moment is a later one."""
        return EntryId.parse(self.entry) < EntryId.parse(other.entry) or self.sequence < other.sequence


class ScanPosition(msgspec.Struct, frozen=True, array_like=True):
    """Where a scan goes on.

    Attributes:
        cursor: of the hash, for the server alone.
        run_id: of the server's process that has given it.
        generation: of the feed then.
        forms: of its snapshots then.
        as_of: of the chunk before.
    """

    cursor: int
    run_id: str
    generation: str
    forms: str
    as_of: AsOf

    def __str__(self) -> str:
        """As text for a URL or a store; opaque."""
        return urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> ScanPosition:
        """The position from its text.

        Raises:
            ValueError: it is none.
        """
        position = _decoded_position(text)
        if position is None or not 0 <= position.cursor <= _LARGEST_CURSOR or not position.run_id:
            raise ValueError("not the position of a scan")
        return position


def _decoded_position(text: str) -> ScanPosition | None:
    if len(text) > _LONGEST_POSITION or not text.isascii():
        return None
    try:
        position = msgspec.msgpack.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=ScanPosition)
        EntryId.checked(position.as_of.entry)
    except (ValueError, msgspec.MsgspecError):
        return None
    return position


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as it was last published.

    Attributes:
        key: its identity within the feed.
        subject: its id as received; of a removed record without content, except for the case of a UUID's letters.
        revision: of its last event; 0: a silent baseline published none.
        sequence: of its last event; 0 likewise.
        raw: its bytes as received; of a removed record, what is kept of the last ones; empty where it is unreadable.
        changed_at: when its last change was noticed, to the second; None: unknown.
        removed: whether it is removed.
        missing: whether the last full reading did not hold it and nothing else has confirmed that it is gone.
        unreadable: why its snapshot cannot be read; empty: it can.
    """

    key: str
    subject: str
    revision: int
    sequence: int
    raw: bytes
    changed_at: datetime | None = None
    removed: bool = False
    missing: bool = False
    unreadable: str = ""


class RecordChunk(msgspec.Struct, frozen=True):
    """Some records of a scan.

    Attributes:
        records: those that are live; each is unpacked when it is reached, and again each time.
        next: where the scan goes on; None: that was all.
        as_of: when all this was read.
        generation: of the feed; empty: it has no state yet.
        restarted: whether the scan began again, because the position had lost its meaning.
        is_read: whether the feed's first reading has ended.
        run_id: of the server's process; empty: the server does not say it.
        live: how many records there are, those that cannot be read included.
        digest: gives a digest of their snapshots and their feed: the same as long as nothing of them changes.
    """

    records: Iterable[StoredRecord]
    next: ScanPosition | None
    as_of: AsOf
    generation: str
    restarted: bool = False
    is_read: bool = True
    run_id: str = ""
    live: int = 0
    digest: Callable[[], str] = str


class FoundRecords(msgspec.Struct, frozen=True):
    """Records that were looked up.

    Attributes:
        records: those that the store knows, by key: removed and unreadable ones, too.
        as_of: when all this was read.
        generation: of the feed; empty: it has no state yet.
    """

    records: Mapping[str, StoredRecord]
    as_of: AsOf
    generation: str


class RecordReader:
    """Reads the records of one feed.

    Attributes:
        keys: of the feed.
        unreadable: how many snapshots that cannot be read were passed over.
    """

    def __init__(self, client: Redis, keys: FeedKeys, *, id_field: str = "id") -> None:
        """Take the store's client, the feed's keys, and the id field of its records where its state does not say it."""
        self.keys = keys
        self.unreadable = 0
        self._id_field = id_field
        self._client = client
        # Without a first line: so a server that is out of memory, or cannot write to its disk, runs it as well.
        self._script = client.register_script(_READ)

    async def scan(
        self, position: ScanPosition | None = None, *, count: int = SCANNED, size: int = PACKED_BYTES
    ) -> RecordChunk:
        """The records from a position on; by default the first ones.

        There may be fewer than ``count``, or none, before the end. There may be more where the store holds several at
        one place: all of a small feed, a few of a large one.

        Args:
            position: where the chunk before has ended.
            count: how many snapshots are wanted, those of removed records included.
            size: how many bytes of them at most, about.

        Raises:
            Converting: the snapshots are being converted; try again later, from the same position.
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        known: tuple[str | int, ...] = ("", "", "", "")
        if position is not None:
            forms = "" if position.forms == _FIRST_FORM else position.forms
            known = (position.run_id, position.generation, forms, position.as_of.sequence)
        read = await self._read(position.cursor if position else 0, *known, max(count, 1), size)
        if read.forms == _CONVERTING:
            raise Converting(
                f"the snapshots of {self.keys.feed} are being converted to the form of this version; try again when "
                "its round has ended"
            )
        found = RecordsOnDemand(self, read)
        following = None
        if read.cursor:
            if not read.run_id:
                raise StoreRefused("INFO server of this store has no run_id: a scan could not tell when it restarts")
            following = ScanPosition(read.cursor, read.run_id, read.generation, read.forms, read.as_of)
        return RecordChunk(
            found,
            following,
            read.as_of,
            read.generation,
            read.restarted,
            is_read=read.is_read,
            run_id=read.run_id,
            live=read.live,
            digest=read.digest,
        )

    async def get(self, record_keys: Sequence[str]) -> FoundRecords:
        """The records of these keys, at most :data:`LOOKED_UP`, all of one moment.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        if len(record_keys) > LOOKED_UP:
            raise ValueError(f"{len(record_keys)} records; at most {LOOKED_UP} are looked up at one moment")
        formers = [name for key in record_keys if (name := former_name(key))]
        read = await self._read("", *map(name_of, record_keys), *formers)
        found: dict[str, StoredRecord] = {}
        for name, stored in reversed(read.stored):  # later forms come first, and count
            key = key_of(name)
            found[key] = read.record(key, stored)
        return FoundRecords(found, read.as_of, read.generation)

    async def _read(self, *arguments: str | int | bytes) -> _Reading:
        keys = [self.keys.state, self.keys.snapshots, self.keys.dictionaries, self.keys.events]
        with translated(self._client):
            answer: Any = await self._script(keys, [FORMS, *arguments])
        generation, sequence, forms, id_field, run_id, entry = (text.decode() for text in answer[:6])
        try:
            codec = SnapshotCodec({int(number): dictionary for number, dictionary in _pairs(answer[6])})
            as_of = AsOf(entry or EARLIEST, int(sequence or 0))
        except ValueError as error:
            raise StoreError(f"{self.keys.state} holds what this version cannot read: {error}") from None
        return _Reading(
            generation=generation,
            forms=forms or _FIRST_FORM,
            run_id=run_id,
            as_of=as_of,
            cursor=int(answer[7]),
            restarted=bool(answer[8]),
            stored=list(_pairs(answer[9])),
            is_read=bool(answer[10]),
            codec=codec,
            id_field=id_field or self._id_field,
        )

    def pass_over(self, record: StoredRecord) -> None:
        """Count a record that cannot be read; the first one is logged."""
        self.unreadable += 1
        if self.unreadable == 1:
            _log.warning(
                "snapshot unreadable",
                feed=self.keys.feed,
                record=record.subject,
                error=record.unreadable,
                advice="the record is left out; its next reading quarantines the snapshot and publishes it as modified",
            )


class RecordsOnDemand:
    """The live records of a chunk, unpacked one by one while they are gone through."""

    def __init__(self, reader: RecordReader, reading: _Reading) -> None:
        """Take the reader, which counts what cannot be read, and what it has read."""
        self._reader = reader
        self._reading = reading

    def __iter__(self) -> Iterator[StoredRecord]:
        """Them."""
        for name, stored in self._reading.stored:
            if SnapshotCodec.removed(stored):
                continue
            record = self._reading.record(_key_of(name), stored)
            if record.unreadable:
                self._reader.pass_over(record)
            else:
                yield record


class _Reading(msgspec.Struct, frozen=True):
    """What the script has answered."""

    generation: str
    forms: str
    run_id: str
    as_of: AsOf
    cursor: int
    restarted: bool
    stored: list[tuple[bytes, bytes]]
    is_read: bool
    codec: SnapshotCodec
    id_field: str

    @property
    def live(self) -> int:
        """How many of the snapshots are not of removed records; nothing is unpacked."""
        return sum(not SnapshotCodec.removed(stored) for _, stored in self.stored)

    def digest(self) -> str:
        """Of the snapshots and their feed."""
        digest = blake2b(f"{self.generation}\0{self.id_field}".encode(), digest_size=16)
        for name, stored in self.stored:
            digest.update(b"\0%d\0%d\0%b%b" % (len(name), len(stored), name, stored))
        return digest.hexdigest()

    def record(self, key: str, stored: bytes) -> StoredRecord:
        """A record from its snapshot, also if that cannot be read."""
        snapshot = self._snapshot(key, stored)
        subject, problem = subject_of(key), snapshot.unreadable
        if not problem and snapshot.raw:
            found = record_reader(self.id_field)(snapshot.raw)
            if isinstance(found, Record):
                subject = found.subject
            else:  # of the first form, which has no seal; or the id field is another one now
                problem = checked(snapshot).unreadable
        return StoredRecord(
            key,
            subject,
            snapshot.revision,
            snapshot.sequence,
            b"" if problem else snapshot.raw,
            moment_of(snapshot.changed_at * 1000) if snapshot.changed_at else None,
            snapshot.removed,
            snapshot.missing,
            problem,
        )

    def _snapshot(self, key: str, stored: bytes) -> Snapshot:
        try:
            return self.codec.decode(key, stored)
        except (UnknownDictionary, ValueError, IndexError) as error:
            return SnapshotCodec.unreadable(stored, str(error) or "truncated", sequence=self.as_of.sequence)


def _key_of(name: bytes) -> str:
    try:
        return key_of(name)
    except UnicodeDecodeError:  # no process of this program has written it
        return name.decode("utf-8", "backslashreplace")


def _pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
