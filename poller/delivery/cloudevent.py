"""An event's CloudEvents attributes as text, with its data as unopened bytes.

**Invariants**

* Every attribute of the event is here, under its own name and in its CloudEvents string form. The data is the very
  bytes that stand in the entry.
* What is not a CloudEvent 1.0 in JSON is refused when it is read, never later.
* The meaning of an attribute is not looked at.

An entry is read in one pass into fields of their own, which is what makes it fast; only an event with an attribute that
:class:`Envelope` does not name takes a second, slower one. The data is not looked into, so neither are its faults:
bytes that are no UTF-8 within it pass.

Refuses to know what an attribute means.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

_Text = Annotated[str, Meta(min_length=1)]

_NO_EXTENSIONS: Final[Mapping[str, str]] = MappingProxyType({})
_NAME: Final = re.compile(r"[a-z0-9]+")
_INTEGER: Final = re.compile(r"-?[0-9]+")
_BOOLEANS: Final = ("true", "false")
_UUID_LENGTH: Final = 36


class Envelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A received event: its CloudEvents attributes; None for one that it does not have.

    Attributes:
        data: the JSON value under ``data`` as it is spelled, or the bytes that ``data_base64`` spells; empty where the
            event has no data. ``bytes(envelope.data)`` copies it; until then it is a view into the entry.
    """

    specversion: Literal["1.0"]
    id: _Text
    source: _Text
    type: _Text
    subject: str | None = None
    time: str | None = None
    recordedtime: str | None = None
    sequence: str | None = None
    partitionkey: str | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    data: Raw = Raw()

    @property
    def extensions(self) -> Mapping[str, str]:
        """The attributes that have no field here."""
        return _NO_EXTENSIONS

    @property
    def opaque(self) -> bool:
        """Whether the data is bytes that stood in ``data_base64``, and not a JSON value."""
        return False

    def attribute(self, name: str) -> str | None:
        """An attribute by its name; None where the event has none of it."""
        value: str | None = getattr(self, name) if name in ATTRIBUTES else self.extensions.get(name)
        return value

    def attributes(self) -> Iterator[tuple[str, str]]:
        """Every attribute that the event has, with its value."""
        for name in ATTRIBUTES:
            value: str | None = getattr(self, name)
            if value is not None:
                yield name, value
        yield from self.extensions.items()


class _Extended(Envelope, frozen=True, kw_only=True):
    """An event with attributes of its own, or with bytes for data."""

    others: Mapping[str, str]
    from_base64: bool

    @property
    def extensions(self) -> Mapping[str, str]:
        return self.others

    @property
    def opaque(self) -> bool:
        return self.from_base64


ATTRIBUTES: Final = tuple(name for name in Envelope.__struct_fields__ if name != "data")
_FIELDS: Final = frozenset(Envelope.__struct_fields__)

_read: Final = msgspec.json.Decoder(Envelope).decode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_value: Final = msgspec.json.Decoder().decode


Event = tuple[Envelope, bytes]
"""An event's envelope, and all of it as it stands in the stream."""


def record_of(envelope: Envelope) -> str:
    """What the events of one record have in common, and no others of the feed.

    A UUID is the same whatever the case of its letters; a text of that length is treated likewise.
    """
    key = envelope.partitionkey or envelope.subject or ""
    return key.lower() if len(key) == _UUID_LENGTH else key


def envelope_of(entry: bytes) -> Envelope:
    """Read what is in an entry's field ``data``.

    Args:
        entry: an event in CloudEvents JSON.

    Raises:
        ValueError: it is none. The message says what is wrong and repeats nothing of the event but a name.
    """
    try:
        return _read(entry)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # no event, or one with extensions: the slower way tells which
    try:
        return _read_members(entry)
    except (ValueError, RecursionError) as refused:
        raise ValueError(f"no CloudEvent 1.0 in JSON: {refused}") from None


def _read_members(entry: bytes) -> Envelope:
    members = _members(entry)
    encoded = members.pop("data_base64", None)
    if encoded is not None and "data" in members:
        raise ValueError("it has data twice, as data and as data_base64")
    others = {name: members.pop(name) for name in members.keys() - _FIELDS}
    # The data is not converted: it may be nested deeper than anything else, and it is not needed here.
    data = members.pop("data", Raw())
    known: Any = {name: _value(raw) for name, raw in members.items()}
    envelope = msgspec.convert(known, Envelope)
    return _Extended(
        **{name: getattr(envelope, name) for name in ATTRIBUTES},
        data=data if encoded is None else Raw(_bytes_of(encoded)),
        others={name: text for name, raw in others.items() if (text := _string_form(name, raw)) is not None},
        from_base64=encoded is not None,
    )


def _bytes_of(encoded: Raw) -> bytes:
    text = _value(encoded)
    if not isinstance(text, str):
        raise ValueError("data_base64 is no text")  # noqa: TRY004 -- it is the entry that is wrong
    return b64decode(text, validate=True)


def _string_form(name: str, raw: Raw) -> str | None:
    """An extension's value in CloudEvents string form; None for null, which means absent."""
    if not _NAME.fullmatch(name):
        raise ValueError("an attribute's name is not of lower-case letters and digits")
    value = _value(raw)
    if value is None or isinstance(value, str):
        return value
    text = bytes(raw).decode().strip()
    if text in _BOOLEANS or _INTEGER.fullmatch(text):
        return text
    raise ValueError(f"the attribute {name} is no text, integer or boolean")
