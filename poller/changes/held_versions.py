"""Older versions of known records, held back until confirmed (``versions = "newest"``).

Theory of operation
-------------------
An API behind two unequal backends shows a record now as it is and now as it was. A version with an earlier
modification time than the known one is either such an answer or a record that was restored. So it is held back: its
digest is stored, and if the same version is in two full readings, the second started some time after the first one
showed it, it is published. Its content is not needed, because the second reading brings it again.

**Invariants**

- Any other version of the record ends the hold: a newer one, the known one, or none. Another older version starts a
  new one.
- A delta does not count as one of the two readings, but its token moves on: what it showed is stored too, and asks
  for a full reading.
- A held version is stored by the commit that passes it over, and deleted by the commit that publishes it.
- As long as a version is held, a full reading is due at some time.
- Pure. Times are milliseconds of the store's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from hashlib import blake2b
from types import MappingProxyType

import msgspec


class HeldVersion(msgspec.Struct, frozen=True, array_like=True):
    """A version that is held back.

    Attributes:
        digest: of its canonical form, without ignored fields.
        seen_at: when a full reading showed it first; 0: only a delta did.
    """

    digest: bytes
    seen_at: int = 0


class VersionPolicy(msgspec.Struct, frozen=True):
    """How a reading treats older versions of known records.

    Attributes:
        kept: held versions by record key.
        newest: whether older versions are held back; if not, a held version is published when it is shown.
        begun: when the reading started; None: it is a delta.
        now: the present moment.
        apart: the least time between the two readings.
    """

    kept: Mapping[str, HeldVersion] = MappingProxyType({})
    newest: bool = False
    begun: int | None = None
    now: int = 0
    apart: timedelta = timedelta(minutes=1)

    def after(self, held: HeldVersion | None, canonical: bytes) -> HeldVersion | None:
        """What is held after this older version was shown; None: publish it.

        Args:
            held: what was held of the record before.
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
    """When a full reading is due for held versions; None: nothing is held."""
    return min((one.seen_at + _milliseconds(apart) if one.seen_at else 0 for one in held), default=None)


def _milliseconds(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)
