"""How far an event stream may be trimmed, and what that costs whom.

Theory of operation
-------------------
Events go when they are older than ``retention.age`` and nobody needs them: no consumer group, whoever made it, that has
not read or not acknowledged them, no delivery that waits for its next attempt, and no replay that is under way. That is
the rule, and it loses nothing.

``retention.max_bytes`` is the last resort: a stream that is larger loses its oldest events, needed or not, until it
fits. Whoever needed one of them is *overrun*, and told so.

Pure: facts in, a cut out. Ids are compared as pairs of numbers, never as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

Place = tuple[int, int]
"""An entry id: milliseconds and number."""

_ROOM: Final = 0.95  # of max_bytes that is left full, so that the next event does not trim again


class Facts(msgspec.Struct, frozen=True):
    """What is known of a stream.

    Attributes:
        length: entries.
        size: bytes of memory.
        first: its first entry; None where it has none.
        needed: by whoever needs something of it (a group's name), the first entry that is needed; beyond the last
            entry for one that has everything behind it.
    """

    length: int
    size: int
    first: Place | None
    needed: Mapping[str, Place] = {}


class Cut(msgspec.Struct, frozen=True):
    """What is to be done.

    Attributes:
        upto: entries before this one may go; None: none for their age.
        most: at most so many entries may stay; None: as many as there are.
    """

    upto: Place | None = None
    most: int | None = None


def cut(facts: Facts, *, now: datetime, age: timedelta, max_bytes: int) -> Cut:
    """How far to trim.

    Args:
        facts: of the stream.
        now: the wall clock, UTC; entries carry the store's, which is near it.
        age: how old an event may grow.
        max_bytes: how large the stream may grow.
    """
    oldest = (int((now - age).timestamp() * 1000), 0)
    upto = min((oldest, *facts.needed.values()))
    fresh = facts.first is None or upto <= facts.first
    if facts.size <= max_bytes or not facts.length:
        return Cut(None if fresh else upto)
    return Cut(None if fresh else upto, int(facts.length * (max_bytes / facts.size) * _ROOM))


def overrun(before: Facts, first: Place | None) -> dict[str, Place]:
    """Who has lost events that it needed, and from which on, once ``first`` is the first entry that is left."""
    if before.first is None or before.first == first:
        return {}
    return {name: max(place, before.first) for name, place in before.needed.items() if first is None or place < first}
