"""What differs between two versions of a record, as JSON pointers (RFC 6901).

Objects are compared key by key, all the way down; arrays as a whole, so a pointer never holds an array's index.
Numbers that are equal as numbers do not differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from poller.changes.canonical import same


def changed_pointers(old: Any, new: Any) -> tuple[str, ...]:
    """The sorted pointers of everything that differs between two values from :func:`canonical.parse`.

    Empty if and only if the two have the same canonical form. The empty pointer ``""`` stands for the whole value
    where one of the two is not an object.
    """
    return tuple(sorted(_differing(old, new, "")))


def _differing(old: Any, new: Any, at: str) -> Iterator[str]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if not same(old, new):
            yield at
        return
    for key in old.keys() | new.keys():
        pointer = f"{at}/{_escape(key)}"
        if key in old and key in new:
            yield from _differing(old[key], new[key], pointer)
        else:
            yield pointer


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
