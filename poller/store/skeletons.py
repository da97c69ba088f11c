"""The skeleton of a record: its structure in JSON, with every value replaced by made-up characters.

Compression dictionaries are trained on skeletons, so that a dictionary holds no value of any record: who erases a
record need not look for it there. A made-up value has the kind and the length of the real one, because the training
also finds out how often characters of each kind occur.

======================  ============================================================================================
in the record           in its skeleton
======================  ============================================================================================
braces, commas, spaces  the same
``true false null``     the same
name of most records    the same
other name, string      letters, at most 24; digits where it has no other characters
UUID, date, time        the same format, other digits
number                  other digits, at most 12
======================  ============================================================================================

**Invariants**

- No character of a string or a number is taken over, but for the marks of a UUID, a date or a time.
- The name of a property is a value unless most of the samples that have its object have it, too, and a quarter of all:
  the keys of a map are ids or names. What stands under such a name has no structure of its own either.
- The same samples give the same skeletons, so a commit that is sent again is the same commit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from hashlib import shake_128
from typing import Final

import msgspec

MOST: Final = 0.75
"""The share of the objects at one place that have a property; the name of a rarer one counts as a value."""

FEWEST: Final = 0.25
"""The share of all samples that have it at least."""

_LONGEST_TEXT: Final = 24
_LONGEST_NUMBER: Final = 12
_LONGEST_SPACE: Final = 16
_DEEPEST: Final = 32
_NAME: Final = re.compile(rb'"[A-Za-z_$@][A-Za-z0-9_$@.:-]{0,63}"')
_MANY_DIGITS: Final = re.compile(rb"\d{4}")
_TOKEN: Final = re.compile(
    rb"""(?P<string>"(?:[^"\\]|\\.)*+")|(?P<number>-?\d[\d.eE+-]*)|(?P<same>true|false|null|[][{},:])|(?P<space>\s+)""",
    re.DOTALL,
)
_DATE: Final = rb"\d{4}-\d\d-\d\d"
_TIME: Final = rb"\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?"
_MOMENT: Final = re.compile(rb'"(?:%b(?:[T ]%b)?|%b)"' % (_DATE, _TIME, _TIME))
_UUID: Final = re.compile(rb'"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"')
_DIGITS: Final = re.compile(rb'"\d+"')
_UPPER: Final = re.compile(rb"[A-F]")
_CENTURY: Final = b"20"  # of most moments: not a digit of the record


