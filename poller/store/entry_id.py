"""The ids of a stream's entries, ``MILLISECONDS-NUMBER``: how they are ordered, and which comes just before one.

Pure.
"""

from __future__ import annotations

from typing import Final

LARGEST_NUMBER: Final = 2**64 - 1


def place_of(entry_id: str) -> tuple[int, int]:
    """An entry id as what it is compared by."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)


def before(entry_id: str) -> str:
    """The id that comes just before this one; before the first of all there is none, it is its own."""
    milliseconds, number = place_of(entry_id)
    if number:
        return f"{milliseconds}-{number - 1}"
    return f"{milliseconds - 1}-{LARGEST_NUMBER}" if milliseconds else "0-0"
