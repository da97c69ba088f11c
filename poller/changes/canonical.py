"""The canonical form of JSON, which decides whether two records are equal.

**Invariants**

- Key order and white space do not count, ``1`` and ``1.0`` are equal, null and absent differ, array order counts.
- Numbers are compared by their exact decimal value, never by a float: ``0.1`` and ``0.1000000000000000000001``
  differ, and so do two integers of thirty digits that differ in the last.
- Nothing here changes what is published: events carry the bytes that were received.
- A received text that passes means one thing only, however numbers, escapes, white space or keys are written: a key
  that occurs twice in an object, or nesting that is too deep, is refused.

Theory of operation
-------------------
msgspec is the fast way; JSON that it cannot hold exactly (integers beyond its range) is read by the standard library.
Both give equal values for equal numbers.

A repeated key is found without reading the text again. Each key is followed by one colon, and a reader that drops a
member drops its colon. So the text then has more colons than the value made of it. Colons within strings count on
both sides, unless written as an escape; a text with such an escape, or with more colons, is read a second time, key
by key. While all numbers are integers, no form is longer than its text: where both have the same length, nothing was
dropped.

The records of a page mostly have the same keys. They are read into a struct with these fields, which takes two thirds
of the time of dicts: no keys are made, and none are sorted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import (
    MAX_EMAX,
    MAX_PREC,
    MIN_EMIN,
    Context,
    Decimal,
    DecimalException,
    Inexact,
    InvalidOperation,
    Overflow,
)
from functools import lru_cache, partial
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, NoReturn

import msgspec

# Integers of up to this many digits are int whatever way they are read (here Python and msgspec stop converting), so
# that 10 and 1e1 meet in one form; longer ones are Decimal whatever way they are read.
_INT_DIGITS: Final = 4300
_DIGITS: Final = b"0123456789"
MOST_ZEROS: Final = 400_000
"""Of the numbers of one text that have an exponent, written out."""

_TOO_MANY_ZEROS: Final = f"its exponents stand for more than {MOST_ZEROS} zeros"
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, Overflow, Inexact])


def _number(text: str) -> int | Decimal:
    """The exact value of a JSON number, in a form that all its spellings share."""
    value = Decimal(text).normalize(_EXACT)
    _numbers.are_integers = False
    if not value:
        return 0
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= 0 and value.adjusted() < _INT_DIGITS:
        _numbers.write_zeros(exponent)
        return int(value)
    return value


class _Numbers:
    """What is known of the numbers of one text, or of several that are read together.

    Attributes:
        are_integers: whether all are spelled as integers, so that none becomes longer.
        zeros: how many their exponents may still stand for: ``1e4299`` is six bytes, and 4 300 digits.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.are_integers, self.zeros = True, MOST_ZEROS

    def write_zeros(self, count: int) -> None:
        self.zeros -= count
        if self.zeros < 0:
            raise ValueError(_TOO_MANY_ZEROS)


_numbers: Final = _Numbers()  # one for all texts: the decoder has one function for its numbers, and reads one at a time


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"not JSON: {text}")


_fast_decode: Final = msgspec.json.Decoder(float_hook=_number).decode
_fast_encoder: Final = msgspec.json.Encoder(order="sorted", decimal_format="number")
_fast_encode: Final = _fast_encoder.encode
_struct_encoder: Final = msgspec.json.Encoder(order="deterministic", decimal_format="number")  # as the fields stand
_NOT_UTF8: Final = "Invalid UTF-8"  # as msgspec says it
_STRUCTS: Final = 64  # a struct takes some KiB


def unreadable(error: msgspec.DecodeError | UnicodeDecodeError) -> str:
    """What is wrong with a text that msgspec cannot read. Of bytes that are no UTF-8 it has an error since 0.23."""
    is_utf8 = isinstance(error, msgspec.DecodeError) and not str(error).startswith(_NOT_UTF8)
    return f"not JSON: {error}" if is_utf8 else "not UTF-8"


def parse(raw: bytes) -> Any:
    """The value of a JSON text with exact numbers.

    It is a dict, list, str, bool, None, int, or a Decimal for what is no int.

    Raises:
        ValueError: not JSON, not UTF-8, nested too deep, a number beyond any exponent, or exponents that stand for too
            many digits; the text says which.
    """
    _numbers.reset()
    try:
        return _fast_decode(raw)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except msgspec.ValidationError:  # an integer too long for msgspec
        return _parse_slowly(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(unreadable(error)) from None
    except DecimalException:
        raise ValueError("a number is out of any range") from None


def _parse_slowly(raw: bytes) -> Any:
    _numbers.reset()
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_refuse_constant)
        _fast_encode(value)  # refuses the lone surrogates that the standard library lets pass
        return value
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    except UnicodeEncodeError:
        raise ValueError("not JSON: a lone surrogate") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except DecimalException:
        raise ValueError("a number is out of any range") from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def parse_received(raw: bytes) -> tuple[Any, bytes]:
    """The value and the canonical form of a JSON text from outside.

    Text that is stored was read this way once. A text that can be misread is refused. So is an integer of more digits
    than Python reads: a consumer in Python could read no event with such a record.

    Raises:
        ValueError: see :func:`parse` and :func:`refuse_ambiguous`.
    """
    try:
        value = parse(raw)
        form = _fast_encode(value)
    except RecursionError:  # reading succeeded with hardly a level to spare, writing needs more
        raise ValueError(TOO_DEEP) from None
    refuse_ambiguous(raw, form)
    if len(raw) > _INT_DIGITS and _has_long_integer(raw):
        json.loads(raw, parse_int=_refuse_long, parse_float=str)
    return value, form


