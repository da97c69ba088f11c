"""JSON comparison for the checker, written independently so that it does not share the program's mistakes.

Numbers are exact decimals, ``1`` equals ``1.0``, and true is not 1. It does not use the program's canonical form.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ABSENT = object()


def read(text: bytes | str) -> Any:
    """The value of a JSON text."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


def equal(one: Any, other: Any) -> bool:
    """Whether two values from :func:`read` are the same JSON value; the order of keys does not count."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and bool(one == other)


def differing(old: Any, new: Any) -> list[str]:
    """The sorted JSON pointers of the differences, objects by key, arrays as a whole."""
    return sorted(_pointers(old, new, ""))


def _pointers(old: Any, new: Any, at: str) -> Iterator[str]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if not equal(old, new):
            yield at
        return
    for key in {**old, **new}:
        below = at + "/" + key.replace("~", "~0").replace("/", "~1")
        yield from _pointers(old.get(key, ABSENT), new.get(key, ABSENT), below)
