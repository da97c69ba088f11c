"""What is kept of one listing among the many of a feed: when it was read, and which records it held.

The records are what makes a removal safe: one that a listing held, and that no listing holds now, is gone from the
feed, whether the other listings were read in this round, a day ago, or answered that they are unchanged.

Keys are packed, for there are many: a UUID in its usual spelling takes 16 bytes, any other key its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final
from uuid import UUID

import msgspec

from poller.changes.confirmation import Confirmation

_UUID_LENGTH: Final = 36
_COOLING: Final = 0.5  # of the heat, with each reading
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list).decode


class Listing(msgspec.Struct, frozen=True, array_like=True):
    """One listing as last read. Times are milliseconds of the store's clock, 0 for never.

    Attributes:
        tried: when the last reading began, whatever became of it.
        read: when the last reading began that came to its end.
        gone: whether that found no such listing.
        heat: how often the last readings brought a change: 0 for never, towards 2 for always.
        held: the keys of its records, packed.
        validators: headers that ask for it on condition; empty where its answer had no version.
        unidentified: how many of its records had no id that can be read.
        confirmation: what is to be confirmed of its last readings; None: nothing.
    """

    tried: int = 0
    read: int = 0
    gone: bool = False
    heat: float = 0.0
    held: bytes = b""
    validators: dict[str, str] = {}
    unidentified: int = 0
    confirmation: Confirmation | None = None

    @property
    def confirming(self) -> bool:
        """Whether it is to be read again at its next turn."""
        return self.confirmation is not None and self.confirmation.due

    @property
    def keys(self) -> Iterator[str]:
        """The keys of its records."""
        return map(_text, _decode(self.held)) if self.held else iter(())

    def after(
        self,
        begun: int,
        *,
        keys: Iterable[str] = (),
        changed: bool = False,
        validators: Mapping[str, str] = _NO_HEADERS,
        gone: bool = False,
        unidentified: int = 0,
        confirmation: Confirmation | None = None,
    ) -> Listing:
        """The listing once a reading that began then came to its end."""
        heat = self.heat * _COOLING + changed
        return Listing(begun, begun, gone, heat, packed(keys), dict(validators), unidentified, confirmation)

    def unchanged(self, begun: int) -> Listing:
        """The listing once a reading that began then found it unchanged."""
        return msgspec.structs.replace(self, tried=begun, read=begun, heat=self.heat * _COOLING)

    def failed(self, begun: int) -> Listing:
        """The listing once a reading that began then failed."""
        return msgspec.structs.replace(self, tried=begun, validators={})


def packed(keys: Iterable[str]) -> bytes:
    """Record keys as one value; :attr:`Listing.keys` gives them back."""
    found = [_bytes(key) for key in keys]
    return _encode(found) if found else b""


def _bytes(key: str) -> bytes | str:
    if len(key) != _UUID_LENGTH:
        return key
    try:
        value = UUID(key)
    except ValueError:
        return key
    return value.bytes if str(value) == key else key


def _text(key: bytes | str) -> str:
    return key if isinstance(key, str) else str(UUID(bytes=key))
