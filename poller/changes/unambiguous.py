"""What JSON allows and no two readers agree on: a key that stands twice in one object, and nesting without end.

Law: a text that passes means one thing only, so nothing in it is dropped without a word; and what is refused is really
so. Neither rests on how numbers, escapes, white space or the order of keys are spelled.

How a dropped key is seen without reading anything again: each key of a text has one colon behind it. A reader that
drops a member drops its colon too, so that the text has more of them than what was made of it. Colons within strings
count on both sides alike, unless the text spells one as an escape; a text with such an escape, or with more colons, is
read a second time, key by key.

Refuses to know what a record is.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import partial
from operator import itemgetter
from typing import Any, Final

import msgspec

MAX_DEPTH: Final = 100
"""Levels of objects and arrays, the outermost included, that a record may have, or what stands around the records."""

TOO_DEEP: Final = f"nested too deep: more than {MAX_DEPTH} levels"

_SHOWN: Final = 60  # characters of a key
_ARRAY, _ESCAPE = b"[\\"  # as integers: a byte is found ten times faster than a text of one byte is counted
_ESCAPED_COLON: Final = rb"\u003"  # as every escape of a colon begins
_SAMPLE: Final = 64  # bytes of a value by which it is found
_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def refuse_ambiguous(raw: bytes, form: bytes) -> None:
    """Refuse a JSON text in which a key stands twice, at any depth, or that is nested too deep.

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
    """Whether a JSON text has objects and arrays within each other on more levels than so many."""
    if raw.count(b"{") + raw.count(b"[") <= levels:
        return False
    brackets = _STRINGS.sub(b"", raw).translate(_SQUARE, _NO_BRACKETS)
    for _ in range(levels):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")  # one level: the innermost of each
    return bool(brackets)


def own_members(raw: bytes) -> tuple[dict[str, bytes], frozenset[str]]:
    """The members of one JSON object, each value as the bytes it stands in; and those keys of it that stand twice.

    Its values are taken as they are: what is wrong within them is not looked for.

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
    """A text without one occurrence, whichever, of a part of it."""
    at = raw.find(value[:_SAMPLE])
    if not raw.startswith(value, at):
        at = raw.find(value)
    return raw[:at] + raw[at + len(value) :]


def _own_keys(raw: bytes) -> list[str]:
    """The keys of an object itself, the same one as often as it stands there."""
    keys = partial(map, itemgetter(0))
    read = json.JSONDecoder(parse_int=str, parse_float=str, object_pairs_hook=keys, strict=False).decode
    return list(read(raw.decode("utf-8", "replace")))
