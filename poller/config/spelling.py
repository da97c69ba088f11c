"""How the values of a feed are spelled: names, paths, JSON pointers, cron expressions.

Law: whatever passes can stand in a Redis key, in a URL's path or in an event's type as it is, without quoting.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Final, TypeVar

from pydantic import BeforeValidator, WithJsonSchema

from poller.config.scalars import Matching

ACHIEVEMENTS: Final = "achievements"
RESOURCES: Final = ("evidenceVariants", "employmentUnavailabilities", "contractTypes", ACHIEVEMENTS)
"""The resources that need no ``path``."""

_SEGMENTS: Final = r"(?:/(?!(?:\.|%2[Ee]){1,2}(?:/|$))[A-Za-z0-9._~!$&'()*+,;=:@%-]+)+"
_ID: Final = r"(?!\.{1,2}$)[A-Za-z0-9._~-]{1,128}"
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
    """``; did you mean "…"?`` where one of ``known`` is close, else nothing."""
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
    if not all(isinstance(one, str) and re.fullmatch(_ID, one) for one in listed):
        raise ValueError('expected ids of 1 to 128 letters, digits and - . _ ~, no "." or ".."')
    return distinct(tuple(listed))


_AS_IDS: Final = {
    "type": "array",
    "items": {"type": "string", "pattern": f"^{_ID}$"},
    "minItems": 1,
    "uniqueItems": True,
}

Qualifications = Annotated[
    tuple[str, ...], BeforeValidator(_qualifications), WithJsonSchema({"anyOf": [{"const": "auto"}, _AS_IDS]})
]
