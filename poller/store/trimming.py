"""How far an event stream may be trimmed, and who holds it back.

Theory of operation
-------------------
Events go when they are older than ``retention.age`` and nobody needs them: no consumer group, whoever made it, that has
not read or not acknowledged them, no delivery that waits for its next attempt, no replay that is under way, and no
subscription that wants all there is and has not begun. That is the rule, and it loses nothing.

``retention.max_bytes`` is the last resort: a stream that is larger loses its oldest events, needed or not, until it
fits. It is looked at only once nothing may go for its age.

The law: an entry goes for its age only if everybody is done with it; and what may go does go.

Pure: what is known of a stream in, the next step out. Ids are compared as pairs of numbers, never as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

Place = tuple[int, int]
"""An entry id: milliseconds and number."""

_LARGEST: Final = 2**64 - 1
_ROOM: Final = 0.95  # of max_bytes that is left full, so that the next event does not trim again


class Stream(msgspec.Struct, frozen=True):
    """What is known of a stream.

    Attributes:
        length: entries.
        size: bytes of memory.
        first: its first entry; None where it has none.
    """

    length: int
    size: int
    first: Place | None


class UpTo(msgspec.Struct, frozen=True):
    """Entries up to this one go, for their age."""

    last: Place


class AtMost(msgspec.Struct, frozen=True):
    """The oldest go, until so many entries are left."""

    entries: int


def pressing(stream: Stream, *, oldest: Place, max_bytes: int) -> bool:
    """Whether there is anything to be thought about; see :func:`next_step`."""
    return stream.first is not None and (stream.first < oldest or stream.size > max_bytes)


def next_step(stream: Stream, done: Mapping[str, Place], *, oldest: Place, max_bytes: int) -> UpTo | AtMost | None:
    """What is to be done next; None: nothing.

    Args:
        stream: the stream.
        done: by whoever reads it, the entry up to which none is needed any more.
        oldest: entries before this place are old enough to go.
        max_bytes: how large the stream may be.
    """
    if stream.first is None:
        return None
    last = min((before(oldest), *done.values()))
    if stream.first <= last:
        return UpTo(last)
    if stream.size > max_bytes:
        return AtMost(min(int(stream.length * max_bytes / stream.size * _ROOM), stream.length - 1))
    return None


def holder(stream: Stream, done: Mapping[str, Place], *, oldest: Place) -> str | None:
    """Who alone keeps the first entry, which is old enough to go; of several the one that is furthest behind."""
    if stream.first is None or stream.first >= oldest or not done:
        return None
    last = min(done, key=lambda name: (done[name], name))
    return last if done[last] < stream.first else None


def before(place: Place) -> Place:
    """The place just before this one; none is before the first."""
    milliseconds, number = place
    if number:
        return milliseconds, number - 1
    return (milliseconds - 1, _LARGEST) if milliseconds else place


def following(place: Place) -> Place:
    """The place just behind this one; none is behind the last."""
    milliseconds, number = place
    if number < _LARGEST:
        return milliseconds, number + 1
    return (milliseconds + 1, 0) if milliseconds < _LARGEST else place
