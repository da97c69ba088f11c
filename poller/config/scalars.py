"""The kinds of single values that tables are made of: durations, sizes, names, whole numbers, paths.

Law: each kind says in plain words what it expects, and describes itself to the JSON Schema with the same bounds that
it checks. A value of one kind is never taken for another: ``"4"`` is no number, ``true`` is no 1.

Knows nothing of single keys: those give their own names, bounds and descriptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
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

from poller.config import units


class Table(BaseModel):
    """A table of the file: frozen, and a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


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
    """A duration or size within bounds, both included, written as in the file: ``Between("500ms", "10m")``."""

    low: str
    high: str

    def __get_pydantic_core_schema__(self, source: Any, follow: GetCoreSchemaHandler) -> CoreSchema:
        parse: Callable[[object], Any] = units.parse_size if self.low[-1] == "B" else units.parse_duration
        low, high, expected = parse(self.low), parse(self.high), f"expected {self.low} to {self.high}"

        def check(value: Any) -> Any:
            if not low <= value <= high:
                raise ValueError(expected)
            return value

        return core_schema.no_info_after_validator_function(check, follow(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, follow: GetJsonSchemaHandler) -> JsonSchemaValue:
        return follow(schema) | {"$comment": f"from {self.low} to {self.high}"}


def _duration(value: object) -> timedelta:
    return value if isinstance(value, timedelta) else units.parse_duration(value)


def _duration_or_off(value: object) -> timedelta | None:
    if value is None or value == "off":
        return None
    try:
        return _duration(value)
    except ValueError as refused:
        raise ValueError(f'{refused}, or "off"') from None


def _share(value: object) -> units.Share:
    return value if isinstance(value, units.Share) else units.parse_share(value)


def _path(value: object) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value.strip() or re.search(r"[\x00-\x1f]|^whs[ekp][ck]_", value):
        raise ValueError("expected the path of a file or directory")  # a secret pasted here is no path
    return Path(value)


def _written(duration: timedelta | None) -> str:
    return "off" if duration is None else units.format_duration(duration)


AS_DURATION: Final = [{"type": "string", "pattern": f"^{units.DURATION}$"}, {"type": "number", "minimum": 0}]
AS_SIZE: Final = [{"type": "string", "pattern": f"^{units.SIZE}$"}, {"type": "integer", "minimum": 1}]
AS_SHARE: Final = [
    {"type": "string", "pattern": f"^{units.SHARE}$"},
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
    PlainValidator(units.parse_size),
    PlainSerializer(units.format_size, when_used="json"),
    WithJsonSchema({"anyOf": AS_SIZE}),
]
ShareOrOff = Annotated[
    units.Share,
    PlainValidator(_share),
    PlainSerializer(units.format_share, when_used="json"),
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
