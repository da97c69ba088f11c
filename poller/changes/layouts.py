"""Layouts: what records have in common that look alike, and their values by columns.

A *layout* is the text between the values of such records, and the kind of each value:

===========  =======================================================================================================
kind         values
===========  =======================================================================================================
a format     UUIDs, dates and times of this format, in which ``0`` stands for a decimal, ``x`` for a hexadecimal digit
``key``      the record's key, a UUID
``again``    the same text as the last value with a format
``text``     texts without escapes
``number``   numbers
``word``     ``null``, ``true`` or ``false``
===========  =======================================================================================================

The records of a page mostly look alike. Each is matched once with their layout, and what is needed of the records is
made of the values found: identities, canonical forms, what is stored. Otherwise each of these would read them again.

**Invariants**

- A record has a layout only if each of its bytes can be given back from its values.
- What is made of :class:`AlikeRecords` is what would be made of each record by itself. Records for which that may not
  hold are none: those with a number that has another spelling in canonical form, or with text that is no UTF-8.
- Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain, compress, repeat
from typing import Final

import msgspec

from poller.changes.canonical import parse_received

KEY: Final = "key"
AGAIN: Final = "again"
TEXT: Final = "text"
NUMBER: Final = "number"
WORD: Final = "word"
WORDS: Final = (b"null", b"true", b"false")
UUID_FORMAT: Final = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
MARKS: Final = b"-:TZ.+ "
"""Of all formats: what is no digit in them."""
LONGEST_VALUE: Final = 127
"""Bytes of a text or a number: longer ones are better compressed."""

PLAIN_STRING: Final = re.compile(rb'"[^"\\\x00-\x1f]{0,%d}"' % LONGEST_VALUE)
"""A text without escapes, in quotation marks."""
PLAIN_NUMBER: Final = re.compile(rb"-?\d{1,%d}(?:\.\d{1,40})?" % (LONGEST_VALUE // 2))

_WARM: Final = 128  # a pattern takes some KiB, and a process may have thousands of feeds
_GROUPS: Final = {
    TEXT: rb"(%b)" % PLAIN_STRING.pattern.strip(b'"'),
    NUMBER: rb"(%b)" % PLAIN_NUMBER.pattern,
    WORD: rb"(%b)" % b"|".join(WORDS),
}
_DIGITS_OF: Final = {"0": rb"\d", "x": b"[0-9a-f]"}
_SET_OF: Final = {"0": b"0123456789", "x": b"0123456789abcdef"}

Columns = Sequence[Sequence[bytes]]
"""Values of records: those at one place in each, by the places; those that repeat another one are left out."""


def is_format(kind: str) -> bool:
    """Whether a kind is the format of a UUID, a date or a time."""
    return kind[:1] in _DIGITS_OF


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
            last = kind if is_format(kind) else last
            kinds.append(last if kind == AGAIN else kind)
        return Layout(self.texts, tuple(kinds))

    @property
    def columns(self) -> list[str]:
        """The kinds of the values that are not repeated."""
        return [kind for kind in self.kinds if kind != AGAIN]


class LayoutMatcher:
    """Finds the values of the records that have one layout.

    A pattern finds values with a format by their lengths, and those at one place are then checked together. That takes
    half of the time of a pattern that checks each character.
    """

    def __init__(self, layout: Layout) -> None:
        kinds = layout.columns
        self._layout = layout
        self._key_at = kinds.index(KEY) if KEY in kinds else None
        formats = [(at, UUID_FORMAT if kind == KEY else kind) for at, kind in enumerate(kinds)]
        self._formats = [(at, _marks(form), _SET_OF[form[0]]) for at, form in formats if is_format(form)]
        self._texts = [at for at, kind in enumerate(kinds) if kind == TEXT]
        self._numbers = [at for at, kind in enumerate(kinds) if kind == NUMBER]

    def columns(self, records: Sequence[bytes], keys: Sequence[bytes | None]) -> tuple[list[bool], Columns]:
        """Whether each of these records with these keys has this layout, and the values of those that have it."""
        matches = list(map(self._probable, records))
        columns = _columns(matches)
        if not (self.have_formats(columns) and self.have_keys(columns, list(compress(keys, matches)))):
            matches = list(map(self._exact, records))
            if (at := self._key_at) is not None:
                matches = [one if one and one[at + 1] == key else None for one, key in zip(matches, keys, strict=True)]
            columns = _columns(matches)
        return list(map(bool, matches)), columns

    def rows(self, records: Sequence[bytes]) -> tuple[list[tuple[bytes, ...]], Columns] | None:
        """The values of each of these records, and by columns; None: :class:`AlikeRecords` are not made of them."""
        if not records or not self._probable(records[0]):
            return None
        rows = [one.groups() for one in map(self._probable, records) if one is not None]
        columns = list(zip(*rows, strict=True))
        if len(rows) < len(records) or not (self.have_formats(columns) and self._are_canonical(columns)):
            return None
        return rows, columns

    def _are_canonical(self, columns: Columns) -> bool:
        """Whether these texts are UTF-8, and these numbers are spelled as in canonical form."""
        try:
            for at in self._texts:
                b"\n".join(columns[at]).decode()  # without a line break, two halves of a character would make one
        except UnicodeDecodeError:
            return False
        return all(map(_CANONICAL_NUMBER, chain.from_iterable(columns[at] for at in self._numbers)))

    def have_keys(self, columns: Columns, keys: Sequence[bytes | None]) -> bool:
        """Whether these keys stand in these values."""
        return not columns or self._key_at is None or list(columns[self._key_at]) == keys

    def have_formats(self, columns: Columns) -> bool:
        """Whether all of these values, which have the right lengths, have their formats."""
        if not columns:
            return True
        for at, marks, digits in self._formats:
            together, count, width = b"".join(columns[at]), len(columns[at]), len(columns[at][0])
            if len(together.translate(None, digits)) != count * len(marks):
                return False
            if any(together[place::width] != mark * count for place, mark in marks):
                return False
        return True

    # Patterns are made when they are first needed: that costs thirty times what the rest of a matcher does.

    @cached_property
    def _probable(self) -> Callable[[bytes], re.Match[bytes] | None]:
        """Matches a record whose values have the lengths that this layout gives them."""
        return re.compile(b"".join(_pattern(self._layout, is_exact=False)), re.DOTALL).fullmatch

    @cached_property
    def _exact(self) -> Callable[[bytes], re.Match[bytes] | None]:
        """Matches a record that has this layout, but for the key."""
        return re.compile(b"".join(_pattern(self._layout, is_exact=True))).fullmatch


_CANONICAL_NUMBER: Final = re.compile(rb"0|-?[1-9]\d*").fullmatch  # of those that have a layout


def _columns(matches: Iterable[re.Match[bytes] | None]) -> Columns:
    """The values of all matches, by their places in a record."""
    return list(zip(*[one.groups() for one in matches if one is not None], strict=True))


def _pattern(layout: Layout, *, is_exact: bool) -> Iterator[bytes]:
    """The parts of the pattern of a record with this layout; each value but a repeated one is a group.

    With ``is_exact``, it checks each character of a value with a format; without, only how many there are.
    """
    group = last = 0
    yield re.escape(layout.texts[0])
    for kind, text in zip(layout.kinds, layout.texts[1:], strict=True):
        if kind == AGAIN:
            yield rb"(?:\%d)" % last
        else:
            group += 1
            last = group if is_format(kind) else last
            form = UUID_FORMAT if kind == KEY else kind
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


class RecordForm:
    """What a record with one layout is as JSON.

    Attributes:
        key_at: the column of its key.
        members: the columns of its own members that are texts or numbers, by their names.
    """

    def __init__(self, layout: Layout) -> None:
        """Read a record in which each value is the number of its column.

        Raises:
            ValueError: no record with this layout is usable, or its key is not known from it.
        """
        kinds, places = layout.columns, _places(layout)
        self.key_at = kinds.index(KEY)
        sample = layout.texts[0]
        for at, text in zip(places, layout.texts[1:], strict=True):
            sample += (b'"#%d#"' if kinds[at] in _UNQUOTED else b"#%d") % at + text  # no name of a property has a #
        value, form = parse_received(sample)
        texts = {name: int(one.strip("#")) for name, one in value.items() if isinstance(one, str)}
        self.members = {name: at for name, at in texts.items() if kinds[at] != WORD}
        # In canonical form: the text before all values; then the column of each, and the text behind it.
        self._start, *rest = _PLACE.split(form)
        self._parts = [(int(at), text) for at, text in zip(rest[::2], rest[1::2], strict=True)]

    def keyed(self, columns: Columns, text: bytes) -> list[bytes]:
        """Of each record with these values its key, this text, and its canonical form."""
        parts: list[Iterable[bytes]] = [columns[self.key_at], repeat(text + self._start)]
        for at, behind in self._parts:
            parts += [columns[at], repeat(behind)]
        return list(map(b"".join, zip(*parts, strict=False)))


_UNQUOTED: Final = (NUMBER, WORD)
_PLACE: Final = re.compile(rb'(?:"(?=#\d+#))?#(\d+)(?:#")?')  # with its quotation marks, if it has none as a value


def _places(layout: Layout) -> list[int]:
    """The column of each value."""
    places, count, last = list[int](), 0, 0
    for kind in layout.kinds:
        if kind == AGAIN:
            places.append(last)
            continue
        last = count if is_format(kind) else last
        places.append(count)
        count += 1
    return places


matcher_of: Final = lru_cache(maxsize=_WARM)(LayoutMatcher)
form_of: Final = lru_cache(maxsize=_WARM)(RecordForm)


class AlikeRecords(msgspec.Struct, frozen=True, gc=False):
    """Records that have one layout.

    Attributes:
        layout: theirs.
        columns: their values.
    """

    layout: Layout
    columns: Columns

    @property
    def keys(self) -> Sequence[bytes]:
        """Their keys."""
        return self.columns[form_of(self.layout).key_at]

    def keyed_forms(self, text: bytes) -> list[bytes]:
        """Of each its key, this text, and its canonical form."""
        return form_of(self.layout).keyed(self.columns, text)
