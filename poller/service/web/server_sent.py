"""Server-sent messages as bytes, as the HTML standard has them.

Law: the event arrives as it stands in the stream, but for line breaks between its JSON values: each becomes one line
feed. No block is without data, and no comment ends one: some clients hand out a message for each empty line. A place
that comes before the first event, or changes without one, is a message ``place`` of its own.

Pure.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

KIND: Final = "text/event-stream"
AWAY: Final = b": the store is away; this goes on when it is back\n"
BEAT_COMMENT: Final = b": nothing new\n"
"""That all is well and nothing has come."""

_BREAKS: Final = re.compile(rb"\r\n|\r|\n")


class Gap(msgspec.Struct, frozen=True):
    """The ``data`` of a message ``gap``: events that are gone from the stream and were not given out.

    Attributes:
        feed: ``SOURCE/NAME``.
        after: the sequence number of the last event before them; None: not known.
        before: that of the first one after them.
        missing: how many they are; None: not known.
    """

    feed: str
    after: int | None
    before: int
    missing: int | None


class PlaceNote(msgspec.Struct, frozen=True):
    """The ``data`` of a message ``place``.

    Attributes:
        place: the message's id.
    """

    place: str


def event(place: str, content: bytes) -> bytes:
    """An event, with the id to come back with once it has arrived."""
    return b"id: %b\n%b\n" % (place.encode(), _lines(content))


def gap(feed: str, *, after: int | None, before: int) -> bytes:
    """That something is missing before the event that follows; ``after`` is None where it is not known how much."""
    missing = None if after is None else before - after - 1
    return b"event: gap\n" + _lines(msgspec.json.encode(Gap(feed, after, before, missing))) + b"\n"


def moved(place: str) -> bytes:
    """The id to come back with, where no event says it."""
    return b"event: place\nid: %b\n%b\n" % (place.encode(), _lines(msgspec.json.encode(PlaceNote(place))))


def greeting(place: str, *, again_milliseconds: int) -> bytes:
    """What the first message begins with: after how long to come back, and an id for those who note it by the line."""
    return b"retry: %d\nid: %b\n" % (again_milliseconds, place.encode())


def _lines(content: bytes) -> bytes:
    return b"".join(b"data: %b\n" % line for line in _BREAKS.split(content))
