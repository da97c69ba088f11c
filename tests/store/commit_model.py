"""A plain model of what one feed in the store holds: no script, no bytes, no second process.

A commit is written whole or not at all. Four comparisons tell which; the model then knows what the stream, the
snapshots and the token are. It is simple enough to be checked by reading.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["OK", "FENCED", "STALE", "ALREADY"]


@dataclass(frozen=True, slots=True)
class Published:
    """An event, reduced to what the test compares; ``value`` is None for a removed record."""

    sequence: int
    key: str
    kind: str
    revision: int
    value: int | None


@dataclass(frozen=True, slots=True)
class Known:
    """A snapshot; ``value`` is the record's last value; 0 once it is removed."""

    revision: int
    value: int
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """A commit: the state it was planned on and what it changes. ``token`` is None if it keeps the token."""

    generation: str
    sequence: int
    events: tuple[Published, ...]
    snapshots: dict[str, Known]
    digest: str
    token: str | None = None

    @property
    def next_sequence(self) -> int:
        return self.sequence + len(self.events)


@dataclass(slots=True)
class Model:
    """The feed's state. ``stream`` holds the events that consumers can see."""

    generation: str = ""
    sequence: int = 0
    digest: str = ""
    token: str | None = None
    stream: list[Published] = field(default_factory=list)
    snapshots: dict[str, Known] = field(default_factory=dict)
    lease: str | None = None

    def expected(self, nonce: str, commit: Planned) -> Outcome:
        """The outcome of this commit if the process with this nonce sends it now."""
        if self.lease != nonce:
            return "FENCED"
        if self.generation != commit.generation:
            return "STALE"
        if commit.digest and (commit.digest, commit.next_sequence) == (self.digest, self.sequence):
            return "ALREADY"
        return "OK" if self.sequence == commit.sequence else "STALE"

    def write(self, commit: Planned) -> None:
        """Apply the commit."""
        self.stream += commit.events
        self.snapshots |= commit.snapshots
        self.sequence, self.digest = commit.next_sequence, commit.digest
        if commit.token is not None:
            self.token = commit.token

    def begin_anew(self, generation: str, sequence: int) -> None:
        """Reset the feed: it forgets all records and its token; the stream keeps its events."""
        self.generation, self.sequence, self.digest = generation, sequence, ""
        self.token, self.snapshots = None, {}

    def copy(self) -> Model:
        """A copy as a backup restores it: without leases."""
        copied = deepcopy(self)
        copied.lease = None
        return copied


def planned(model: Model, records: dict[str, int]) -> tuple[list[Published], dict[str, Known]]:
    """The events and snapshots that follow for the model if the records have these values now."""
    events, snapshots, sequence = [], {}, model.sequence
    for key, value in records.items():
        known = model.snapshots.get(key)
        if known is not None and not known.removed and known.value == value:
            continue
        sequence += 1
        revision = known.revision + 1 if known else 1
        kind = "modified" if known and not known.removed else "created"
        events.append(Published(sequence, key, kind, revision, value))
        snapshots[key] = Known(revision, value)
    return events, snapshots


def removing(model: Model, keys: list[str]) -> tuple[list[Published], dict[str, Known]]:
    """The events and snapshots that follow if these records are gone."""
    events, snapshots = [], {}
    for number, key in enumerate(keys, start=model.sequence + 1):
        known = model.snapshots[key]
        events.append(Published(number, key, "removed", known.revision + 1, None))
        snapshots[key] = Known(known.revision + 1, 0, removed=True)
    return events, snapshots