def _table(characters: bytes) -> bytes:
    """What turns random bytes into these characters, each as often as it stands there."""
    return (characters * (256 // len(characters) + 1))[:256]


_LETTER: Final = _table(
    b"eeeeeeeeeeeettttttttaaaaaaaaooooooooiiiiiiinnnnnnnssssssrrrrrrhhhhhlllllddddcccuuummmfffppggwwyybvkxjqz"
    b"                EASMTKBCPRLDNHGF-,."
)
_DIGIT: Final = _table(b"0123456789")
_HEX: Final = _table(b"0123456789abcdef")
_UPPER_HEX: Final = _table(b"0123456789ABCDEF")
_DIGIT_OF_FORMAT: Final = re.compile(rb"[0-9a-fA-F]")


class _Token(msgspec.Struct, frozen=True):
    """A token of a record.

    Attributes:
        text: its bytes.
        kind: the group of :data:`_TOKEN`, or ``name`` of a property.
        path: of a name: those of the properties it stands under, and itself.
    """

    text: bytes
    kind: str
    path: tuple[bytes, ...] = ()


def skeletons(records: Sequence[bytes], *, variants: int = 1) -> list[bytes]:
    """The skeletons of records.

    Args:
        records: JSON objects; what is no JSON, or cut off, is left out from there on.
        variants: how many are made of each, with other made-up values.
    """
    read = [list(_tokens(record)) for record in records]
    names = _structural(read)
    return [
        _skeleton(tokens, names, _Noise(number * variants + variant))
        for number, tokens in enumerate(read)
        for variant in range(variants)
    ]


def _structural(records: Sequence[Sequence[_Token]]) -> Collection[tuple[bytes, ...]]:
    """The paths of the properties that are structure and no data."""
    counted = Counter(path for tokens in records for path in {one.path for one in tokens if one.path})
    objects = Counter(path for tokens in records for path in {one.path[:-1] for one in tokens if one.path})
    names = {path for path, count in counted.items() if _is_name(path[-1]) and count >= MOST * objects[path[:-1]]}
    common = {path for path in names if counted[path] >= FEWEST * len(records)}
    return {path for path in common if all(path[:depth] in common for depth in range(1, len(path)))}


def _is_name(text: bytes) -> bool:
    return _NAME.fullmatch(text) is not None and not _MANY_DIGITS.search(text)


def _tokens(record: bytes) -> Iterator[_Token]:
    """The tokens of a record, as far as it is JSON. Arrays leave no trace in the path of what is in them."""
    at, names = 0, list[bytes]()  # of the properties whose values are being read, one for each object
    opened = list[bytes]()
    expects_name = False
    while (found := _TOKEN.match(record, at)) is not None:
        at, kind, text = found.end(), found.lastgroup or "", found[0]
        if kind == "string" and expects_name:
            names[-1], expects_name = text, False
            yield _Token(text, "name", tuple(names))
            continue
        yield _Token(text, kind)
        if text in (b"{", b"["):
            opened.append(text)
            if len(opened) > _DEEPEST:
                return
            if text == b"{":
                names.append(b"")
        elif text in (b"}", b"]"):
            if not opened or (opened.pop() == b"{") != (text == b"}"):
                return
            if text == b"}":
                names.pop()
        if kind == "same":
            expects_name = text == b"{" or (text == b"," and opened[-1:] == [b"{"])


class _Noise:
    """Made-up characters, always the same ones for the same number."""

    def __init__(self, number: int) -> None:
        self._seed = b"%d" % number
        self._drawn = 0

    def characters(self, length: int, table: bytes) -> bytes:
        """This number of characters of a table."""
        self._drawn += 1
        return shake_128(b"%b %d" % (self._seed, self._drawn)).digest(length).translate(table)


def _skeleton(tokens: Sequence[_Token], names: Collection[tuple[bytes, ...]], noise: _Noise) -> bytes:
    parts: list[bytes] = []
    for token in tokens:
        match token.kind:
            case "name":
                parts.append(token.text if token.path in names else _made_up(token.text, noise))
            case "string":
                parts.append(_made_up(token.text, noise))
            case "number":
                parts.append(_number(token.text, noise))
            case "space":
                parts.append(token.text[:_LONGEST_SPACE])
            case _:
                parts.append(token.text)
    return b"".join(parts)


def _made_up(string: bytes, noise: _Noise) -> bytes:
    """A string in quotes of the same kind and about the same length."""
    if _UUID.fullmatch(string):
        return _with_digits(string, noise, _UPPER_HEX if _UPPER.search(string) else _HEX)
    if _MOMENT.fullmatch(string):
        made_up = _with_digits(string, noise, _DIGIT)
        return made_up if b":" in string[:4] else b'"%b%b' % (_CENTURY, made_up[3:])
    table = _DIGIT if _DIGITS.fullmatch(string) else _LETTER
    return b'"%b"' % noise.characters(min(len(string) - 2, _LONGEST_TEXT), table)


def _with_digits(string: bytes, noise: _Noise, table: bytes) -> bytes:
    """A date, a time or a UUID with other digits; only its marks are those of the string."""
    digits = iter(noise.characters(len(string), table))
    return _DIGIT_OF_FORMAT.sub(lambda _: bytes((next(digits),)), string)


def _number(text: bytes, noise: _Noise) -> bytes:
    digits = noise.characters(min(len(text), _LONGEST_NUMBER), _DIGIT)
    point = text.find(b".")
    if 0 < point < len(digits) - 1:
        digits = b"%b.%b" % (digits[:point], digits[point + 1 :])
    return digits
