"""What the demo counts: which versions of which records arrived, how late, and whether any is missing.

Law: a version counts as arrived when an event carried exactly that record. Versions that were replaced before anyone
read the API again cannot arrive; every record's latest version must.

Knows neither the stream nor the terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import median
from typing import Final

import msgspec

from poller.changes.canonical import canonical
from poller.cli.demo_lines import delay_of
from poller.cli.lines import Event
from poller.sandbox.history import Version

KINDS: Final = ("created", "modified", "removed")

_Arrival = tuple[str, str, bytes]


class Reckoning(msgspec.Struct, frozen=True):
    """The sandbox's log against what arrived: how many versions of each sort. ``missing`` must be 0."""

    changes: int
    seen: int
    replaced: int
    missing: int


class Ledger:
    """All arrivals so far."""

    def __init__(self) -> None:
        self.first: Counter[str] = Counter()
        self._kinds: Counter[tuple[str, str]] = Counter()
        self._delays: list[float] = []
        self._arrived: set[_Arrival] = set()

    def take(self, resource: str, event: Event, *, at: datetime) -> bool:
        """Count an event that arrived at ``at`` (UTC); whether it is worth showing: not one of a first reading."""
        record = bytes(event.data.record)
        self._arrived.add((resource, event.subject.lower(), canonical(record) if record else b""))
        if event.data.cause == "baseline":
            self.first[resource] += 1
            return False
        self._kinds[resource, event.kind] += 1
        self._delays.append(delay_of(event, at))
        return True

    def reckon(self, versions: Iterable[Version], *, after: int = 0) -> Reckoning:
        """Hold the versions of the sandbox's log against the arrivals; those up to number ``after`` are no changes."""
        every = list(versions)
        latest = {(version.resource, version.id.lower()): version.number for version in every}
        counts: Counter[str] = Counter()
        for version in every:
            key = (version.resource, version.id.lower())
            if (*key, canonical(version.record) if version.record else b"") in self._arrived:
                counts["seen"] += version.number > after
            elif latest[key] == version.number:
                counts["missing"] += 1
            else:
                counts["replaced"] += version.number > after
        changes = sum(version.number > after for version in every)
        return Reckoning(changes, counts["seen"], counts["replaced"], counts["missing"])

    def rows(self, resources: Sequence[str]) -> list[tuple[str, ...]]:
        """For each resource: its name, records of the first reading, then events of each kind."""
        return [(name, str(self.first[name]), *(str(self._kinds[name, kind]) for kind in KINDS)) for name in resources]

    @property
    def delay(self) -> tuple[float, float] | None:
        """Median and maximum, in seconds, from a change to its arrival; None where nothing changed."""
        return (median(self._delays), max(self._delays)) if self._delays else None
