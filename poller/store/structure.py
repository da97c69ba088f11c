"""The structure of a feed's records, apart from their values: skeletons for dictionaries, and layouts.

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

A *layout* is what all records have in common that look alike: the text between their values, and the kind of each
value. Such a record is stored as its values alone. The bench's record of 265 bytes takes 50 so, where compression with
a dictionary of structure leaves 83, in about the same time.

===========  =======================================================================================================
kind         stored as
===========  =======================================================================================================
a format     half a byte for each digit; in the format ``0`` stands for a decimal, ``x`` for a hexadecimal one
``key``      nothing: the record's key stands there
``again``    nothing: it is the same text as the last value with a format
``text``     its length and the characters between the quotation marks; there are no escapes among them
``number``   its length and its characters
``word``     one byte: ``null``, ``true`` or ``false``
===========  =======================================================================================================

**Invariants**

- No character of a string or a number is taken over, but for the marks of a UUID, a date or a time.
- The name of a property is a value unless most of the samples that have its object have it, too, and a quarter of all:
  the keys of a map are ids or names. What stands under such a name has no structure of its own either, and a record
  with one has no layout.
- A record has a layout only if each of its bytes can be given back.
- The same samples give the same skeletons and layouts, so a commit that is sent again is the same commit.
"""

from __future__ import annotations

import re
from binascii import unhexlify
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b, shake_128
from itertools import accumulate, chain, compress, repeat
from struct import iter_unpack
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


MOST_LAYOUTS: Final = 8
"""Of one feed. Each costs a record that has none about as much as compressing it."""

_FEWEST_SAMPLES: Final = 2  # what one alone looks like says nothing of others
_LONGEST_VALUE: Final = 127  # bytes; longer ones are better compressed
_MOST_VALUES: Final = 64
_WARM: Final = 128  # a pattern takes some KiB, and a process may have thousands of feeds

