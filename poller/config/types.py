"""The types of single values: durations, sizes, names, numbers, paths.

**Invariants**

- Each type says in plain words what it expects, and describes itself to the JSON Schema with the bounds that it
  checks.
- A value of one type is never accepted as another: ``"4"`` is no number, ``true`` is no 1.
- ``parse ∘ format`` gives the same value. What cannot be meant (negative, not finite, absurdly large) is refused with
  a text that says what is expected and never repeats the value.
- A name that is accepted can be used in a Redis key, a URL's path or an event type without quoting.
- Names, bounds and descriptions of single keys are given by the keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from poller.resources import ID_IN_PATH
from poller.text import is_secret

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
class Threshold:
    """A limit: a percentage, a number of records, or (both None) none.

    Attributes:
        percent: more than 0, at most 100.
        records: 0 or more.
    """

    percent: float | None = None
    records: int | None = None

    @property
    def off(self) -> bool:
        """Whether there is no limit."""
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
    """What :func:`parse_duration` reads back as ``value``: ``"90s"``, ``"24h"``. Not negative."""
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


def parse_share(value: object) -> Threshold:
    """A :class:`Threshold` from ``"10%"``, a whole number of records or ``"off"``.

    Raises:
        ValueError: anything else; 0 % and more than 100 % included.
    """
    if value == "off":
        return Threshold()
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < 2**53:
            raise ValueError("expected a number of records that is not negative and below 2^53")
        return Threshold(records=value)
    match = re.fullmatch(SHARE, value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(EXPECTED_SHARE)
    percent = float(match[1])
    if not 0 < percent <= 100:  # noqa: PLR2004  # a whole is a hundred per cent
        raise ValueError("expected a share of more than 0% and at most 100%")
    return Threshold(percent=percent)


def format_share(value: Threshold) -> str | int:
    """What :func:`parse_share` reads back: ``"10%"``, ``500``, ``"off"``."""
    if value.percent is not None:
        return f"{Decimal(repr(value.percent)):f}".removesuffix(".0") + "%"
    return "off" if value.records is None else value.records


def _amount(value: object, pattern: str, units: dict[str, int], *, unit_of_numbers: int) -> Decimal | None:
    """The value in its smallest unit; None: it is no amount."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return Decimal(repr(value)) * unit_of_numbers if _sane(value) else None
    match = re.fullmatch(pattern, value) if isinstance(value, str) else None
    return Decimal(match[1]) * units[match[2].lower()] if match else None


def _sane(value: float) -> bool:
    """Whether it is finite and short enough to be written out."""
    return -(2.0**80) < value < 2.0**80


