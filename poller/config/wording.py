"""What pydantic found wrong, in plain words.

Law: an operator reads what to write, never how the program checks it. A key that is unknown gets the nearest one that
is known; a key that sounds like a secret gets the place where a secret belongs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from poller.config.problems import ABSENT, Key, Problem
from poller.config.settings import Settings
from poller.config.showing import sounds_secret
from poller.config.spelling import did_you_mean

_KEEP: Final = (
    "a secret has no place in the file: put it into a file of its own or into the environment, and name that with "
)
_PLACES: Final = {
    "sources": _KEEP + 'auth = { token_file = "…" } or { token_env = "NAME" }',
    "subscriptions": _KEEP + 'secret_files = ["…"], or for the Authorization header auth = { token_file = "…" }',
    "http": _KEEP + 'admin_token_file = "…"',
    "redis": "a secret has no place in the file: put the whole URL into the environment as REDIS_URL",
    "oauth2": _KEEP + 'client_secret_file = "…"',
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
    "tuple_type": "expected a list",
    "model_type": "expected a table",
    "model_attributes_type": "expected a table",
    "dict_type": "expected a table",
    "mapping_type": "expected a table",
    "recursion_loop": "expected filters that are not nested so deep",
}
_ELSEWHERE: Final = frozenset({"default_factory_not_called", "relations"})
"""The first follows from another problem; the second is said by ``relations`` itself, in more words."""


def problems_of(invalid: ValidationError) -> Iterator[Problem]:
    """Everything that validation found, in its order."""
    for error in invalid.errors(include_url=False):
        if not _follows(error):
            yield _problem(error)


def _follows(error: ErrorDetails) -> bool:
    """Whether this is only the echo of another problem: a list is also called too short where its entries are wrong."""
    return error["type"] in _ELSEWHERE or (error["type"] == "too_short" and bool(error["input"]))


def _problem(error: ErrorDetails) -> Problem:
    key = tuple(part for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        return Problem(key, _unknown(key))
    context: dict[str, Any] = {
        name: int(bound) if isinstance(bound, float) and bound.is_integer() else bound
        for name, bound in error.get("ctx", {}).items()
    }
    if error["type"] == "value_error":
        return Problem(key, str(context["error"]), _value(error))
    wording = _WORDS.get(error["type"], "expected another value")
    return Problem(
        key, wording.format(**context).replace("'", '"'), ABSENT if error["type"] == "missing" else _value(error)
    )


def _value(error: ErrorDetails) -> Any:
    return ABSENT if error["input"] is None else error["input"]


def _unknown(key: Key) -> str:
    """What to say of a key that its table does not know."""
    *table, last = key
    name, known = str(last), _keys_at(tuple(table))
    hint = did_you_mean(name, known)
    if sounds_secret(name) and name not in _everywhere(Settings):
        return next((_PLACES[part] for part in reversed(table) if part in _PLACES), f"unknown key{hint}")
    if hint:
        return f"unknown key{hint}"
    homes = [home for home in _everywhere(Settings).get(name, ()) if home]
    return f"unknown key; it belongs in {' or '.join(homes)}" if homes else f"unknown key; known are {', '.join(known)}"


def _keys_at(table: Key) -> list[str]:
    model: type[BaseModel] | None = Settings
    for part in table:
        if isinstance(part, str) and model is not None:
            fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
            model = _model(fields.get(part))
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _everywhere(model: type[BaseModel], at: str = "") -> dict[str, list[str]]:
    """Every key of every table, with the headings it may stand under; filters contain themselves and are left out."""
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
