"""Whose turn it is: in which order the listings of a feed are read, for there may be thousands.

Theory of operation
-------------------
First come the listings that something suggests have changed: those whose qualification was named by a change since
they were last tried, and those that were never read, the latest first. Then the others, by how long ago they were
tried, a listing whose readings brought changes counting for older than it is (three times at most), so that none waits
for ever. In one rotation each has one turn, and another for each change that names it meanwhile; a rotation may take
several rounds.

Pure: who is named, and when, is told; times are milliseconds of the wall clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from poller.changes.listings import Listing


class Rotation:
    """The turns of one rotation that are left."""

    def __init__(self, listings: Mapping[str, Listing], *, since: int, resumed: bool = False) -> None:
        """Take what is kept of the listings, and when the rotation began.

        Resumed, those that were tried since then have had their turn.
        """
        self._listings = listings
        self._since = since
        self._done = {name for name, listing in listings.items() if resumed and listing.tried >= since}
        self._tried = {name: listing.tried for name, listing in listings.items()}
        self._named: dict[str, int] = {}
        self._waiting: deque[str] = deque()

    def named(self, changed: Mapping[str, int]) -> None:
        """These qualifications are there, and were last named by a change then (0: it is not known when)."""
        if not changed and self._named:
            return
        for name, when in changed.items():
            self._named[name] = max(when, self._named.get(name, 0))
        self._waiting = deque(sorted(filter(self._due, self._named), key=self._urgency, reverse=True))

    def turn(self, now: int) -> str | None:
        """The listing to be read now; None where all had their turn."""
        if not self._waiting:
            return None
        name = self._waiting.popleft()
        self._done.add(name)
        self._tried[name] = now
        return name

    @property
    def names(self) -> tuple[str, ...]:
        """All qualifications that are there."""
        return tuple(self._named)

    def _due(self, name: str) -> bool:
        return name not in self._done or self._fresh(name)

    def _fresh(self, name: str) -> bool:
        return self._named[name] > self._tried.get(name, 0)

    def _urgency(self, name: str) -> tuple[bool, float]:
        tried = self._tried.get(name, 0)
        if not tried or self._fresh(name):
            return True, self._named[name]
        return False, (self._since - tried) * (1 + self._listings[name].heat)
