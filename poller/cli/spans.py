"""Spans of time for people."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def ago(seconds: float) -> str:
    """``12 s``, ``5 min``, ``3 h``, ``2 d``."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
