"""How far somebody has read in each of several streams, as one short text: the id of a server-sent message.

A text holds, for each feed, five bytes of a hash of its name and three numbers of seven bits a byte: the two of the
entry's id and the event's ``sequence``; twenty characters a feed. So whoever comes back with it goes on in each stream
where it was, however they lie to each other; and the next ``sequence`` tells whether something was trimmed away since.

Law: what was made here is read as it was meant, or refused. A feed that the text does not hold begins at its beginning.

Pure.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

_VERSION: Final = b"\x01"
_NAME_BYTES: Final = 5
_LARGEST: Final = 2**64
_MORE: Final = 0x80
LONGEST: Final = 16 * 1024
"""Characters of a text."""


class Place(NamedTuple):
    """The last entry that was given out.

    Attributes:
        milliseconds: the first number of its id.
        number: the second.
        sequence: of its event; 0: not known, or none was given out.
    """

    milliseconds: int = 0
    number: int = 0
    sequence: int = 0

    @property
    def entry(self) -> str:
        """The entry's id."""
        return f"{self.milliseconds}-{self.number}"


BEGINNING: Final = Place()


class Places:
    """A place in each stream, and their text."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        """Take the places by feed."""
        self._places = dict(places)
        self._parts = {feed: _part(feed, place) for feed, place in sorted(places.items())}

    def __getitem__(self, feed: str) -> Place:
        """The place in a feed's stream."""
        return self._places[feed]

    def move(self, feed: str, place: Place) -> None:
        """This is the place there now."""
        self._places[feed] = place
        self._parts[feed] = _part(feed, place)

    @property
    def text(self) -> str:
        """All of them."""
        return urlsafe_b64encode(_VERSION + b"".join(self._parts.values())).rstrip(b"=").decode()


def read_places(text: str, feeds: Iterable[str]) -> dict[str, Place]:
    """The places of these feeds.

    Raises:
        ValueError: it is no such text.
    """
    if len(text) > LONGEST:
        raise ValueError("too long")
    try:
        content = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (Error, UnicodeEncodeError):
        raise ValueError("not as it was given out") from None
    if content[:1] != _VERSION:
        raise ValueError("not as it was given out")
    found = dict(_parts(content[1:]))
    return {feed: found.get(_name(feed), BEGINNING) for feed in feeds}


def place_of(entry: str) -> Place:
    """The place of an entry's id, ``MILLISECONDS-NUMBER`` or ``MILLISECONDS``.

    Raises:
        ValueError: it is none.
    """
    milliseconds, dash, number = entry.partition("-")
    numbers = (milliseconds, number if dash else "0")
    if not all(one.isascii() and one.isdecimal() and len(one) <= len(str(_LARGEST)) for one in numbers):
        raise ValueError("not an entry's id")
    first, second = map(int, numbers)
    if max(first, second) >= _LARGEST:
        raise ValueError("not an entry's id")
    return Place(first, second)


def _name(feed: str) -> bytes:
    return blake2b(feed.encode(), digest_size=_NAME_BYTES).digest()


def _part(feed: str, place: Place) -> bytes:
    return _name(feed) + b"".join(map(_written, place))


def _written(number: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last have the highest bit set."""
    found = bytearray()
    while number >= _MORE:
        found.append(number % _MORE + _MORE)
        number //= _MORE
    found.append(number)
    return bytes(found)


def _parts(content: bytes) -> Iterator[tuple[bytes, Place]]:
    at = 0
    while at < len(content):
        name, at = content[at : at + _NAME_BYTES], at + _NAME_BYTES
        numbers = []
        for _ in Place._fields:
            number, at = _number(content, at)
            numbers.append(number)
        yield name, Place(*numbers)


def _number(content: bytes, at: int) -> tuple[int, int]:
    found, factor = 0, 1
    while at < len(content) and factor < _LARGEST:
        byte, at = content[at], at + 1
        found += byte % _MORE * factor
        if byte < _MORE and found < _LARGEST:
            return found, at
        factor *= _MORE
    raise ValueError("not as it was given out")