class Table(BaseModel):
    """A table of the file: frozen, without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)


@dataclass(frozen=True, slots=True)
class Matching:
    """Text that matches ``pattern`` as a whole; ``expected`` continues the sentence "expected …"."""

    pattern: str
    expected: str

    def __get_pydantic_core_schema__(self, source: Any, follow: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, follow(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, follow: GetJsonSchemaHandler) -> JsonSchemaValue:
        return follow(schema) | {"pattern": f"^(?:{self.pattern})$"}

    def check(self, value: str) -> str:
        """The value itself.

        Raises:
            ValueError: it does not match.
        """
        if not re.fullmatch(self.pattern, value):
            raise ValueError(f"expected {self.expected}")
        return value


@dataclass(frozen=True, slots=True)
class Between:
    """A duration or size within bounds, both included: ``Between("500ms", "10m")``."""

    low: str
    high: str

    def __get_pydantic_core_schema__(self, source: Any, follow: GetCoreSchemaHandler) -> CoreSchema:
        parse: Callable[[object], Any] = parse_size if self.low[-1] == "B" else parse_duration
        low, high, expected = parse(self.low), parse(self.high), f"expected {self.low} to {self.high}"

        def check(value: Any) -> Any:
            if not low <= value <= high:
                raise ValueError(expected)
            return value

        return core_schema.no_info_after_validator_function(check, follow(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, follow: GetJsonSchemaHandler) -> JsonSchemaValue:
        return follow(schema) | {"$comment": f"from {self.low} to {self.high}"}


def _duration(value: object) -> timedelta:
    return value if isinstance(value, timedelta) else parse_duration(value)


def _duration_or_off(value: object) -> timedelta | None:
    if value is None or value == "off":
        return None
    try:
        return _duration(value)
    except ValueError as refused:
        raise ValueError(f'{refused}, or "off"') from None


def _share(value: object) -> Threshold:
    return value if isinstance(value, Threshold) else parse_share(value)


_EXPECTED_PATH: Final = "expected the path of a file or directory"


def _path(value: object) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value.strip() or re.search(r"[\x00-\x1f]", value):
        raise ValueError(_EXPECTED_PATH)
    if is_secret(value):  # a secret that was pasted here would be shown as a path is
        raise ValueError(_EXPECTED_PATH)
    return Path(value)


def _written(duration: timedelta | None) -> str:
    return "off" if duration is None else format_duration(duration)


AS_DURATION: Final = [{"type": "string", "pattern": f"^{DURATION}$"}, {"type": "number", "minimum": 0}]
AS_SIZE: Final = [{"type": "string", "pattern": f"^{SIZE}$"}, {"type": "integer", "minimum": 1}]
AS_SHARE: Final = [
    {"type": "string", "pattern": f"^{SHARE}$"},
    {"type": "integer", "minimum": 0},
    {"const": "off"},
]

Duration = Annotated[
    timedelta,
    PlainValidator(_duration),
    PlainSerializer(_written, when_used="json"),
    WithJsonSchema({"anyOf": AS_DURATION}),
]
DurationOrOff = Annotated[
    timedelta | None,
    PlainValidator(_duration_or_off),
    PlainSerializer(_written, when_used="json"),
    WithJsonSchema({"anyOf": [*AS_DURATION, {"const": "off"}]}),
]
Size = Annotated[
    int,
    PlainValidator(parse_size),
    PlainSerializer(format_size, when_used="json"),
    WithJsonSchema({"anyOf": AS_SIZE}),
]
ShareOrOff = Annotated[
    Threshold,
    PlainValidator(_share),
    PlainSerializer(format_share, when_used="json"),
    WithJsonSchema({"anyOf": AS_SHARE}),
]

Whole = Annotated[int, Field(strict=True)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
FilePath = Annotated[Path, PlainValidator(_path), WithJsonSchema({"type": "string", "minLength": 1})]
Text = Annotated[str, Matching(r"[^\x00-\x1f\x7f]+", "text that is not empty and has no control characters")]
Variable = Annotated[str, Matching(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
SLOWEST: Final = 0.0001
"""Requests a second: one in not quite three hours. What is slower is a slip, and looks like silence."""


def _not_silent(rate: float) -> float:
    if rate < SLOWEST:
        raise ValueError("expected 0.0001 or more: a request in three hours")
    return rate


Rate = Annotated[
    Real,
    Field(gt=0, le=1_000_000),
    AfterValidator(_not_silent),
    WithJsonSchema({"type": "number", "minimum": SLOWEST, "maximum": 1_000_000}),
]
Concurrency = Annotated[Whole, Field(ge=1, le=10_000)]


_SEGMENTS: Final = r"(?:/(?!(?:\.|%2[Ee]){1,2}(?:/|$))[A-Za-z0-9._~!$&'()*+,;=:@%-]+)+"
_A_MONDAY: Final = datetime(2024, 1, 1, tzinfo=UTC)

FeedName = Annotated[
    str, Matching(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "1 to 64 letters, digits, - and _, the first a letter or a digit")
]
SourceName = Annotated[
    str, Matching(r"[a-z0-9][a-z0-9-]{0,31}", "1 to 32 lower-case letters, digits and -, the first not a -")
]
SubscriptionId = Annotated[
    str, Matching(r"[a-z0-9][a-z0-9-]{0,63}", "1 to 64 lower-case letters, digits and -, the first not a -")
]
FeedId = Annotated[str, Matching(r"[^/\s]+/[^/\s]+", "a feed as SOURCE/NAME")]
TypePrefix = Annotated[
    str, Matching(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*", 'words joined by dots, such as "org.example.api"')
]
ListPath = Annotated[str, Matching(_SEGMENTS, 'a path such as "/positions", without a query and without {…}')]
DetailPath = Annotated[
    str,
    Matching(rf"(?:{_SEGMENTS})?/\{{id\}}(?:{_SEGMENTS})?", 'a path with {id} in it, such as "/positions/{id}"'),
]
Pointer = Annotated[
    str, Matching(r"(?:/(?:[^~/\x00-\x1f]|~[01])*)+", 'a JSON pointer (RFC 6901) such as "/lastModifiedAt"')
]

T = TypeVar("T")


def did_you_mean(wrong: str, known: list[str]) -> str:
    """``; did you mean "…"?`` if one of ``known`` is similar, else nothing."""
    close = get_close_matches(wrong, known, n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    """The values, as given.

    Raises:
        ValueError: one of them stands there twice.
    """
    if len(set(values)) != len(values):
        raise ValueError("expected no entry twice")
    return values


def check_cron(expression: str) -> str:
    """A cron expression of five fields that comes due at some time, as written.

    Raises:
        ValueError: anything else.
    """
    from poller.config.cron import EXPECTED, trigger_of  # noqa: PLC0415  # slow to import, and few feeds have one

    if trigger_of(expression).get_next_fire_time(None, _A_MONDAY) is None:
        raise ValueError(EXPECTED)
    return expression


def _qualifications(value: object) -> tuple[str, ...]:
    listed = ("auto",) if value == "auto" else value
    if not isinstance(listed, list | tuple) or not listed:
        raise ValueError('expected "auto", a list of qualification ids, or both in one list')
    if not all(isinstance(one, str) and re.fullmatch(ID_IN_PATH, one) for one in listed):
        raise ValueError('expected ids of 1 to 128 letters, digits and - . _ ~, no "." or ".."')
    return distinct(tuple(listed))


_AS_IDS: Final = {
    "type": "array",
    "items": {"type": "string", "pattern": f"^{ID_IN_PATH}$"},
    "minItems": 1,
    "uniqueItems": True,
}

Qualifications = Annotated[
    tuple[str, ...], BeforeValidator(_qualifications), WithJsonSchema({"anyOf": [{"const": "auto"}, _AS_IDS]})
]
