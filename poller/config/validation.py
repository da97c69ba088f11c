"""Validation problems in plain words, and subscriptions that are not in a file.

**Invariants**

- An operator reads what to write, never how the program checks it. An unknown key gets the nearest known one; a key
  that sounds like a secret gets the place where a secret belongs.
- A subscription given on the command line or over HTTP obeys the rules of one in the file, and its problems are
  reported in the same words. It is stored as it was written, without the defaults; equal settings are equal bytes.
- Nothing that a person or a program has written is dropped silently: JSON with a key that occurs twice in an object
  is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, get_args

import msgspec
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from poller.config.errors import ABSENT, ConfigProblem, Key, shown_problem, sounds_secret
from poller.config.http import AUTH_KINDS
from poller.config.settings import CHOICES, Settings, broken_relations, source_relations, subscription_relations
from poller.config.subscriptions import SubscriptionSettings
from poller.config.types import SLOWEST, Table, did_you_mean
from poller.errors import ConfigurationError

MOST_PROBLEMS: Final = 100

_KEEP: Final = (
    "a secret has no place in the file: put it into a file of its own or into the environment, and name that with "
)
_PLACES: Final = {
    "sources": _KEEP + 'auth = { token_file = "…" } or { token_env = "NAME" }',
    "subscriptions": _KEEP + 'secret_files = ["…"], or for the Authorization header auth = { token_file = "…" }',
    "http": _KEEP + 'admin_token_file = "…"',
    "redis": "a secret has no place in the file: put the whole URL into the environment as REDIS_URL",
}
_WORDS: Final = {
    "missing": "expected a value: this key is required",
    "string_type": "expected text in quotes",
    "int_type": "expected a whole number",
    "float_type": "expected a number",
    "finite_number": "expected a number",
    "bool_type": "expected true or false",
    "literal_error": "expected {expected}",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected {ge} or more",
    "less_than_equal": "expected {le} or less",
    "too_short": "expected at least one entry",
    "too_long": "expected at most {max_length} entries",
    "tuple_type": "expected a list",
    "model_type": "expected a table",
    "model_attributes_type": "expected a table",
    "dict_type": "expected a table",
    "mapping_type": "expected a table",
    "recursion_loop": "expected filters that are not nested so deep",
}
_ELSEWHERE: Final = frozenset({"default_factory_not_called", "relations"})
"""The first follows from another problem; the second is said by ``relations`` itself, in more words."""


def problems_of(invalid: ValidationError) -> Iterator[ConfigProblem]:
    """All problems that validation found, in its order."""
    found = (error for error in invalid.errors(include_url=False) if not _follows(error))
    yield from map(_problem, islice(found, MOST_PROBLEMS))


def _follows(error: ErrorDetails) -> bool:
    """Whether this problem only follows from another one.

    For example, a list is also called too short if its entries are wrong.
    """
    return error["type"] in _ELSEWHERE or (error["type"] == "too_short" and bool(error["input"]))


def _problem(error: ErrorDetails) -> ConfigProblem:
    key = tuple(part for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        return ConfigProblem(key, _unknown(key))
    context: dict[str, Any] = {
        name: int(bound) if isinstance(bound, float) and bound.is_integer() else bound
        for name, bound in error.get("ctx", {}).items()
    }
    if error["type"] == "value_error":
        return ConfigProblem(key, str(context["error"]), _value(error))
    wording = _WORDS.get(error["type"], "expected another value")
    return ConfigProblem(
        key, wording.format(**context).replace("'", '"'), ABSENT if error["type"] == "missing" else _value(error)
    )


def _value(error: ErrorDetails) -> Any:
    return ABSENT if error["input"] is None else error["input"]


def _unknown(key: Key) -> str:
    """The message about a key that its table does not know."""
    *table, last = key
    name, known = str(last), _keys_at(tuple(table))
    hint = did_you_mean(name, known)
    if sounds_secret(name) and name not in _everywhere(Settings):
        return _place_for_secret(tuple(table)) or f"unknown key{hint}"
    if hint:
        return f"unknown key{hint}"
    homes = [home for home in _everywhere(Settings).get(name, ()) if home]
    return f"unknown key; it belongs in {' or '.join(homes)}" if homes else f"unknown key; known are {', '.join(known)}"


def _place_for_secret(table: Key) -> str | None:
    """Where a secret belongs that was written into this table: the nearest place that takes one."""
    for end in range(len(table), 0, -1):
        part = str(table[end - 1])
        if part in _PLACES:
            return _PLACES[part]
        files = [key for key in _keys_at(table[:end]) if key.endswith("_file")] if part in AUTH_KINDS else []
        if files:
            return f'{_KEEP}{files[0]} = "…"'
    return None


def _keys_at(table: Key) -> list[str]:
    model: type[BaseModel] | None = Settings
    for part in table:
        if isinstance(part, str) and model is not None:
            fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
            model = _model(fields.get(part))
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _everywhere(model: type[BaseModel], at: str = "") -> dict[str, list[str]]:
    """Every key, with the tables it may be in; nested filters are left out."""
    homes: dict[str, list[str]] = {}
    for name, field in model.model_fields.items():
        homes.setdefault(field.alias or name, []).append(at)
        inner = _model(field.annotation)
        if inner is not None and name != "filters":
            path = f"{at.strip('[]')}.{name}".lstrip(".")
            for key, headings in _everywhere(
                inner, f"[[{path}]]" if "tuple" in str(field.annotation) else f"[{path}]"
            ).items():
                homes.setdefault(key, []).extend(headings)
    return homes


def _model(annotation: Any) -> type[BaseModel] | None:
    """The table that a field holds, itself, or in a list, or optionally."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for found in map(_model, get_args(annotation)) if found), None)


