"""Finding what is gone: the records that a complete full reading did not hold, and what becomes of them.

The API shows no deletes, so absence is all there is to go by, and absence has other causes: a listing that forgets, an
API that answers nothing to everyone. Therefore three rules, each of which can only keep a record, never remove one:

* only a reading that was completed counts;
* absence must be confirmed (by asking for the record itself or, where that cannot be, by a second full reading);
* where too much is missing at once, nothing is removed until an operator says so.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from poller.changes.classify import Change, Kind, Snapshot, lost_snapshot
from poller.changes.commit import Commit, Tally
from poller.changes.events import EventFrame

_SHELVES: Final = 256
_MASK: Final = 2**64 - 1
# Below so many records a share says nothing: one of five is not a sign of an API that went wrong.
FEW: Final = 50


class Seen:
    """The record keys of a full reading, at eight bytes each, for readings are long and memory is not.

    Keys are held as 64-bit hashes. Should two of a feed's keys ever share one, the worst that happens is that a removal
    goes unnoticed for as long as the other one is there.
    """

    def __init__(self) -> None:
        self._shelves = [array("Q") for _ in range(_SHELVES)]
        self._sorted = True

    def update(self, keys: Iterable[str]) -> None:
        """Note that these keys were there."""
        for number in map(_number, keys):
            self._shelves[number % _SHELVES].append(number)
        self._sorted = False

    def __contains__(self, key: object) -> bool:
        """Whether it was."""
        if not self._sorted:
            self._shelves = [array("Q", sorted(shelf)) for shelf in self._shelves]
            self._sorted = True
        number = _number(key)
        shelf = self._shelves[number % _SHELVES]
        place = bisect_left(shelf, number)
        return place < len(shelf) and shelf[place] == number

    def __bool__(self) -> bool:
        """Whether there was any."""
        return any(self._shelves)


def _number(key: object) -> int:
    return hash(key) & _MASK


class Breaker(msgspec.Struct, frozen=True):
    """How much may be missing at once before it is taken for a fault of the API.

    Attributes:
        percent: of the records known to be there; None where ``records`` or nothing is the bound.
        records: a number of records; None likewise.
    """

    percent: float | None = 10.0
    records: int | None = None

    def holds(self, *, missing: int, live: int, anything_read: bool) -> bool:
        """Whether nothing may be removed.

        Args:
            missing: how many known records the reading did not hold.
            live: how many known records are not removed yet.
            anything_read: whether the reading held any record at all: nothing for everything is never a removal.
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
) -> tuple[Commit, Tally]:
    """The commit that removes these records: a tombstone and an event for each.

    Args:
        gone: by record key, the subject (the id as it was received) and the last snapshot.
        frames: by record key, what the events of its listing share.
        generation: of the feed's state.
        sequence: the number of the feed's last event so far.
        recorded: when the daemon noticed.
    """
    snapshots: dict[str, Snapshot] = {}
    events: list[bytes] = []
    rejected = tuple(lost_snapshot(last) for _, last in gone.values() if last.unreadable)
    digest = blake2b(digest_size=16)
    for number, (key, (subject, last)) in enumerate(gone.items(), start=sequence + 1):
        previous = None if last.unreadable else last.raw
        change = Change(Kind.REMOVED, key, subject, None, None, b"", previous, (), last.revision + 1)
        event_id = frames[key].event_id(change)
        digest.update(event_id.encode())
        events.append(frames[key].encode(change, event_id=event_id, sequence=number, recorded=recorded))
        snapshots[key] = Snapshot(last.revision + 1, number, previous or b"", removed=True)
    commit = Commit(generation, sequence, snapshots, tuple(events), rejected, digest=digest.hexdigest())
    return commit, Tally(removed=len(gone))
