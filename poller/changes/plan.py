"""The plan of a commit: a slice of a page and what was known of its records, turned into one atomic write.

Law: planning the same records against the snapshots that their own commit left behind gives no event, as long as each
stands in the page once. That is what makes it safe to read a page again after a crash, and what keeps a full reading
silent when nothing changed.

Records are taken in the order in which they came. A record that stands twice in a slice is compared with its own first
version, so each version that differs becomes an event of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from poller.changes.classify import EVERYTHING, Change, Kind, Snapshot, checked, compare, lost_snapshot
from poller.changes.commit import Commit, Tally
from poller.changes.events import EventFrame
from poller.changes.held_versions import HeldVersion, Holding
from poller.changes.merging import merged, overlaid
from poller.changes.records import Record, Rejected, is_older, modified_of
from poller.changes.shapes import Shape


class Rules(msgspec.Struct, frozen=True):
    """How a feed's records are compared and published.

    Attributes:
        strip: leaves the ignored pointers out of a parsed record, from :func:`canonical.without`; None: all counts.
        shape: which fields are asked for, where that is not all, or was not the same before; what is known of other
            fields is kept beneath what was received.
        round_start: the feed's sequence number when the round began. A version that is older than one that was
            published in this round is passed over: paging showed the newer one first. What only an older part held
            comes with the next full reading.
        partial: records may carry only some of their keys: they are laid over what is known before anything else.
        holding: what becomes of versions older than the known one.
        silent: keep snapshots but publish nothing (a baseline of a feed with ``baseline = "silent"``).
    """

    strip: Callable[[Any], Any] | None = None
    shape: Shape | None = None
    round_start: int | None = None
    partial: bool = False
    holding: Holding = Holding()
    silent: bool = False

    def whole(self, record: Record, snapshot: Snapshot | None) -> Record:
        """The record, laid over what is known of it where it may be a part."""
        if snapshot is None or not self.partial or checked(snapshot).unreadable:
            return record
        return merged(record, snapshot.raw)

    def kept(self, raw: bytes, snapshot: Snapshot | None) -> bytes:
        """What is kept of a record: its bytes, above those of fields that were not asked for."""
        if self.shape is None or snapshot is None or snapshot.removed or snapshot.unreadable:
            return raw
        return overlaid(snapshot.raw, raw)


class _Draft:
    """A commit while it is being planned."""

    def __init__(self, frame: EventFrame, sequence: int, recorded: str) -> None:
        self._frame = frame
        self._sequence = sequence
        self._recorded = recorded
        self._digest = blake2b(digest_size=16)
        self.tally = Tally()
        self.snapshots: dict[str, Snapshot] = {}
        self.events: list[bytes] = []
        self.rejected: list[Rejected] = []
        self.qualifications: dict[str, None] = {}
        self.held: dict[str, HeldVersion | None] = {}

    def publish(self, change: Change, raw: bytes) -> None:
        self._sequence += 1
        event_id = self._frame.event_id(change)
        self._digest.update(event_id.encode())
        event = self._frame.encode(change, event_id=event_id, sequence=self._sequence, recorded=self._recorded)
        self.events.append(event)
        self.snapshots[change.key] = Snapshot(change.revision, self._sequence, raw)

    def keep_as_it_is(self, key: str, raw: bytes, snapshot: Snapshot) -> None:
        if snapshot.missing or raw != snapshot.raw:
            self._digest.update(raw)
            self.snapshots[key] = msgspec.structs.replace(snapshot, raw=raw, missing=False)

    def keep_silently(self, change: Change, raw: bytes) -> None:
        self._digest.update(raw)
        self.snapshots[change.key] = Snapshot(change.revision - 1, 0, raw)

    def holds(self, change: Change, holding: Holding) -> bool:
        """Whether this older version is held back; that is noted."""
        before = self.held_of(change.key, holding)
        held = holding.after(before, change.canonical)
        if before is None or (held is not None and held.digest != before.digest):
            self.tally.backwards += 1
        if held is None:
            return False
        if held != before:
            self._digest.update(b"%b %b %d" % (change.key.encode(), held.digest, held.seen_at))
            self.held[change.key] = held
        return True

    def release(self, key: str, holding: Holding) -> None:
        """Nothing of this record is held back any more."""
        if self.held_of(key, holding) is not None:
            self._digest.update(b"%b -" % key.encode())
            self.held[key] = None

    def held_of(self, key: str, holding: Holding) -> HeldVersion | None:
        """What is held back of a record."""
        return self.held[key] if key in self.held else holding.kept.get(key)

    def reject(self, rejected: Rejected) -> None:
        self._digest.update(rejected.raw)
        self.rejected.append(rejected)
        self.tally.quarantined += 1

    def readable(self, snapshot: Snapshot | None, change: Change) -> Snapshot | None:
        """The snapshot, or None where it could not be read: then it goes to the quarantine, and is replaced."""
        if snapshot is None or not (snapshot.unreadable or change.changed == EVERYTHING):
            return snapshot
        self._digest.update(snapshot.raw)
        self.rejected.append(lost_snapshot(snapshot))
        return None

    def commit(self, generation: str, sequence: int) -> Commit:
        return Commit(
            generation,
            sequence,
            self.snapshots,
            tuple(self.events),
            tuple(self.rejected),
            tuple(self.qualifications),
            held=self.held,
            digest=self._digest.hexdigest(),
        )


def plan(
    records: Iterable[Record | Rejected],
    known: Mapping[str, Snapshot],
    *,
    frame: EventFrame,
    generation: str,
    sequence: int,
    recorded: str,
    rules: Rules,
) -> tuple[Commit, Tally]:
    """Compare a slice of a page with the known snapshots.

    Args:
        records: in the order received.
        known: the snapshots of these records' keys, where there are any.
        frame: what the events of this listing share.
        generation: of the feed's state.
        sequence: the number of the feed's last event so far.
        recorded: see :func:`~poller.changes.events.recorded_time`.
        rules: how to compare.
    """
    draft = _Draft(frame, sequence, recorded)
    for record in records:
        draft.tally.records += 1
        if isinstance(record, Rejected):
            draft.reject(record)
            continue
        snapshot = draft.snapshots.get(record.key) or known.get(record.key)
        if snapshot is not None and _superseded(record, snapshot, rules.round_start):
            draft.tally.unchanged += 1
            continue
        try:
            whole = rules.whole(record, snapshot)
            change = compare(whole, snapshot, rules.strip, rules.shape)
        except ValueError as error:
            draft.reject(Rejected(record.raw, str(error)))
            continue
        if change is None:
            draft.release(record.key, rules.holding)
            draft.tally.unchanged += 1
            if snapshot is not None and (snapshot.missing or (rules.shape and snapshot.raw != whole.raw)):
                draft.keep_as_it_is(whole.key, rules.kept(whole.raw, snapshot), snapshot)
            continue
        snapshot = draft.readable(snapshot, change)
        if snapshot is not None and _goes_back(whole, change, snapshot) and draft.holds(change, rules.holding):
            draft.tally.unchanged += 1
            draft.keep_as_it_is(change.key, snapshot.raw, snapshot)  # it was not missing
            continue
        draft.release(record.key, rules.holding)
        draft.tally.count(change.kind)
        if whole.qualification:
            draft.qualifications[whole.qualification] = None
        if rules.silent:
            draft.keep_silently(change, rules.kept(whole.raw, snapshot))
        else:
            draft.publish(change, rules.kept(whole.raw, snapshot))
    return draft.commit(generation, sequence), draft.tally


def _goes_back(record: Record, change: Change, snapshot: Snapshot) -> bool:
    return change.kind is Kind.MODIFIED and is_older(record.modified, modified_of(snapshot.raw))


def _superseded(record: Record, snapshot: Snapshot, round_start: int | None) -> bool:
    if round_start is None or snapshot.sequence <= round_start or snapshot.raw == record.raw:
        return False
    return is_older(record.modified, modified_of(snapshot.raw))
