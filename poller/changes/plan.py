"""The plan of a commit: records and snapshots in, one atomic write out.

**Invariants**

- Planning the same records against the snapshots of their own commit gives no event, provided that each stands in the
  page once. So a page may be read again after a crash, and a full reading without changes is silent.
- Records are processed in the order received. A record that stands twice in a slice is compared with its own first
  version, and each version that differs becomes an event.
- A listing's snapshot holds the keys of its records. A record that was in a listing, and is in no listing now, is
  gone from the feed, whether the other listings were read in this round, a day ago, or are unchanged.
- Absence removes a record only after a complete reading, only if it is confirmed, and only if the removal guard
  permits it: an API that loses listings or answers nothing must not empty the feed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from itertools import combinations
from types import MappingProxyType
from typing import Any, Final, Self

import msgspec

from poller.changes.canonical import forms_received
from poller.changes.diff import EVERYTHING, Change, ChangeKind, Snapshot, checked, compare, lost_snapshot
from poller.changes.events import EventFrame
from poller.changes.full_readings import Confirmation, DeltaVersions, HeldVersion, VersionPolicy
from poller.changes.layouts import AlikeRecords
from poller.changes.records import (
    MAX_RECORD_BYTES,
    Record,
    RecordShape,
    Rejected,
    alike,
    are_uuids,
    is_older,
    merged,
    modified_of,
    overlaid,
    uuid_text,
    uuid_values,
)


class PublishRules(msgspec.Struct, frozen=True):
    """How a feed's records are compared and published.

    Attributes:
        strip: removes the ignored pointers from a parsed record, from :func:`canonical.without`; None: all counts.
        shape: which fields are requested, if that is not all or has changed; known values of other fields are kept.
        round_start: the feed's sequence number when the reading started. A version older than one published since then
            is passed over: paging showed the newer one first. Another reading follows, in case it is the restored one,
            or a part that has what the newer one lacks.
        shown: the versions that this delta has shown before. A version that is older than a known one which it has
            shown is passed over, too.
        partial: whether records may carry only some of their keys; they are merged with what is known first.
        whole_keys: the keys of those that are whole all the same, and not merged.
        puts_off: whether versions older than the known one are put off until the listing has ended.
        holding: what becomes of them otherwise.
        silent: whether snapshots are stored and nothing is published (``baseline = "silent"``).
        again: in a baseline that is started again, the frame for events of known records, which are ordinary changes
            and never silent. None: all events have the same frame.
    """

    strip: Callable[[Any], Any] | None = None
    shape: RecordShape | None = None
    round_start: int | None = None
    shown: DeltaVersions | None = None
    partial: bool = False
    whole_keys: Container[str] = frozenset()
    puts_off: bool = False
    holding: VersionPolicy = VersionPolicy()
    silent: bool = False
    again: EventFrame | None = None

    def whole(self, record: Record, snapshot: Snapshot | None) -> Record:
        """The record, which may be a part, merged with its snapshot.

        Raises:
            ValueError: the part is not usable, or the parts make up a record that is too large.
        """
        if snapshot is None or record.key in self.whole_keys or not snapshot.raw or checked(snapshot).unreadable:
            whole = record  # an unreadable record that was removed has left a tombstone without bytes
        else:
            whole = merged(record, snapshot.raw)
        if len(whole.raw) > MAX_RECORD_BYTES:
            raise ValueError(f"parts of a record of {len(whole.raw)} bytes; at most {MAX_RECORD_BYTES} are usable")
        return whole

    def kept(self, raw: bytes, snapshot: Snapshot | None) -> bytes:
        """The bytes to store: the record's, over those of fields that were not requested.

        A requested field that the record does not have is gone, or every further reading would find that it differs.
        """
        asked = self.shape.asked if self.shape else None
        if asked is None or snapshot is None or snapshot.removed or snapshot.unreadable:
            return raw
        both = overlaid(snapshot.raw, raw, without=asked)
        return both if len(both) <= MAX_RECORD_BYTES else raw


class _CommitBuilder:
    """Collects what goes into a commit."""

    def __init__(self, frame: EventFrame, sequence: int, recorded: str) -> None:
        self._frame = frame
        self._sequence = sequence
        self._recorded = recorded
        self._changed_at = seconds_of(recorded)
        self._digest = blake2b(digest_size=16)
        self._event_ids: list[str] = []
        self._kinds: list[ChangeKind] = []
        self._backwards = 0
        self.superseded: list[Record] = []
        self.put_off: list[Record] = []
        self.withheld = 0
        self.tally = RoundCounts()
        self.snapshots: dict[str, Snapshot] = {}
        self.events: list[bytes] = []
        self.rejected: list[Rejected] = []
        self.qualifications: dict[str, None] = {}
        self.held: dict[str, HeldVersion | None] = {}
        self._alike: AlikeRecords | None = None

    def publish(self, change: Change, raw: bytes, frame: EventFrame | None) -> None:
        self._sequence += 1
        event_id = self._frame.event_id(change)
        self._event_ids.append(event_id)
        frame = frame or self._frame
        event = frame.encode(change, event_id=event_id, sequence=self._sequence, recorded=self._recorded)
        self.events.append(event)
        self.snapshots[change.key] = Snapshot(change.revision, self._sequence, raw, changed_at=self._changed_at)

    def publish_new(
        self, records: Collection[Record | Rejected], known: Mapping[str, Snapshot], rules: PublishRules
    ) -> Collection[Record | Rejected]:
        """Publish these records together if all are new and usable; returns those to be looked at one by one."""
        new = _all_new(records, known, rules)
        if not new:
            return records
        first, by_columns = self._sequence + 1, alike(new)
        if by_columns is not None and rules.strip is None:
            ids, events = self._frame.created_alike(new, by_columns, sequence=first, recorded=self._recorded)
        else:
            forms = forms_received([record.raw for record in new], rules.strip)
            if forms is None:
                return records
            ids, events = self._frame.created(new, forms, sequence=first, recorded=self._recorded)
        self._alike = by_columns
        self._event_ids += ids
        self.events += events
        for sequence, record in enumerate(new, start=first):
            self.snapshots[record.key] = Snapshot(1, sequence, record.raw, False, False, "", self._changed_at)  # noqa: FBT003 -- names would take twice the time
        self._sequence += len(new)
        self._kinds += [ChangeKind.CREATED] * len(new)
        self.qualifications.update(dict.fromkeys(record.qualification for record in new if record.qualification))
        return ()

    def count(self, kind: ChangeKind) -> None:
        self._kinds.append(kind)

    def pass_over(self, record: Record, snapshot: Snapshot | None, rules: PublishRules) -> None:
        """Count a record that is as it was."""
        self.release(record.key, rules.holding)
        self.tally.unchanged += 1
        if snapshot is not None and (snapshot.missing or (rules.shape and snapshot.raw != record.raw)):
            self.keep_as_it_is(record.key, rules.kept(record.raw, snapshot), snapshot)

    def keep_as_it_is(self, key: str, raw: bytes, snapshot: Snapshot) -> None:
        if snapshot.missing or raw != snapshot.raw:
            self._digest.update(raw)
            self.snapshots[key] = msgspec.structs.replace(snapshot, raw=raw, missing=False)

    def keep_silently(self, change: Change, raw: bytes) -> None:
        self._digest.update(raw)
        self.snapshots[change.key] = Snapshot(change.revision - 1, 0, raw, changed_at=self._changed_at)

    def set_aside(self, record: Record, change: Change, snapshot: Snapshot, rules: PublishRules) -> bool:
        """Put a version off, or hold it back, that is older than the known one; False: it is to be published."""
        if not _goes_back(record, change, snapshot):
            return False
        if rules.puts_off:
            self.put_off.append(record)
            return True
        return self._hold(change, snapshot, rules.holding)

    def _hold(self, change: Change, snapshot: Snapshot, holding: VersionPolicy) -> bool:
        before = self.held_of(change.key, holding)
        held = holding.after(before, change.canonical)
        if before is None or (held is not None and held.digest != before.digest):
            self._backwards += 1
        if held is None:
            return False
        if held != before:
            self._digest.update(b"%b %b %d" % (change.key.encode(), held.digest, held.seen_at))
            self.held[change.key] = held
        self.tally.unchanged += 1
        self.withheld += 1
        self.keep_as_it_is(change.key, snapshot.raw, snapshot)  # it was not missing
        return True

    def release(self, key: str, holding: VersionPolicy) -> None:
        """Forget the held version of this record."""
        if (self.held or holding.kept) and self.held_of(key, holding) is not None:
            self._digest.update(b"%b -" % key.encode())
            self.held[key] = None

    def held_of(self, key: str, holding: VersionPolicy) -> HeldVersion | None:
        """The held version of a record."""
        return self.held[key] if key in self.held else holding.kept.get(key)

    def reject(self, rejected: Rejected) -> None:
        self._digest.update(rejected.raw)
        self.rejected.append(rejected)
        self.tally.quarantined += 1

    def readable(self, snapshot: Snapshot, change: Change) -> Snapshot | None:
        """The snapshot; None: it is unreadable, goes to the quarantine and is replaced."""
        if not (snapshot.unreadable or change.changed == EVERYTHING):
            return snapshot
        self._digest.update(snapshot.raw)
        self.rejected.append(lost_snapshot(snapshot))
        return None

    def commit(self, generation: str, sequence: int) -> Commit:
        self._digest.update("".join(self._event_ids).encode())
        for kind in ChangeKind:
            self.tally.count(kind, self._kinds.count(kind))
        return Commit(
            generation,
            sequence,
            self.snapshots,
            tuple(self.events),
            tuple(self.rejected),
            tuple(self.qualifications),
            held=self.held,
            digest=self._digest.hexdigest(),
            backwards=self._backwards,
            superseded=tuple(self.superseded),
            put_off=tuple(self.put_off),
            withheld=self.withheld,
            alike=self._alike,
        )


def plan(
    records: Collection[Record | Rejected],
    known: Mapping[str, Snapshot],
    *,
    frame: EventFrame,
    generation: str,
    sequence: int,
    recorded: str,
    rules: PublishRules,
) -> tuple[Commit, RoundCounts]:
    """Compare a slice of a page with the known snapshots.

    Args:
        records: in the order received.
        known: the snapshots of these records' keys, where there are any.
        frame: what the events of this listing share.
        generation: of the feed's state.
        sequence: the number of the feed's last event so far.
        recorded: see :func:`~poller.clock.rfc3339`.
        rules: how to compare.
    """
    draft = _CommitBuilder(frame, sequence, recorded)
    draft.tally.records = len(records)
    for record in draft.publish_new(records, known, rules):
        if isinstance(record, Rejected):
            draft.reject(record)
            continue
        snapshot = draft.snapshots.get(record.key) or known.get(record.key)
        if snapshot is not None and _superseded(record, snapshot, rules):
            draft.tally.unchanged += 1
            draft.superseded.append(record)
            continue
        try:
            whole = rules.whole(record, snapshot) if rules.partial else record
            change = compare(whole, snapshot, rules.strip, rules.shape)
        except ValueError as error:
            draft.reject(Rejected(record.raw, str(error)))
            continue
        if change is None:
            draft.pass_over(whole, snapshot, rules)
            continue
        if snapshot is not None:
            snapshot = draft.readable(snapshot, change)
        if snapshot is not None and draft.set_aside(whole, change, snapshot, rules):
            continue
        draft.release(record.key, rules.holding)
        draft.count(change.kind)
        if whole.qualification:
            draft.qualifications[whole.qualification] = None
        again = rules.again if change.kind is ChangeKind.MODIFIED else None
        kept = rules.kept(whole.raw, snapshot) if rules.shape else whole.raw
        if rules.silent and again is None:
            draft.keep_silently(change, kept)
        else:
            draft.publish(change, kept, again)
    draft.tally.records -= len(draft.put_off)  # they count when they are compared again
    return draft.commit(generation, sequence), draft.tally


def _all_new(
    records: Collection[Record | Rejected], known: Mapping[str, Snapshot], rules: PublishRules
) -> Sequence[Record]:
    """These records, if nothing is known of any of them and each becomes an event; else none."""
    if rules.partial or rules.silent or rules.holding.kept:
        return ()
    new = [record for record in records if isinstance(record, Record)]
    keys = {record.key for record in new}
    return new if len(keys) == len(records) and known.keys().isdisjoint(keys) else ()


def seconds_of(recorded: str) -> int:
    """The seconds since 1970 of a moment as :func:`~poller.clock.rfc3339` writes it, as far as 32 bits reach."""
    return min(max(int(datetime.fromisoformat(recorded).timestamp()), 0), 0xFFFF_FFFF)


def _goes_back(record: Record, change: Change, snapshot: Snapshot) -> bool:
    return change.kind is ChangeKind.MODIFIED and is_older(record.modified, modified_of(snapshot.raw))


def _superseded(record: Record, snapshot: Snapshot, rules: PublishRules) -> bool:
    start, shown = rules.round_start, rules.shown
    is_published = start is not None and snapshot.sequence > start
    if snapshot.raw == record.raw or not (is_published or (shown and shown.has_shown(record.key, snapshot.raw))):
        return False
    return is_older(record.modified, modified_of(snapshot.raw))


_COOLING: Final = 0.5  # of the heat, with each reading
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list).decode


class SubstreamSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """One listing as last read. Times are milliseconds, moments of the store's clock, 0 for never.

    Attributes:
        tried: when the last reading began, whatever became of it.
        read: when the last reading began that came to its end.
        gone: whether that found no such listing.
        heat: how often the last readings brought a change: 0 for never, towards 2 for always.
        held: the keys of its records, packed.
        validators: headers that ask for it on condition; empty where its answer had no version.
        unidentified: how many of its records had no id that can be read.
        confirmation: what is to be confirmed of its last readings; None: nothing.
        awaits_baseline: whether it could not be read in the first reading of its feed: then its own comes later.
        copied: for how long a cache had kept the answer of that reading; 0: none had.
        left: the keys of records that it held before that reading and not in it, packed; copies are no readings.
        sequence: of the feed's last event after that reading.
        received: when the last reading began that received its records and came to its end; another one found it
            unchanged.
        failing_since: when the first of the readings began that failed since then; 0: the last one did not fail.
        rules: a digest of what decided how its records were compared; nothing that follows from an unchanged listing
            is true with other rules.
        content: the digest of its only page, see :class:`poller.changes.full_readings.PageDigests`; empty: it had
            several, or a record that is not as it is stored.
    """

    tried: int = 0
    read: int = 0
    gone: bool = False
    heat: float = 0.0
    held: bytes = b""
    validators: dict[str, str] = {}
    unidentified: int = 0
    confirmation: Confirmation | None = None
    awaits_baseline: bool = False
    copied: int = 0
    left: bytes = b""
    sequence: int = 0
    received: int = 0
    failing_since: int = 0
    rules: bytes = b""
    content: bytes = b""

    @property
    def is_read(self) -> bool:
        """Whether its last reading came to its end."""
        return self.read > 0 and self.tried == self.read

    @property
    def confirming(self) -> bool:
        """Whether it is due to be read again at its next turn."""
        return self.confirmation is not None and self.confirmation.due

    @property
    def keys(self) -> Iterator[str]:
        """The keys of its records."""
        return _unpacked(self.held)

    @property
    def keys_left(self) -> Iterator[str]:
        """The keys of records that its last reading was the first to lack."""
        return _unpacked(self.left)

    def after(
        self,
        begun: int,
        *,
        keys: Iterable[str] = (),
        changed: bool = False,
        validators: Mapping[str, str] = _NO_HEADERS,
        gone: bool = False,
        unidentified: int = 0,
        confirmation: Confirmation | None = None,
        copied: int = 0,
        sequence: int = 0,
        rules: bytes = b"",
        content: bytes = b"",
    ) -> SubstreamSnapshot:
        """The listing once a reading that began then came to its end."""
        found = set(keys)
        held, left = packed(sorted(found)), b""
        if held != self.held or copied:
            left = packed(sorted({*self.keys, *(self.keys_left if copied else ())} - found))
        return SubstreamSnapshot(
            begun,
            begun,
            gone,
            self.heat * _COOLING + changed,
            held,
            dict(validators),
            unidentified,
            confirmation,
            copied=copied,
            left=left,
            sequence=sequence,
            received=begun,
            rules=rules,
            content=content,
        )

    def unchanged(self, begun: int, *, copied: int = 0, sequence: int = 0) -> SubstreamSnapshot:
        """The listing after a reading that found it unchanged."""
        heat, left = self.heat * _COOLING, self.left if copied else b""
        return msgspec.structs.replace(
            self,
            tried=begun,
            read=begun,
            heat=heat,
            copied=copied,
            left=left,
            sequence=sequence,
            failing_since=0,
        )

    def failed(self, begun: int, *, keys: Iterable[str] = (), in_baseline: bool = False) -> SubstreamSnapshot:
        """The listing once a reading that began then failed.

        Args:
            begun: when.
            keys: of the records on the pages before that; the listing holds them, besides what it held.
            in_baseline: whether it was its first reading.
        """
        held = packed(sorted({*self.keys, *keys})) if keys else self.held
        awaits = self.awaits_baseline or (in_baseline and not self.read)
        since = self.failing_since or (begun if begun > self.tried else 0)  # it may have had no turn
        return msgspec.structs.replace(
            self, tried=begun, validators={}, content=b"", held=held, awaits_baseline=awaits, failing_since=since
        )


def packed(keys: Iterable[str]) -> bytes:
    """Record keys as one value; :attr:`SubstreamSnapshot.keys` gives them back."""
    found = list(keys)
    lines = "\n".join(found)
    return _encode(uuid_values(lines) if are_uuids(lines) else list(map(_bytes, found))) if found else b""


def _unpacked(keys: bytes) -> Iterator[str]:
    return map(_text, _decode(keys)) if keys else iter(())


def _bytes(key: str) -> bytes | str:
    return uuid_values(key)[0] if are_uuids(key) else key


def _text(key: bytes | str) -> str:
    return key if isinstance(key, str) else uuid_text(key)


class RoundCounts(msgspec.Struct, gc=False):
    """The counters of a round, or of a part of it. ``+=`` adds a part.

    These are the counters of the log, of ``poller once``, of the feed's status, of the metrics and of the trace: one
    that is added here appears in all of them.

    Attributes:
        pages: how many were read and committed.
        records: how many these held: the sum of created, modified, unchanged and quarantined.
        removed: how many known records turned out to be gone.
        seconds: how long the round took.
    """

    pages: int = 0
    records: int = 0
    created: int = 0
    modified: int = 0
    removed: int = 0
    unchanged: int = 0
    quarantined: int = 0
    seconds: float = 0.0

    def __iadd__(self, other: RoundCounts) -> Self:
        """Add the counters of a part."""
        for name in COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    @property
    def changes(self) -> int:
        """The number of published events, and of those that a silent baseline kept back."""
        return self.created + self.modified + self.removed

    def count(self, kind: ChangeKind, number: int) -> None:
        """Count changes of this kind."""
        setattr(self, kind, getattr(self, kind) + number)


COUNTERS: Final = RoundCounts.__struct_fields__
KINDS: Final = tuple(name for name in COUNTERS if name not in {"pages", "records", "seconds"})
"""What becomes of a record."""


class Commit(msgspec.Struct, frozen=True):
    """One atomic write: all of it or nothing.

    Attributes:
        generation, sequence: the state that this was planned on; the store refuses it on any other.
        snapshots: by record key.
        events: encoded, in order; the first has the sequence number ``sequence + 1``.
        rejected: for the quarantine.
        qualifications: ids seen, for the feeds that read one listing per qualification.
        listings: by qualification, for a feed that reads one listing for each.
        marks: fields of the feed's state to set; None deletes one.
        digest: names this commit among all others of the feed, so that a repetition after a lost reply is known. Empty
            where that does not matter: marks alone may be written twice. Of snapshots alone the store adds one if it
            writes a dictionary with them.
        held: by record key, versions that are held back from now on; None where none is any more.
        backwards: how many versions were older than the known one, published or held back, each once.
        page_digests: replace those of the feed's last full reading; None: they stay, unless there are snapshots.
        superseded: the versions that were passed over because a newer one was published before.
        put_off: those to be compared when the listing has ended.
        withheld: how many versions are held back.
        alike: the records of the snapshots by columns, in the order of these; None: they are not all of one layout.
    """

    generation: str
    sequence: int
    snapshots: Mapping[str, Snapshot] = {}
    events: tuple[bytes, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    qualifications: tuple[str, ...] = ()
    marks: Mapping[str, str | None] = {}
    listings: Mapping[str, SubstreamSnapshot] = {}
    digest: str = ""
    held: Mapping[str, HeldVersion | None] = {}
    backwards: int = 0
    page_digests: bytes | None = None
    superseded: tuple[Record, ...] = ()
    put_off: tuple[Record, ...] = ()
    withheld: int = 0
    alike: AlikeRecords | None = None

    @property
    def next_sequence(self) -> int:
        """The feed's sequence number after this commit."""
        return self.sequence + len(self.events)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.snapshots or self.events or self.rejected or self.marks or self.listings or self.held)