_KEY: Final = "key"
_AGAIN: Final = "again"
_STRING: Final = "text"
_NUMBER: Final = "number"
_WORD: Final = "word"
_WORDS: Final = (b"null", b"true", b"false")
_UUID_FORMAT: Final = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
_PLAIN_STRING: Final = re.compile(rb'"[^"\\\x00-\x1f]{0,%d}"' % _LONGEST_VALUE)
_PLAIN_NUMBER: Final = re.compile(rb"-?\d{1,%d}(?:\.\d{1,40})?" % (_LONGEST_VALUE // 2))
_GROUPS: Final = {
    _STRING: rb"(%b)" % _PLAIN_STRING.pattern.strip(b'"'),
    _NUMBER: rb"(%b)" % _PLAIN_NUMBER.pattern,
    _WORD: rb"(%b)" % b"|".join(_WORDS),
}
_DIGITS_OF: Final = {"0": rb"\d", "x": b"[0-9a-f]"}
_SET_OF: Final = {"0": b"0123456789", "x": b"0123456789abcdef"}
_MARKS: Final = b"-:TZ.+ "  # of all formats


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """What all records have in common that look alike.

    Attributes:
        texts: what stands before, between and behind their values.
        kinds: of the values.
    """

    texts: tuple[bytes, ...]
    kinds: tuple[str, ...]

    @property
    def modified(self) -> Layout:
        """The same for records in which no value is another one again, as the times of a modified record are not."""
        last, kinds = "", list[str]()
        for kind in self.kinds:
            last = kind if _is_format(kind) else last
            kinds.append(last if kind == _AGAIN else kind)
        return Layout(self.texts, tuple(kinds))


def layouts(records: Sequence[tuple[bytes, bytes | None]]) -> list[Layout]:
    """The layouts that several of these records have, in the order in which they are to be tried.

    Args:
        records: JSON objects, and the key of each as it stands in the record where that is a UUID.
    """
    common = [one for one, count in _counted(records).most_common() if count >= _FEWEST_SAMPLES]
    both = dict.fromkeys(chain.from_iterable((one, one.modified) for one in common))
    return sorted(list(both)[:MOST_LAYOUTS], key=lambda one: -one.kinds.count(_AGAIN))  # the more specific ones first


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
        if token.kind in ("same", "space") and token.text not in _WORDS:
            texts[-1] += token.text
        elif token.kind == "name":
            if token.path not in names:
                return None
            texts[-1] += token.text
        else:
            quoted = token.kind == "string"
            value = token.text[1:-1] if quoted else token.text
            kind = _kind(token, value, key=key if _KEY not in kinds else None, last=last)
            if kind is None:
                return None
            last = value if _is_format(kind) else last
            kinds.append(kind)
            texts[-1] += b'"' * quoted
            texts.append(b'"' * quoted)
    return Layout(tuple(texts), tuple(kinds)) if 0 < len(kinds) <= _MOST_VALUES else None


def _kind(token: _Token, value: bytes, *, key: bytes | None, last: bytes) -> str | None:
    """The kind of a value; None: no layout has such a one."""
    if token.kind == "same":
        return _WORD
    if token.kind == "number":
        return _NUMBER if _PLAIN_NUMBER.fullmatch(value) else None
    if value == key:
        return _KEY
    if _UUID.fullmatch(token.text) and not _UPPER.search(value):
        return _UUID_FORMAT
    if _MOMENT.fullmatch(token.text):
        return _AGAIN if value == last else _DIGIT_OF_MOMENT.sub(b"0", value).decode()
    return _STRING if _PLAIN_STRING.fullmatch(token.text) else None


_DIGIT_OF_MOMENT: Final = re.compile(rb"\d")


def _is_format(kind: str) -> bool:
    return kind[:1] in _DIGITS_OF


class _Packer:
    """Makes values of the records that have one layout, and records of their values."""

    def __init__(self, layout: Layout) -> None:
        kinds = [kind for kind in layout.kinds if kind != _AGAIN]  # of the groups of the pattern
        self._layout = layout
        self._key_at = kinds.index(_KEY) if _KEY in kinds else None
        self._formats = [(at, _marks(kind), _SET_OF[kind[0]]) for at, kind in enumerate(kinds) if _is_format(kind)]
        self._others = [(at, kind == _WORD) for at, kind in enumerate(kinds) if kind in _GROUPS]
        digits = sum(len(_digits(kind)) for kind in kinds if _is_format(kind))
        self._width = (digits + 1) // 2
        self._padding = [repeat(b"0")] * (digits % 2)
        self._slices, self._template, self._places = _template(layout)

    def pack(self, records: Sequence[bytes], keys: Sequence[bytes | None], number: bytes) -> Sequence[bytes | None]:
        """This byte and the values of each of these records with these keys; None: it does not have this layout.

        A pattern finds values with a format by their lengths, and those at one place are then checked together. That
        takes half of the time of a pattern that checks each character, which is used where one of them does not fit.
        """
        matches = list(map(self._probable, records))
        columns = _columns(matches)
        if not self._fit(columns, list(compress(keys, matches))):
            matches = list(map(self._exact, records))
            if (at := self._key_at) is not None:
                matches = [one if one and one[at + 1] == key else None for one, key in zip(matches, keys, strict=True)]
            columns = _columns(matches)
        found = self._stored(columns, number)
        if len(found) == len(records):
            return found
        rest = iter(found)
        return [next(rest) if one else None for one in matches]

    def _fit(self, columns: Sequence[Sequence[bytes]], keys: Sequence[bytes | None]) -> bool:
        """Whether all of these values, which have the right lengths, have their formats, and the keys are these."""
        if not columns:
            return True
        if self._key_at is not None and list(columns[self._key_at]) != keys:
            return False
        for at, marks, digits in self._formats:
            together, count, width = b"".join(columns[at]), len(columns[at]), len(columns[at][0])
            if len(together.translate(None, digits)) != count * len(marks):
                return False
            if any(together[place::width] != mark * count for place, mark in marks):
                return False
        return True

    def _stored(self, columns: Sequence[Sequence[bytes]], number: bytes) -> list[bytes]:
        """This byte and these values of records; all at once, for a first reading packs each record."""
        if not columns:
            return []
        parts: list[Iterable[bytes]] = [[number] * len(columns[0])]
        if self._formats:
            rows = zip(*(columns[at] for at, _, _ in self._formats), *self._padding, strict=False)
            digits = unhexlify(b"".join(chain.from_iterable(rows)).translate(None, _MARKS))
            parts.append(chain.from_iterable(iter_unpack(f"{self._width}s", digits)))
        for at, is_word in self._others:
            parts += [map(_word, columns[at])] if is_word else [map(_length, map(len, columns[at])), columns[at]]
        return list(map(b"".join, zip(*parts, strict=True)))

    # Patterns are made when they are first needed: that costs thirty times what the rest of a packer does.

    @cached_property
    def _probable(self) -> Callable[[bytes], re.Match[bytes] | None]:
        """Matches a record whose values have the lengths that this layout gives them."""
        return re.compile(b"".join(_pattern(self._layout, is_exact=False)), re.DOTALL).fullmatch

    @cached_property
    def _exact(self) -> Callable[[bytes], re.Match[bytes] | None]:
        """Matches a record that has this layout, but for the key."""
        return re.compile(b"".join(_pattern(self._layout, is_exact=True))).fullmatch

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
            values.append(_WORDS[stored[at]] if is_word else stored[at + 1 : end])
            at = end
        return self._template % tuple([values[place] for place in self._places])


def _columns(matches: Iterable[re.Match[bytes] | None]) -> list[tuple[bytes, ...]]:
    """The values of all matches, by their places in a record."""
    return list(zip(*[one.groups() for one in matches if one is not None], strict=True))


def _template(layout: Layout) -> tuple[list[slice], bytes, list[int]]:
    """How a record is made of what is stored.

    Returns:
        where the runs of digits are; the record, with ``%b`` for each value or run; and which one that is: 0 is the
        key, then come the runs, then the other values.
    """
    runs = [len(run) for kind in layout.kinds if _is_format(kind) for run in _RUN.findall(kind)]
    slices = [slice(end - length, end) for length, end in zip(runs, accumulate(runs), strict=True)]
    parts, places = [_literal(layout.texts[0])], list[int]()
    run, other, last, last_form = 1, len(slices) + 1, range(0), ""
    for kind, text in zip(layout.kinds, layout.texts[1:], strict=True):
        form = "%b"
        if _is_format(kind):
            count, form = len(_RUN.findall(kind)), _RUN.sub("%b", kind)
            last, last_form, run = range(run, run + count), form, run + count
            places += last
        elif kind == _AGAIN:
            form = last_form
            places += last
        elif kind == _KEY:
            places.append(0)
        else:
            places.append(other)
            other += 1
        parts += (form.encode(), _literal(text))
    return slices, b"".join(parts), places


def _literal(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")


_RUN: Final = re.compile(r"[0x]+")
_BYTES: Final = tuple(bytes((number,)) for number in range(_LONGEST_VALUE + 1))
_length: Final = _BYTES.__getitem__
_word: Final = dict(zip(_WORDS, _BYTES, strict=False)).__getitem__


def _pattern(layout: Layout, *, is_exact: bool) -> Iterator[bytes]:
    """The parts of the pattern of a record with this layout; each value but a repeated one is a group.

    With ``is_exact``, it checks each character of a value with a format; without, only how many there are.
    """
    group = last = 0
    yield re.escape(layout.texts[0])
    for kind, text in zip(layout.kinds, layout.texts[1:], strict=True):
        if kind == _AGAIN:
            yield rb"(?:\%d)" % last
        else:
            group += 1
            last = group if _is_format(kind) else last
            form = _UUID_FORMAT if kind == _KEY else kind
            yield _GROUPS.get(kind) or (b"(%b)" % _pattern_of(form) if is_exact else b"(.{%d})" % len(form))
        yield re.escape(text)


def _pattern_of(form: str) -> bytes:
    runs = re.findall(r"0+|x+|[^0x]+", form)
    return b"".join(
        b"%b{%d}" % (_DIGITS_OF[run[0]], len(run)) if run[0] in _DIGITS_OF else re.escape(run.encode()) for run in runs
    )


def _marks(form: str) -> list[tuple[int, bytes]]:
    """The places of the marks of a format, and the marks."""
    return [(at, one.encode()) for at, one in enumerate(form) if one not in _DIGITS_OF]


def _digits(form: str) -> str:
    return form.encode().translate(None, _MARKS).decode()


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

    def unpack(self, stored: bytes, key: str) -> bytes:
        """The record of what :meth:`pack` has made of it.

        Raises:
            IndexError: there is no such layout, or it has more values.
        """
        return _packer_of(self.layouts[stored[0]]).unpack(stored, key)
