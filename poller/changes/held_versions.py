"""Older versions of known records, held back until it is certain that they are meant (``versions = "newest"``).

Theory of operation
-------------------
An API behind two unequal backends shows a record now as it is and now as it was. A version that says of itself that it
was modified before the one that is known is either such an answer, or a record that was restored; only time tells. So
it is held back: its digest is kept, its content is not needed, for a full reading brings it again if it is meant. The
same older version in two full readings, the second begun some time after the first one showed it, is published. Any
other version of the record ends that: a newer one, the known one, none at all; another older one begins anew.

A delta says too little to count as one of the two, but its token moves on: what it showed is noted, and asks for a full
reading as what a full reading showed asks for the second.

Invariants
----------
* What is held back is noted in the commit that passes it over, and the note goes in the commit that publishes it.
* As long as there is a note, a full reading is due at some time.

Pure. Times are milliseconds of the store's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from hashlib import blake2b
from types import MappingProxyType

import msgspec


class HeldVersion(msgspec.Struct, frozen=True, array_like=True):
    """What is noted of a version that is held back.

    Attributes:
        digest: of its canonical form, without what is ignored.
        seen_at: when a full reading showed it first; 0: only a delta did.
    """

    digest: bytes
    seen_at: int = 0


class VersionPolicy(msgspec.Struct, frozen=True):
    """How a reading treats older versions of known records.

    Attributes:
        kept: what is held back, by record key.
        newest: whether older versions are held back at all; if not, what is noted is published when it is shown.
        begun: when the reading began; None: it is a delta.
        now: the present moment.
        apart: the least time between the two readings.
    """

    kept: Mapping[str, HeldVersion] = MappingProxyType({})
    newest: bool = False
    begun: int | None = None
    now: int = 0
    apart: timedelta = timedelta(minutes=1)

    def after(self, held: HeldVersion | None, canonical: bytes) -> HeldVersion | None:
        """What is noted once this older version was shown; None: it is to be published.

        Args:
            held: what was noted of the record before.
            canonical: the version's canonical form.
        """
        if not self.newest:
            return None
        digest = blake2b(canonical, digest_size=16).digest()
        shown = 0 if self.begun is None else self.now
        if held is None or held.digest != digest:
            return HeldVersion(digest, shown)
        if self.begun is None:
            return held
        if not held.seen_at or held.seen_at > self.now:  # never in a full reading, or the store's clock was set back
            return HeldVersion(digest, shown)
        return None if self.begun - held.seen_at >= _milliseconds(self.apart) else held


def full_reading_due(held: Iterable[HeldVersion], *, apart: timedelta) -> int | None:
    """When a full reading is due for what is held back; None where nothing is."""
    return min((one.seen_at + _milliseconds(apart) if one.seen_at else 0 for one in held), default=None)


def _milliseconds(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)
