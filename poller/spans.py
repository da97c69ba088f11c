"""Spans of time, and sizes, for people."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
_SIZES: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def ago(seconds: float) -> str:
    """``12 s``, ``5 min``, ``3 h``, ``2 d``."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def size(count: int) -> str:
    """``512 B``, ``4.0 KiB``, ``1.2 GiB``."""
    for unit, name in _SIZES:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