def forms_received(raws: Sequence[bytes], strip: Callable[[Any], Any] | None = None) -> list[bytes] | None:
    """The canonical forms of what counts of several texts, as :func:`parse_received` gives them of each.

    They are made in less than half of the time, for what would be done for each is done once for all. None: at least
    one of them may have to be refused, or can only be read by itself.

    Args:
        raws: the texts.
        strip: removes what does not count, from :func:`without`; None: all counts.
    """
    read = _read_together(raws, _decoder_like(raws[0]), _struct_encoder) if raws and strip is None else None
    read = read or _read_together(raws, _fast_decode, _fast_encoder)
    if read is None:
        return None
    values, forms = read
    # No form is longer than its text while all numbers are integers: so equal sums mean that each has the same length.
    is_whole = _numbers.are_integers and len(forms) == sum(map(len, raws)) + len(raws)
    if not (is_whole or _keep_colons(raws, forms)) or _may_be_deep(raws):
        return None
    return forms.split(b"\n")[:-1] if strip is None else list(map(encode, map(strip, values)))


def _read_together(
    raws: Sequence[bytes], decode: Callable[[bytes], Any], encoder: msgspec.json.Encoder
) -> tuple[list[Any], bytes] | None:
    """The values of these texts, and a line with the form of each; None: one of them cannot be read so."""
    _numbers.reset()
    try:
        values = list(map(decode, raws))
        return values, encoder.encode_lines(values)  # no line break occurs within a form
    except (ValueError, RecursionError, DecimalException):
        return None


def _keep_colons(raws: Sequence[bytes], forms: bytes) -> bool:
    """Whether these forms have all colons of their texts.

    No text has fewer colons than its form, unless some are escaped: so equal sums mean that each has as many.
    """
    together = b"".join(raws)
    return together.count(b":") == forms.count(b":") and not (_ESCAPE in together and _ESCAPED_COLON in together)


def _decoder_like(raw: bytes) -> Callable[[bytes], Any]:
    """What reads texts with the keys of this one, or some of them; it refuses others."""
    try:
        value = _fast_decode(raw)
        return _struct_decoder(tuple(_fast_decode(_fast_encode(value)))) if isinstance(value, dict) else _fast_decode
    except (ValueError, RecursionError, DecimalException):
        return _fast_decode


@lru_cache(maxsize=_STRUCTS)
def _struct_decoder(keys: tuple[str, ...]) -> Callable[[bytes], Any]:
    """What reads objects into a struct with these keys, in the order of the canonical form.

    Raises:
        ValueError: msgspec allows one of them as no name of a field: quotation marks, backslashes, control characters.
    """
    names = [f"field_{number}" for number in range(len(keys))]
    struct = msgspec.defstruct(
        "Alike",
        [(name, Any, msgspec.UNSET) for name in names],
        rename=dict(zip(names, keys, strict=True)),
        forbid_unknown_fields=True,
        frozen=True,
        gc=False,
    )
    return msgspec.json.Decoder(struct, float_hook=_number).decode


def _may_be_deep(raws: Sequence[bytes]) -> bool:
    """Whether one of these texts may have too many levels, judged by their lengths or else by their brackets."""
    longest = max(map(len, raws), default=0)
    if longest <= _ARRAYS_BYTES or (longest <= _OBJECTS_BYTES and _ARRAY not in b"".join(raws)):
        return False
    # A text has at most as many levels as brackets that open, and most records have few of them.
    objects, arrays = (max(map(bytes.count, raws, repeat(bracket)), default=0) for bracket in (b"{", b"["))
    return objects + arrays > MAX_DEPTH


def _has_long_integer(raw: bytes) -> bool:
    """Whether more digits than are usable follow each other.

    Such a run contains at least one of the bytes that are checked.
    """
    for at in range(_INT_DIGITS, len(raw), _INT_DIGITS + 1):
        if raw[at : at + 1].isdigit():
            before, after = raw[at - _INT_DIGITS : at], raw[at : at + _INT_DIGITS + 1]
            digits = len(before) - len(before.rstrip(_DIGITS)) + len(after) - len(after.lstrip(_DIGITS))
            if digits > _INT_DIGITS:
                return True
    return False


def _refuse_long(digits: str) -> None:
    count = len(digits.lstrip("-"))
    if count > _INT_DIGITS:
        raise ValueError(f"an integer of {count} digits: at most {_INT_DIGITS} are usable")


def encode(value: Any) -> bytes:
    """The canonical form of a parsed value.

    Keys are sorted, there is no white space, and each number has one spelling.
    """
    return _fast_encode(value)