_SHELVES: Final = 256
_ON_ONE_SHELF: Final = 1024  # keys
# A share of fewer records than this is not significant: one missing record of five is no sign of an API fault.
FEW: Final = 50


class SeenKeys:
    """The record keys of a full reading, at eight bytes each.

    Keys are held as 64-bit hashes. If two keys of a feed have the same hash, a removal goes unnoticed while the other
    record exists; nothing worse.
    """

    def __init__(self) -> None:
        self._shelves = [array("q")]  # one while they are few: most feeds are small, and read often
        self._unsorted = array("q")  # most readings are unchanged, and need no order

    def update(self, keys: Iterable[str]) -> None:
        """Add keys."""
        self._unsorted.extend(map(hash, keys))

    @property
    def has_repeated(self) -> bool:
        """Whether a key was added more than once."""
        self._sort()
        return any(len(set(shelf)) < len(shelf) for shelf in self._shelves)

    def _sort(self) -> None:
        if self._unsorted:
            unsorted, self._unsorted = self._unsorted, array("q")
            if len(self._shelves) == 1 and len(self._shelves[0]) + len(unsorted) > _ON_ONE_SHELF:
                unsorted += self._shelves[0]
                self._shelves = [array("q") for _ in range(_SHELVES)]
            count = len(self._shelves)
            for number in unsorted:
                self._shelves[number % count].append(number)
            self._shelves = [array("q", sorted(shelf)) for shelf in self._shelves]

    def __contains__(self, key: object) -> bool:
        """Whether the key was added."""
        self._sort()
        number = hash(key)
        shelf = self._shelves[number % len(self._shelves)]
        place = bisect_left(shelf, number)
        return place < len(shelf) and shelf[place] == number

    def __getitem__(self, key: str) -> int:
        """How often the key was added."""
        self._sort()
        number = hash(key)
        shelf = self._shelves[number % len(self._shelves)]
        return bisect_right(shelf, number) - bisect_left(shelf, number)

    def __len__(self) -> int:
        """How many different keys were added."""
        self._sort()
        return sum(len(set(shelf)) for shelf in self._shelves)

    def __bool__(self) -> bool:
        """Whether any key was added."""
        return bool(self._unsorted) or any(self._shelves)


