"""The circuit of a source: when an API does not answer, it is asked once in a while and not by everybody.

Theory of operation
-------------------
*Closed*: every request may start. :data:`THRESHOLD` failures in a row open it. *Open*: no request may start until the
probe is due; then one may, and until it is back no other. A probe that fails opens the circuit again for twice as
long, up to :data:`LONGEST`; any answer at all closes it, be it of a request that was under way since before.

A value and its successors: time comes in as the reading of a clock that only goes forward, nothing is awaited.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

THRESHOLD: Final = 5
SHORTEST: Final = timedelta(seconds=1)
LONGEST: Final = timedelta(seconds=60)


class Circuit(msgspec.Struct, frozen=True):
    """Where a source stands.

    Attributes:
        failures: how many there were in a row.
        since: when the first of them was; None where there is none.
        due: when the next probe may start; None while the circuit is closed.
        pause: how long the last pause was before its jitter.
        probing: whether a probe is on its way.
    """

    failures: int = 0
    since: timedelta | None = None
    due: timedelta | None = None
    pause: timedelta = timedelta(0)
    probing: bool = False

    def admits(self, at: timedelta) -> bool:
        """Whether a request may start now; where the circuit is open, as its probe."""
        return self.due is None or (at >= self.due and not self.probing)

    def started(self) -> Circuit:
        """A request that was admitted starts."""
        return self if self.due is None else msgspec.structs.replace(self, probing=True)

    def answered(self) -> Circuit:
        """The API answered."""
        return Circuit()

    def failed(self, at: timedelta, *, probe: bool, jitter: float) -> Circuit:
        """A request failed; ``probe`` says whether it was the probe, ``jitter`` is a factor about 1."""
        failures, since = self.failures + 1, at if self.since is None else self.since
        if failures < THRESHOLD or (self.due is not None and not probe):
            # One that was sent before the circuit opened says nothing new, and must not make the pause longer.
            return msgspec.structs.replace(self, failures=failures, since=since)
        pause = min(max(self.pause * 2, SHORTEST), LONGEST)
        return Circuit(failures, since, due=at + min(pause * jitter, LONGEST), pause=pause)

    def abandoned(self) -> Circuit:
        """The probe was called off before it was answered: the next request may be the probe."""
        return msgspec.structs.replace(self, probing=False)
