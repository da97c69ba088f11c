"""The value that a plan ends in and that the store writes, and the count of what went into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from poller.changes.classify import Kind, Snapshot
from poller.changes.held_versions import HeldVersion
from poller.changes.listings import Listing
from poller.changes.records import Rejected


class Tally(msgspec.Struct, gc=False):
    """How many records went which way. Adds up over slices with ``+=``.

    ``backwards`` counts versions older than the known one, published or held back, each once; they are counted under
    another name as well.
    """

    records: int = 0
    created: int = 0
    modified: int = 0
    removed: int = 0
    unchanged: int = 0
    quarantined: int = 0
    backwards: int = 0

    def __iadd__(self, other: Tally) -> Self:
        """Add another tally to this one."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    @property
    def changes(self) -> int:
        """How many events were published, or would have been but for a silent baseline."""
        return self.created + self.modified + self.removed

    def count(self, kind: Kind) -> None:
        """Count one change of this kind."""
        setattr(self, kind, getattr(self, kind) + 1)


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
            where that does not matter: marks alone may be written twice.
        held: by record key, versions that are held back from now on; None where none is any more.
    """

    generation: str
    sequence: int
    snapshots: Mapping[str, Snapshot] = {}
    events: tuple[bytes, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    qualifications: tuple[str, ...] = ()
    marks: Mapping[str, str | None] = {}
    listings: Mapping[str, Listing] = {}
    digest: str = ""
    held: Mapping[str, HeldVersion | None] = {}

    @property
    def next_sequence(self) -> int:
        """The feed's sequence number once this is committed."""
        return self.sequence + len(self.events)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.snapshots or self.events or self.rejected or self.marks or self.listings or self.held)