_FEW_KEYS: Final = 100_000  # 13 MB
_PLACES: Final = 1 << 22
_THREE_BITS: Final = tuple(1 << one | 1 << two | 1 << three for one, two, three in combinations(range(8), 3))
_MASKS: Final = (_THREE_BITS * 5)[:256]


class MetKeys:
    """Which record keys were met before: exactly while they are few, else with some that were not.

    The first ones are kept. Each later one sets three bits of one byte among four million. So of ten thousand keys that
    are new, three or four are taken for met once 200 000 were, and some 67 once a million were; none that was met is
    taken for new.
    """

    def __init__(self, *, few: int = _FEW_KEYS) -> None:
        """``few``: how many are kept as they are, or a few more."""
        self._few = few
        self._keys = set[str]()  # three times cheaper than the bits, which no cache holds
        self._places = bytearray()

    def meet(self, keys: Collection[str]) -> list[str]:
        """Those of these keys that may have been met before, in their order; all of them count as met from now on."""
        again = [] if self._keys.isdisjoint(keys) else [key for key in keys if key in self._keys]
        if len(self._keys) < self._few:
            self._keys.update(keys)
            return again
        self._places = self._places or bytearray(_PLACES)
        marked = self._mark(keys)
        if not again:
            return marked
        both = {*again, *marked}
        return [key for key in keys if key in both]

    def _mark(self, keys: Iterable[str]) -> list[str]:
        places, again = self._places, list[str]()
        for key in keys:
            number = hash(key)
            place, mask = number & (_PLACES - 1), _MASKS[number >> 22 & 255]
            known = places[place]
            if known & mask == mask:
                again.append(key)
            else:
                places[place] = known | mask
        return again