def canonical(raw: bytes) -> bytes:
    """The canonical form of a JSON text. Raises what :func:`parse` raises."""
    return encode(parse(raw))


def same(left: Any, right: Any) -> bool:
    """Whether two parsed values are equal. Not ``==``: to Python ``True == 1``, to JSON they differ."""
    return encode(left) == encode(right)


def without(pointers: tuple[str, ...]) -> Callable[[Any], Any]:
    """A function that removes JSON pointers (RFC 6901) from a value, for ``ignore``.

    It returns a new value if it removes something and never changes its argument. A pointer to nothing is no error:
    records may lack the key.
    """
    paths = tuple(tuple(map(_unescape, pointer.split("/")[1:])) for pointer in pointers)

    def strip(value: Any) -> Any:
        for path in paths:
            value = _drop(value, path)
        return value

    return strip


def _unescape(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")


def _drop(value: Any, path: tuple[str, ...]) -> Any:
    if not path or not isinstance(value, dict) or path[0] not in value:
        return value
    head, rest = path[0], path[1:]
    if not rest:
        return {key: item for key, item in value.items() if key != head}
    return {**value, head: _drop(value[head], rest)}


MAX_DEPTH: Final = 100
"""Levels of objects and arrays, the outermost included, that a record may have, or what stands around the records."""

_ARRAYS_BYTES: Final = 2 * MAX_DEPTH  # of the shortest text of that many levels
_OBJECTS_BYTES: Final = 5 * MAX_DEPTH - 3  # likewise, without an array: an object around another takes five bytes more

TOO_DEEP: Final = f"nested too deep: more than {MAX_DEPTH} levels"

_SHOWN: Final = 60  # characters of a key
_ARRAY, _ESCAPE = b"[\\"  # as integers: a byte is found ten times faster than a text of one byte is counted
_ESCAPED_COLON: Final = rb"\u003"  # as every escape of a colon begins
_SAMPLE: Final = 64  # bytes of a value by which it is found
# With or without an end: text that is no JSON is read once too, not again from each quotation mark.
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def refuse_ambiguous(raw: bytes, form: bytes) -> None:
    """Refuse a JSON text with a repeated key or too many levels.

    Args:
        raw: the text.
        form: any encoding, without escaped colons, of the value that a reader made of it; nothing left out.

    Raises:
        ValueError: it is one of the two; the text says which, and which key.
    """
    colons = raw.count(b":")
    # Of objects within each other all but the innermost have a colon: this bounds the levels, and costs little.
    if colons + 1 + (raw.count(b"[") if _ARRAY in raw else 0) > MAX_DEPTH and deeper_than(raw, MAX_DEPTH):
        raise ValueError(TOO_DEEP)
    if colons == form.count(b":") and not (_ESCAPE in raw and _ESCAPED_COLON in raw):
        return
    json.loads(raw.decode(), parse_int=str, parse_float=str, object_pairs_hook=_refuse_repeated)


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key {json.dumps(key[:_SHOWN])} stands twice")
        seen.add(key)


def deeper_than(raw: bytes, levels: int) -> bool:
    """Whether a JSON text has more than this number of nested levels."""
    if raw.count(b"{") + raw.count(b"[") <= levels:
        return False
    brackets = _STRINGS.sub(b"", raw).translate(_SQUARE, _NO_BRACKETS)
    for _ in range(levels):
        if not brackets:
            return False
        outer = brackets.replace(b"[]", b"")  # without one level: the innermost of each
        if len(outer) == len(brackets):
            break  # brackets without a partner; no text that is JSON
        brackets = outer
    return bool(brackets)


def own_members(raw: bytes) -> tuple[dict[str, bytes], frozenset[str]]:
    """The members of a JSON object as bytes, and its repeated keys.

    Values are taken as they are: errors within them are not looked for.

    Raises:
        msgspec.MsgspecError: it is no JSON, or no object.
        UnicodeDecodeError: one of its keys is not UTF-8.
        RecursionError: it is nested too deep to be read.
    """
    members = {key: bytes(value) for key, value in _members(raw).items()}
    longest = max(members.values(), key=len, default=b"")  # colons within it count on both sides: left out of both
    others = sum(value.count(b":") for value in members.values() if value is not longest)
    if _without(raw, longest).count(b":") == len(members) + others:
        return members, frozenset()
    return members, frozenset(key for key, times in Counter(_own_keys(raw)).items() if times > 1)


def _without(raw: bytes, value: bytes) -> bytes:
    """The text without one occurrence of a part of it."""
    at = raw.find(value[:_SAMPLE])
    if not raw.startswith(value, at):
        at = raw.find(value)
    return raw[:at] + raw[at + len(value) :]


def _own_keys(raw: bytes) -> list[str]:
    """The keys of an object itself, including repetitions."""
    keys = partial(map, itemgetter(0))
    read = json.JSONDecoder(parse_int=str, parse_float=str, object_pairs_hook=keys, strict=False).decode
    return list(read(raw.decode("utf-8", "replace")))
