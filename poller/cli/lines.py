"""An event as one line for people: when, which feed, what kind, whose, and what changed.

Law: values are shown as the very text that was received, shortened, never as a number near it; nothing that a record
holds can steer the terminal. Others may write to a stream too: what is no event is :class:`Unreadable`, never a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import msgspec

from poller.cli.choosing import SHOWN_OF_SUBJECT

STYLES: Final = {"created": "green", "modified": "yellow", "removed": "red"}

_STAMPS: Final = frozenset({"createdAt", "lastModifiedAt"})
_DULL: Final = ("ID", "Id", "Code")  # endings of names that say nothing to a person
_LONGEST: Final = 36
_MOST_SHOWN: Final = 3
_KIND_WIDTH: Final = 8


class Unreadable(Exception):
    """An entry that holds no event of this program. The text says why."""


class Content(msgspec.Struct, frozen=True):
    """The event's data; see the contract. ``record`` is absent where it was removed, ``previous`` where created."""

    revision: int
    cause: str
    record: msgspec.Raw = msgspec.Raw()
    previous: msgspec.Raw = msgspec.Raw()
    changed: tuple[str, ...] = ()


class Event(msgspec.Struct, frozen=True):
    """What is shown of an event."""

    id: str
    type: Annotated[str, msgspec.Meta(pattern=r"\.[a-z]+\.v[0-9]+$")]
    subject: str
    time: str
    recordedtime: str
    data: Content

    @property
    def kind(self) -> str:
        """``created``, ``modified`` or ``removed``."""
        return self.type.split(".")[-2]


class _Said(msgspec.Struct, frozen=True):
    reason: str = ""


class Announced(msgspec.Struct, frozen=True):
    """What is shown of an event about the daemon itself."""

    type: str
    subject: str
    time: str
    data: _Said = _Said()


read_announced: Final = msgspec.json.Decoder(Announced).decode
read_event: Final = msgspec.json.Decoder(Event).decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@contextmanager
def understood(event: bytes, *, feed: str, entry_id: str) -> Iterator[None]:
    """Reading and showing an entry's ``data``, empty where it has none, within the block.

    Raises:
        Unreadable: it is not what the block takes it for; the text names the entry and the reason.
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
    """The event's JSON without white space between its parts; every number and text as it is."""
    return msgspec.json.format(event, indent=-1).decode()


def line_of(event: Event, feed: str, *, feed_width: int = 0, today: str | None = None) -> list[tuple[str, str]]:
    """The line in parts of ``(text, style)``; where ``today`` (``2026-03-02``) is given, other days are shown."""
    return [
        (_when(event.recordedtime, today), "dim"),
        (f"  {feed:<{feed_width}}  ", ""),
        *whose(event, SHOWN_OF_SUBJECT),
        (what_changed(event.data), ""),
    ]


def whose(event: Event, shown: int) -> list[tuple[str, str]]:
    """The parts of a line that say what became of which record; of its id so many characters."""
    return [
        (f"{event.kind:<{_KIND_WIDTH}}", STYLES.get(event.kind, "")),
        (f"  {_printable(event.subject)[:shown]:<{shown}}  r{event.data.revision}  ", "dim"),
    ]


def announced_line(
    event: Announced, name: str, *, feed_width: int = 0, today: str | None = None
) -> list[tuple[str, str]]:
    """The line of an event about the daemon itself: what it is, of what, and why; ``today`` as in :func:`line_of`."""
    kind = ".".join(event.type.split(".")[1:-1]) or event.type
    return [
        (_when(event.time, today), "dim"),
        (f"  {name:<{feed_width}}  ", ""),
        (_printable(kind), "magenta"),
        (f"  {_printable(event.subject)}", ""),
        (f"  {_printable(event.data.reason)}" if event.data.reason else "", "dim"),
    ]


def what_changed(data: Content) -> str:
    """Old and new values where it was modified; the record's telling members where it was created or removed."""
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
