"""Events as lines for people, and the choice of events that ``poller tail`` shows.

**Invariants**

- A value is shown as the text that was received, perhaps shortened, never as a rounded number.
- Foreign text cannot control the terminal.
- Other programs may write to a stream: an entry that is no event is :class:`Unreadable`, never a crash. Every choice
  lets it through, so that it is reported.
- Values of one kind of choice are alternatives; each kind that is given must match. Case counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from poller.config.event_types import type_test

STYLES: Final = {"created": "green", "modified": "yellow", "removed": "red"}
SHOWN_OF_SUBJECT: Final = 8  # characters of a record's id in a line

_STAMPS: Final = frozenset({"createdAt", "lastModifiedAt"})
_DULL: Final = ("ID", "Id", "Code")  # endings of names that mean nothing to a person
_LONGEST: Final = 36
_MOST_SHOWN: Final = 3
_KIND_WIDTH: Final = 8


class Unreadable(Exception):
    """An entry that holds no event of this program. The text says why."""


class EventData(msgspec.Struct, frozen=True):
    """The data of an event; ``record`` is absent where it was removed, ``previous`` where created."""

    revision: int
    cause: str
    record: msgspec.Raw = msgspec.Raw()
    previous: msgspec.Raw = msgspec.Raw()
    changed: tuple[str, ...] = ()


class EventView(msgspec.Struct, frozen=True):
    """The part of an event that is shown."""

    id: str
    type: Annotated[str, msgspec.Meta(pattern=r"\.[a-z]+\.v[0-9]+$")]
    subject: str
    time: str
    recordedtime: str
    data: EventData

    @property
    def kind(self) -> str:
        """``created``, ``modified`` or ``removed``."""
        return self.type.split(".")[-2]


class _OperationalData(msgspec.Struct, frozen=True):
    reason: str = ""


class OperationalEventView(msgspec.Struct, frozen=True):
    """The part of an event about the daemon itself that is shown."""

    type: str
    subject: str
    time: str
    data: _OperationalData = _OperationalData()


read_operational_event: Final = msgspec.json.Decoder(OperationalEventView).decode
read_event: Final = msgspec.json.Decoder(EventView).decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@contextmanager
def readable(event: bytes, *, feed: str, entry_id: str) -> Iterator[None]:
    """A block that decodes an entry's ``data``, which is empty where the entry has none.

    Raises:
        Unreadable: decoding failed; the text names the entry and the reason.
    """
    where = f"entry {entry_id} of {feed} is unreadable"
    if not event:
        raise Unreadable(f"{where}: no field data")
    try:
        yield
    except msgspec.ValidationError as error:
        raise Unreadable(f"{where}: not an event: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"{where}: not JSON: {error}") from None


def compact(event: bytes) -> str:
    """The event's JSON without white space; every number and text as it is."""
    return msgspec.json.format(event, indent=-1).decode()


def event_line(event: EventView, feed: str, *, feed_width: int = 0, today: str | None = None) -> list[tuple[str, str]]:
    """The line in parts of ``(text, style)``; where ``today`` (``2026-03-02``) is given, other days are shown."""
    return [
        (_when(event.recordedtime, today), "dim"),
        (f"  {feed:<{feed_width}}  ", ""),
        *record_parts(event, SHOWN_OF_SUBJECT),
        (what_changed(event.data), ""),
    ]


def record_parts(event: EventView, shown: int) -> list[tuple[str, str]]:
    """The parts of a line for the kind of change, the record and its revision; ``shown`` characters of the id."""
    return [
        (f"{event.kind:<{_KIND_WIDTH}}", STYLES.get(event.kind, "")),
        (f"  {_printable(event.subject)[:shown]:<{shown}}  r{event.data.revision}  ", "dim"),
    ]


def operational_event_line(
    event: OperationalEventView, name: str, *, feed_width: int = 0, today: str | None = None
) -> list[tuple[str, str]]:
    """The line of an event about the daemon itself; ``today`` as in :func:`event_line`."""
    kind = ".".join(event.type.split(".")[1:-1]) or event.type
    return [
        (_when(event.time, today), "dim"),
        (f"  {name:<{feed_width}}  ", ""),
        (_printable(kind), "magenta"),
        (f"  {_printable(event.subject)}", ""),
        (f"  {_printable(event.data.reason)}" if event.data.reason else "", "dim"),
    ]


