"""The structure of a feed's records, apart from their values: skeletons for dictionaries, and which layouts they have.

A *skeleton* is a record with every value replaced by made-up characters. Compression dictionaries are trained on
skeletons, so that a dictionary holds no value of any record: who erases a record need not look for it there. A made-up
value has the kind and the length of the real one, because the training also finds out how often characters of each kind
occur.

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

Of a record that has a layout (:mod:`poller.changes.layouts`) the values alone are stored. The bench's record of 265
bytes takes 50 so, where compression with a dictionary of structure leaves 83, in about the same time.

===========  =======================================================================================================
kind         stored as
===========  =======================================================================================================
a format     half a byte for each digit
``key``      nothing: the record's key stands there
``again``    nothing
``text``     its length and the characters between the quotation marks
``number``   its length and its characters
``word``     one byte
===========  =======================================================================================================

**Invariants**

- No character of a string or a number is taken over, but for the marks of a UUID, a date or a time.
- The name of a property is a value unless most of the samples that have its object have it, too, and a quarter of all:
  the keys of a map are ids or names. What stands under such a name has no structure of its own either, and a record
  with one has no layout.
- The same samples give the same skeletons and layouts, so a commit that is sent again is the same commit.
"""

from __future__ import annotations

import re
from binascii import unhexlify
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b, shake_128
from itertools import accumulate, chain, repeat
from struct import iter_unpack
from typing import Final

import msgspec

from poller.changes.layouts import (
    AGAIN,
    KEY,
    LONGEST_VALUE,
    MARKS,
    NUMBER,
    PLAIN_NUMBER,
    PLAIN_STRING,
    TEXT,
    UUID_FORMAT,
    WORD,
    WORDS,
    AlikeRecords,
    Columns,
    Layout,
    is_format,
    matcher_of,
)

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


MOST_LAYOUTS: Final = 8
"""Of one feed. Each costs a record that has none about as much as compressing it."""

_FEWEST_SAMPLES: Final = 2  # what one alone looks like says nothing of others
_MOST_VALUES: Final = 64
_WARM: Final = 128  # a packer takes some KiB, and a process may have thousands of feeds


def layouts(records: Sequence[tuple[bytes, bytes | None]]) -> list[Layout]:
    """The layouts that several of these records have, in the order in which they are to be tried.

    Args:
        records: JSON objects, and the key of each as it stands in the record where that is a UUID.
    """
    common = [one for one, count in _counted(records).most_common() if count >= _FEWEST_SAMPLES]
    both = dict.fromkeys(chain.from_iterable((one, one.modified) for one in common))
    return sorted(list(both)[:MOST_LAYOUTS], key=lambda one: -one.kinds.count(AGAIN))  # the more specific ones first


def share_with_layout(records: Sequence[tuple[bytes, bytes | None]]) -> float:
    """The share of these records that have a layout which another one has as well; much cheaper than packing them."""
    return sum(count for count in _counted(records).values() if count >= _FEWEST_SAMPLES) / max(len(records), 1)


def _counted(records: Sequence[tuple[bytes, bytes | None]]) -> Counter[Layout]:
    """How many of these records have each layout."""
    read = [list(_tokens(record)) for record, _ in records]
    names = _structural(read)
    return Counter(filter(None, (_layout(*one, tokens, names) for one, tokens in zip(records, read, strict=True))))


def _layout(
    record: bytes, key: bytes | None, tokens: Sequence[_Token], names: Collection[tuple[bytes, ...]]
) -> Layout | None:
    """The layout of a record; None: it has none."""
    if b"".join(token.text for token in tokens) != record or not record.endswith(b"}"):
        return None
    texts, kinds, last = [b""], list[str](), b""
    for token in tokens:
        if token.kind in ("same", "space") and token.text not in WORDS:
            texts[-1] += token.text
        elif token.kind == "name":
            if token.path not in names:
                return None
            texts[-1] += token.text
        else:
            quoted = token.kind == "string"
            value = token.text[1:-1] if quoted else token.text
            kind = _kind(token, value, key=key if KEY not in kinds else None, last=last)
            if kind is None:
                return None
            last = value if is_format(kind) else last
            kinds.append(kind)
            texts[-1] += b'"' * quoted
            texts.append(b'"' * quoted)
    return Layout(tuple(texts), tuple(kinds)) if 0 < len(kinds) <= _MOST_VALUES else None


