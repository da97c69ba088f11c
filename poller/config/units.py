"""Durations, sizes and shares as people write them, and back.

Law: ``parse ∘ format`` gives the same value; what cannot be meant (negative, not finite, absurdly large) is refused
with a :class:`ValueError` whose text says what is expected and never repeats the value.

Pure. Knows nothing of keys, tables or files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Final

LONGEST: Final = timedelta(days=3650)
LARGEST: Final = 1024**5

EXPECTED_DURATION: Final = 'expected a duration such as "500ms", "30s", "5m", "24h" or "7d", or a number of seconds'
EXPECTED_SIZE: Final = 'expected a size such as "64KiB", "16MiB" or "1GiB", or a number of bytes'
EXPECTED_SHARE: Final = 'expected a share such as "10%", a number of records, or "off"'

_MICROSECONDS: Final = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1000}
_BYTES: Final = {
    "tib": 1024**4,
    "gib": 1024**3,
    "mib": 1024**2,
    "kib": 1024,
    "tb": 1000**4,
    "gb": 1000**3,
    "mb": 1000**2,
    "kb": 1000,
    "b": 1,
}
_SPELLED: Final = {"tib": "TiB", "gib": "GiB", "mib": "MiB", "kib": "KiB"}
_NUMBER: Final = r"([0-9]{1,20}(?:\.[0-9]{1,9})?)"
DURATION: Final = _NUMBER + r" ?(ms|s|m|h|d)"
SIZE: Final = _NUMBER + r" ?([KMGTkmgt]i?[Bb]|[Bb])"
SHARE: Final = r"([0-9]{1,3}(?:\.[0-9]{1,9})?) ?%"


@dataclass(frozen=True, slots=True)
class Share:
    """How much of something is too much: a percentage, a number of records, or (both None) no bound.

    Attributes:
        percent: more than 0, at most 100.
        records: 0 or more.
    """

    percent: float | None = None
    records: int | None = None

    @property
    def off(self) -> bool:
        """Nothing is too much."""
        return self.percent is None and self.records is None


def parse_duration(value: object) -> timedelta:
    """0 to ten years, to the microsecond, from ``"500ms"``, ``"30s"``, ``"5m"``, ``"24h"``, ``"7d"`` or seconds.

    Raises:
        ValueError: anything else.
    """
    microseconds = _amount(value, DURATION, _MICROSECONDS, unit_of_numbers=1_000_000)
    if microseconds is None or microseconds < 0:
        raise ValueError(EXPECTED_DURATION)
    if microseconds > LONGEST // timedelta(microseconds=1):
        raise ValueError("expected a duration of at most 3650d")
    return timedelta(microseconds=round(microseconds))


def format_duration(value: timedelta) -> str:
    """What :func:`parse_duration` reads back as ``value``, which must not be negative: ``"90s"``, ``"24h"``."""
    microseconds = value // timedelta(microseconds=1)
    if not microseconds:
        return "0s"
    for unit, length in _MICROSECONDS.items():
        if microseconds % length == 0 and (unit != "d" or microseconds > length):  # "24h" is how a day is said
            return f"{microseconds // length}{unit}"
    return f"{microseconds // 1000}.{microseconds % 1000:03d}ms"


def parse_size(value: object) -> int:
    """Bytes, 1 to 1024 TiB, from ``"64KiB"``, ``"16MB"``, ``"1.5GiB"`` or a number of bytes.

    Raises:
        ValueError: anything else, a fraction of a byte included.
    """
    size = _amount(value, SIZE, _BYTES, unit_of_numbers=1)
    if size is None or size != size.to_integral_value() or size < 0:
        raise ValueError(EXPECTED_SIZE)
    if not 1 <= size <= LARGEST:
        raise ValueError("expected a size of 1 byte to 1024TiB")
    return int(size)


def format_size(value: int) -> str:
    """The shortest text that :func:`parse_size` reads back: ``"64KiB"``, ``"1000B"``."""
    for unit, spelled in _SPELLED.items():
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{spelled}"
    return f"{value}B"


def parse_share(value: object) -> Share:
    """A :class:`Share` from ``"10%"``, a whole number of records or ``"off"``.

    Raises:
        ValueError: anything else; 0 % and more than 100 % included.
    """
    if value == "off":
        return Share()
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < 2**53:
            raise ValueError("expected a number of records that is not negative and below 2^53")
        return Share(records=value)
    match = re.fullmatch(SHARE, value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(EXPECTED_SHARE)
    percent = float(match[1])
    if not 0 < percent <= 100:  # noqa: PLR2004  # a whole is a hundred per cent
        raise ValueError("expected a share of more than 0% and at most 100%")
    return Share(percent=percent)


def format_share(value: Share) -> str | int:
    """What :func:`parse_share` reads back: ``"10%"``, ``500``, ``"off"``."""
    if value.percent is not None:
        return f"{Decimal(repr(value.percent)):f}".removesuffix(".0") + "%"
    return "off" if value.records is None else value.records


def _amount(value: object, pattern: str, units: dict[str, int], *, unit_of_numbers: int) -> Decimal | None:
    """The value in its smallest unit; None where it is neither a number nor a number with a unit."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return Decimal(repr(value)) * unit_of_numbers if _sane(value) else None
    match = re.fullmatch(pattern, value) if isinstance(value, str) else None
    return Decimal(match[1]) * units[match[2].lower()] if match else None


def _sane(value: float) -> bool:
    """Finite, and short enough to be written out (a whole number may be of any length)."""
    return -(2.0**80) < value < 2.0**80
