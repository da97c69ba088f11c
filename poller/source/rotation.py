"""Whose turn it is: in which order the listings of a feed are read, for there may be thousands.

Theory of operation
-------------------
First come the listings that something suggests have changed: those whose qualification was named by a change since
they were last tried, and those that were never read, the latest first. Then the others, by how long ago they were
tried, a listing whose readings brought changes counting for older than it is (three times at most), so that none waits
for ever. Between the two come those that are being confirmed, once in each round. In one rotation each has one turn,
and another for each change that names it meanwhile; a rotation may take several rounds.

Pure: who is named, and when, is told; times are milliseconds of the store's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from poller.changes.listings import Listing

NEAR: Final = 60_000
"""Milliseconds by which the clocks of two processes may differ that know the store's."""

_CONFIRMING: Final = -1.0  # behind whatever was named at any time


class Rotation:
    """The turns of one rotation that are left."""

    def __init__(
        self, listings: Mapping[str, Listing], *, since: int, resumed: bool = False, now: int | None = None
    ) -> None:
        """Begin or go on.

        What was tried or named in what is still to come was noted by a clock that was wrong, or was set back since:
        when that was is not known.

        Args:
            listings: what is kept of them.
            since: when the rotation began.
            resumed: whether it goes on: then those that were tried since have had their turn.
            now: what the clock shows; None: all moments are believed.
        """
        self._listings = listings
        self._since = since
        self._latest = float("inf") if now is None else now + NEAR
        self._tried = {
            name: listing.tried if listing.tried <= self._latest else 0 for name, listing in listings.items()
        }
        self._done = {
            name
            for name, listing in listings.items()
            if resumed and self._tried[name] >= since and not listing.confirming
        }
        self._named: dict[str, int] = {}
        self._waiting: deque[str] = deque()

    def named(self, changed: Mapping[str, int]) -> None:
        """These qualifications are there, and were last named by a change then (0: it is not known when)."""
        if not changed and self._named:
            return
        for name, when in changed.items():
            self._named[name] = max(when if when <= self._latest else 0, self._named.get(name, 0))
        self._waiting = deque(sorted(filter(self._due, self._named), key=self._urgency, reverse=True))

    def turn(self, now: int) -> str | None:
        """The listing to be read now; None where all had their turn."""
        self._latest = max(self._latest, now + NEAR)
        if not self._waiting:
            return None
        name = self._waiting.popleft()
        self._done.add(name)
        self._tried[name] = now
        return name

    @property
    def left(self) -> bool:
        """Whether some have not had their turn."""
        return bool(self._waiting)

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
        if self._listings[name].confirming:
            return True, _CONFIRMING
        return False, (self._since - tried) * (1 + self._listings[name].heat)