def _kind(token: _Token, value: bytes, *, key: bytes | None, last: bytes) -> str | None:
    """The kind of a value; None: no layout has such a one."""
    if token.kind == "same":
        return WORD
    if token.kind == "number":
        return NUMBER if PLAIN_NUMBER.fullmatch(value) else None
    if value == key:
        return KEY
    if _UUID.fullmatch(token.text) and not _UPPER.search(value):
        return UUID_FORMAT
    if _MOMENT.fullmatch(token.text):
        return AGAIN if value == last else _DIGIT_OF_MOMENT.sub(b"0", value).decode()
    return TEXT if PLAIN_STRING.fullmatch(token.text) else None


_DIGIT_OF_MOMENT: Final = re.compile(rb"\d")


class _Packer:
    """Makes values of the records that have one layout, and records of their values."""

    def __init__(self, layout: Layout) -> None:
        kinds = layout.columns
        self.matcher = matcher_of(layout)
        self._formats = [at for at, kind in enumerate(kinds) if is_format(kind)]
        self._others = [(at, kind == WORD) for at, kind in enumerate(kinds) if kind in _OTHERS]
        digits = sum(len(_digits(kind)) for kind in kinds if is_format(kind))
        self._width = (digits + 1) // 2
        self._padding = [repeat(b"0")] * (digits % 2)
        self._slices, self._template, self._places = _template(layout)

    def pack(self, records: Sequence[bytes], keys: Sequence[bytes | None], number: bytes) -> Sequence[bytes | None]:
        """This byte and the values of each of these records with these keys; None: it does not have this layout."""
        matches, columns = self.matcher.columns(records, keys)
        found = self.pack_values(columns, number)
        if len(found) == len(records):
            return found
        rest = iter(found)
        return [next(rest) if one else None for one in matches]

    def pack_values(self, columns: Columns, number: bytes) -> list[bytes]:
        """This byte and these values of records; all at once, for a first reading packs each record."""
        if not columns:
            return []
        parts: list[Iterable[bytes]] = [[number] * len(columns[0])]
        if self._formats:
            rows = zip(*(columns[at] for at in self._formats), *self._padding, strict=False)
            digits = unhexlify(b"".join(chain.from_iterable(rows)).translate(None, MARKS))
            parts.append(chain.from_iterable(iter_unpack(f"{self._width}s", digits)))
        for at, is_word in self._others:
            parts += [map(_word, columns[at])] if is_word else [map(_length, map(len, columns[at])), columns[at]]
        return list(map(b"".join, zip(*parts, strict=True)))

    def unpack(self, stored: bytes, key: str) -> bytes:
        """The record with these values, which stand behind one byte.

        Raises:
            IndexError: they are not as many.
        """
        at = 1 + self._width
        digits = stored[1:at].hex().encode()
        values = [key.encode(), *[digits[one] for one in self._slices]]
        for _, is_word in self._others:
            end = at + 1 if is_word else at + 1 + stored[at]
            values.append(WORDS[stored[at]] if is_word else stored[at + 1 : end])
            at = end
        return self._template % tuple([values[place] for place in self._places])


def _template(layout: Layout) -> tuple[list[slice], bytes, list[int]]:
    """How a record is made of what is stored.

    Returns:
        where the runs of digits are; the record, with ``%b`` for each value or run; and which one that is: 0 is the
        key, then come the runs, then the other values.
    """
    runs = [len(run) for kind in layout.kinds if is_format(kind) for run in _RUN.findall(kind)]
    slices = [slice(end - length, end) for length, end in zip(runs, accumulate(runs), strict=True)]
    parts, places = [_literal(layout.texts[0])], list[int]()
    run, other, last, last_form = 1, len(slices) + 1, range(0), ""
    for kind, text in zip(layout.kinds, layout.texts[1:], strict=True):
        form = "%b"
        if is_format(kind):
            count, form = len(_RUN.findall(kind)), _RUN.sub("%b", kind)
            last, last_form, run = range(run, run + count), form, run + count
            places += last
        elif kind == AGAIN:
            form = last_form
            places += last
        elif kind == KEY:
            places.append(0)
        else:
            places.append(other)
            other += 1
        parts += (form.encode(), _literal(text))
    return slices, b"".join(parts), places