_WITHIN = 2  # keys that lead to the one table: "subscriptions", 0


class _Within(Table):
    """A file with one subscription, so that its keys have the usual paths."""

    subscriptions: tuple[SubscriptionSettings, ...]


def subscription_of(values: Any, settings: Settings, *, where: str) -> SubscriptionSettings:
    """The subscription of these values.

    Args:
        values: the keys and values of a ``[[subscriptions]]`` table.
        settings: the configuration, with the feeds.
        where: the origin of the values, as a message names it.

    Raises:
        ConfigurationError: it cannot be used. The message has a line for each problem and shows no secret.
    """
    made = subscription_or_problems(values, settings)
    if isinstance(made, SubscriptionSettings):
        return made
    lines = [shown_problem(one, where=where, name=None, secrets=()) for one in made]
    raise ConfigurationError("\n".join(dict.fromkeys(lines)))


def subscription_or_problems(values: Any, settings: Settings) -> SubscriptionSettings | list[ConfigProblem]:
    """As :func:`subscription_of`; if it cannot be used, its problems by key."""
    try:
        subscription = _read(values)
    except ValidationError as invalid:
        problems = [*problems_of(invalid), *_unrelated(values, settings)]
    else:
        problems = _unrelated(subscription_relations(subscription), settings)
        if not problems:
            return subscription
    return [ConfigProblem(one.key[_WITHIN:], one.expected, one.value) for one in problems]


def decode_subscription(kept: bytes) -> SubscriptionSettings:
    """A stored subscription.

    Raises:
        ConfigurationError: this version cannot use it.
    """
    try:
        return _read(_with_allowed_rate(msgspec.json.decode(kept)))
    except (ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        which = "; ".join(one.expected for one in problems_of(wrong)) if isinstance(wrong, ValidationError) else "JSON"
        raise ConfigurationError(f"a subscription is kept that this version cannot use: {which}") from None


def _with_allowed_rate(kept: Any) -> Any:
    """The values with a rate that is allowed; an earlier version has accepted lower ones."""
    rate = kept.get("rate") if isinstance(kept, dict) else None
    return {**kept, "rate": SLOWEST} if isinstance(rate, int | float) and 0 < rate < SLOWEST else kept


def encode_subscription(subscription: SubscriptionSettings) -> bytes:
    """The stored form: the keys that were set, as in the file, in JSON."""
    return subscription.model_dump_json(by_alias=True, exclude_unset=True).encode()


def _read(values: Any) -> SubscriptionSettings:
    return _Within.model_validate({"subscriptions": [values]}).subscriptions[0]


def _unrelated(values: Any, settings: Settings) -> list[ConfigProblem]:
    """Problems with feeds, types and event sources that the configuration does not have."""
    named = {key: values.get(key) for key in ("feeds", "start", *CHOICES)} if isinstance(values, Mapping) else {}
    return broken_relations({"sources": [source_relations(one) for one in settings.sources], "subscriptions": [named]})


class _RepeatedMembers(list[tuple[str, Any]]):
    """The members of an object, with repeated keys."""


def repeated_keys(text: str | bytes) -> Iterator[Key]:
    """The paths of keys that occur twice in an object of a JSON text.

    Raises:
        RecursionError: the text is nested too deep.
        ValueError: it is no JSON.
    """
    waiting: list[tuple[Key, Any]] = [((), json.loads(text, object_pairs_hook=_RepeatedMembers))]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, _RepeatedMembers):
            seen: set[str] = set()
            for name, inner in value:
                if name in seen:
                    yield (*key, name)
                seen.add(name)
                waiting.append(((*key, name), inner))
        elif isinstance(value, list):
            waiting += [((*key, place), inner) for place, inner in enumerate(value)]