class RemovalGuard(msgspec.Struct, frozen=True):
    """The largest number of missing records that is not taken for an API fault.

    Attributes:
        percent: of the live records; None: ``records`` is the bound, or there is none.
        records: a number of records; None: likewise.
    """

    percent: float | None = 10.0
    records: int | None = None

    def holds(self, *, missing: int, live: int, anything_read: bool) -> bool:
        """Whether nothing may be removed.

        Args:
            missing: how many known records the reading did not hold.
            live: how many known records are not removed yet.
            anything_read: whether the reading held any record; an empty reading never removes everything.
        """
        if not missing or (self.percent is None and self.records is None):
            return False
        if not anything_read:
            return True
        if self.records is not None:
            return missing > self.records
        return missing > FEW and missing > live * (self.percent or 0.0) / 100


def plan_removals(
    gone: Mapping[str, tuple[str, Snapshot]],
    frames: Mapping[str, EventFrame],
    *,
    generation: str,
    sequence: int,
    recorded: str,
    keeps_content: bool = False,
) -> tuple[Commit, RoundCounts]:
    """The commit that removes these records: a tombstone and an event for each.

    Args:
        gone: by record key, the subject (the id as it was received) and the last snapshot.
        frames: by record key, what the events of its listing share.
        generation: of the feed's state.
        sequence: the number of the feed's last event so far.
        recorded: when the daemon noticed.
        keeps_content: whether tombstones hold what the records were.
    """
    snapshots: dict[str, Snapshot] = {}
    events: list[bytes] = []
    rejected = tuple(lost_snapshot(last) for _, last in gone.values() if last.unreadable)
    digest = blake2b(digest_size=16)
    for number, (key, (subject, last)) in enumerate(gone.items(), start=sequence + 1):
        previous = None if last.unreadable else last.raw
        change = Change(ChangeKind.REMOVED, key, subject, None, None, b"", previous, (), last.revision + 1)
        event_id = frames[key].event_id(change)
        digest.update(event_id.encode())
        events.append(frames[key].encode(change, event_id=event_id, sequence=number, recorded=recorded))
        raw, changed_at = (previous or b"") if keeps_content else b"", seconds_of(recorded)
        snapshots[key] = Snapshot(last.revision + 1, number, raw, removed=True, changed_at=changed_at)
    commit = Commit(generation, sequence, snapshots, tuple(events), rejected, digest=digest.hexdigest())
    return commit, RoundCounts(removed=len(gone))