def _literal(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")


_OTHERS: Final = (TEXT, NUMBER, WORD)
_RUN: Final = re.compile(r"[0x]+")
_BYTES: Final = tuple(bytes((number,)) for number in range(LONGEST_VALUE + 1))
_length: Final = _BYTES.__getitem__
_word: Final = dict(zip(WORDS, _BYTES, strict=False)).__getitem__


def _digits(form: str) -> str:
    return form.encode().translate(None, MARKS).decode()


_packer_of: Final = lru_cache(maxsize=_WARM)(_Packer)


_MAGIC: Final = b"\0layouts"  # no dictionary of zstd begins so
_DIGEST_BYTES: Final = 8  # behind it: what is written with a damaged layout could not be read


class Structure(msgspec.Struct, frozen=True, array_like=True):
    """What a feed's snapshots leave out.

    Attributes:
        layouts: of its records.
        dictionary: of zstd, for records without one of these layouts; empty: there is none.
    """

    layouts: tuple[Layout, ...] = ()
    dictionary: bytes = b""

    @classmethod
    def of(cls, content: bytes) -> Structure:
        """The structure from its stored form. That may be a dictionary alone, as earlier versions have it.

        Raises:
            ValueError: it is damaged, or a later version has written it.
        """
        if not content.startswith(_MAGIC):
            return cls(dictionary=content)
        start = len(_MAGIC) + _DIGEST_BYTES
        digest, encoded = content[len(_MAGIC) : start], content[start:]
        if blake2b(encoded, digest_size=_DIGEST_BYTES).digest() != digest:
            raise ValueError("a dictionary that is damaged")
        try:
            return msgspec.msgpack.decode(encoded, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"a dictionary that a later version has written: {error}") from None

    @staticmethod
    def has_layouts(content: bytes) -> bool:
        """Whether this stored form is of a version that looks for layouts."""
        return content.startswith(_MAGIC)

    def encode(self) -> bytes:
        """The stored form."""
        encoded = msgspec.msgpack.encode(self)
        return _MAGIC + blake2b(encoded, digest_size=_DIGEST_BYTES).digest() + encoded

    def pack(self, records: Sequence[bytes], keys: Sequence[bytes | None]) -> list[bytes | None]:
        """For each record one byte with the number of its layout, and its values; None: it has no layout.

        Args:
            records: as received.
            keys: as they stand in them; None: that is not known.
        """
        packed: list[bytes | None] = [None] * len(records)
        left: Sequence[int] = range(len(records))
        for number, layout in enumerate(self.layouts):
            if not left:
                break
            packer, first = _packer_of(layout), _BYTES[number]
            if len(left) == len(records):
                packed = list(packer.pack(records, keys, first))
            else:
                found = packer.pack([records[place] for place in left], [keys[place] for place in left], first)
                for place, stored in zip(left, found, strict=True):
                    packed[place] = stored
            left = [place for place in left if packed[place] is None]
        return packed

    def pack_alike(self, alike: AlikeRecords) -> list[bytes] | None:
        """As :meth:`pack`, of records by columns; None: they have another layout than the first one."""
        if not self.layouts or alike.layout != self.layouts[0]:  # a later one may take more bytes
            return None
        return _packer_of(alike.layout).pack_values(alike.columns, _BYTES[0])

    def unpack(self, stored: bytes, key: str) -> bytes:
        """The record of what :meth:`pack` has made of it.

        Raises:
            IndexError: there is no such layout, or it has more values.
        """
        return _packer_of(self.layouts[stored[0]]).unpack(stored, key)