def what_changed(data: EventData) -> str:
    """The old and new values of a modified record; some members of a created or removed one."""
    if not data.changed:
        return _digest(bytes(data.record) or bytes(data.previous))
    telling = [pointer for pointer in data.changed if pointer[1:] not in _STAMPS] or list(data.changed)
    parts = [
        f"{_printable(pointer[1:])}: {_value(data.previous, pointer)} → {_value(data.record, pointer)}"
        for pointer in telling[:_MOST_SHOWN]
    ]
    more = len(telling) - _MOST_SHOWN
    return ", ".join(parts) + (f", {more} more" if more > 0 else "")


def _when(time: str, today: str | None) -> str:
    day = "" if today in {None, time[:10]} else f"{time[:10]} "
    milliseconds = time[20:23].rstrip("Z") if time[19:20] == "." else ""  # RFC 3339 leaves a fraction of zero out
    return _printable(f"{day}{time[11:19]}.{milliseconds:0<3}")


def _digest(record: bytes) -> str:
    if not record:
        return ""
    telling = [
        f"{_printable(name)}: {_short(bytes(value))}"
        for name, value in _members(record).items()
        if name not in _STAMPS and name != "id" and not name.endswith(_DULL)
    ]
    return ", ".join(telling[:_MOST_SHOWN])


def _value(record: msgspec.Raw, pointer: str) -> str:
    """The text at a JSON pointer through objects; arrays are compared as a whole, so no pointer leads into one."""
    raw = bytes(record)
    if not raw:
        return "…"  # too large for the event
    for token in pointer.split("/")[1:]:
        try:
            members = _members(raw)
        except msgspec.ValidationError:
            return "absent"
        found = members.get(token.replace("~1", "/").replace("~0", "~"))
        if found is None:
            return "absent"
        raw = bytes(found)
    return _short(raw)


def _short(raw: bytes) -> str:
    text = _printable(msgspec.json.format(raw, indent=-1).decode())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "�" for letter in text)


class _ChangedData(msgspec.Struct, frozen=True):
    changed: tuple[str, ...] = ()


class _ChoiceView(msgspec.Struct, frozen=True):
    type: str
    subject: str = ""
    data: _ChangedData = _ChangedData()


class EventChoice(msgspec.Struct, frozen=True):
    """Which events to show; without any value: all.

    Attributes:
        types: as :mod:`poller.config.event_types` reads them.
        subjects: ids of records, patterns, or the first characters of an id, at least the eight that a line shows.
        changed: JSON pointers, which a change at or below them matches.
    """

    types: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The choice as the end of a sentence about events; empty: all events."""
        kinds = (("of type", self.types), ("of record", self.subjects), ("that change", self.changed))
        return "".join(f" {words} {' or '.join(given)}" for words, given in kinds if given)

    def matches(self, event: bytes) -> bool:
        """Whether to show an event."""
        if not (self.types or self.subjects or self.changed):
            return True
        try:
            outline = msgspec.json.decode(event, type=_ChoiceView)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return True
        return (
            (not self.types or _test_of(self.types)(outline.type))
            and (not self.subjects or any(_is_subject(outline.subject, wanted) for wanted in self.subjects))
            and (
                not self.changed
                or any(_is_at_or_below(one, top) for one in outline.data.changed for top in self.changed)
            )
        )


@lru_cache(maxsize=8)
def _test_of(types: tuple[str, ...]) -> Callable[[str], bool]:
    return type_test(types)


def _is_subject(subject: str, wanted: str) -> bool:
    is_start = len(wanted) >= SHOWN_OF_SUBJECT and subject.startswith(wanted)
    return is_start or fnmatchcase(subject, wanted)


def _is_at_or_below(pointer: str, top: str) -> bool:
    top = "/" + top.strip("/")
    return pointer == top or pointer.startswith(f"{top}/")
