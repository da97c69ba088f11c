"""Problems of a configuration, and how keys and values are shown in messages.

**Invariants**

- What may be a secret is not shown: nothing under a key that sounds like one, nothing that looks like one, no user or
  password of a URL, no query of a URL or a path. A value shown too little costs a look into the file; one shown too
  much cannot be taken back.
- A problem says where it is and what is expected there. It carries the value only to have it shown here.
- Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from poller.config.http import host_only, redacted
from poller.text import looks_secret

LONGEST: Final = 60
_ENOUGH: Final = 3

_SECRET_WORD: Final = re.compile(r"token|secret|passw|pwd|credential|auth|private|key|headers|command|bearer|signature")
_INNOCENT: Final = frozenset({"allow_private", "delta_token"})
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def sounds_secret(key: str) -> bool:
    """Whether the value of this key may be a secret."""
    return key not in _INNOCENT and bool(_SECRET_WORD.search(key.lower()))


def shown_key(key: Key) -> str:
    """``sources[0].feeds[1].interval``; a key that looks like a secret is ``…``."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f"{'.' if text else ''}{_shown_part(part)}"
    return text


def shown_problem(problem: ConfigProblem, *, where: str, name: str | None, secrets: Collection[str]) -> str:
    """One line about a problem: place, key, value if it may be shown, expectation.

    Args:
        problem: what is wrong.
        where: the file or ``environment``.
        name: the environment variable, if the value came from one.
        secrets: values known to be secret; what contains one of them is not shown.
    """
    key = shown_key(problem.key) if name is None else name
    value = None if _hidden(problem, name) else _shown_value(_without_secrets(problem), secrets)
    at = f"{key} = {value}" if value is not None else key
    return f"{where}{': ' if name is None else ' '}{at}{': ' if at else ''}{problem.expected}"


def shown_value(problem: ConfigProblem) -> str | None:
    """The value as it may be shown; None: it may not, or there is none."""
    return None if _hidden(problem, None) else _shown_value(_without_secrets(problem), ())


def _without_secrets(problem: ConfigProblem) -> Any:
    """The value; a sink without its path and a path without its query, which may be secrets."""
    value, last = problem.value, str(problem.key[-1]) if problem.key else ""
    if not isinstance(value, str):
        return value
    if last == "sink":
        return host_only(value)
    path, mark, _ = value.partition("?")
    return f"{path}?…" if mark and "://" not in path and (last.endswith("path") or path.startswith("/")) else value


def _hidden(problem: ConfigProblem, name: str | None) -> bool:
    words = [part for part in problem.key if isinstance(part, str)] + ([name] if name else [])
    return problem.value is ABSENT or any(sounds_secret(word) for word in words)


def _shown_part(part: str) -> str:
    if len(part) > LONGEST or looks_secret(part) or "@" in part:
        return "…"
    return part if _BARE.fullmatch(part) else json.dumps(part)


def _shown_value(value: Any, secrets: Collection[str]) -> str | None:
    if isinstance(value, dict):
        return None
    if isinstance(value, list | tuple):
        shown = [_shown_value(one, secrets) or "{…}" for one in value[:_ENOUGH]]
        return f"[{', '.join(shown)}{', …' if len(value) > _ENOUGH else ''}]"
    if not isinstance(value, str):
        return json.dumps(value) if isinstance(value, bool | int | float) and abs(value) < 10**LONGEST else None
    if any(secret in value for secret in secrets) or looks_secret(_UUID.sub("", value)):
        return '"…"'
    text = redacted(value)
    return json.dumps(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…", ensure_ascii=False)


Key = tuple[str | int, ...]
"""A key path: ``("sources", 0, "feeds", 1, "interval")``."""

ABSENT: Final = object()
"""No value to be shown: there is none, or it must not be shown."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """What is wrong at ``key``; () is the whole configuration.

    Attributes:
        key: the key path.
        expected: what the operator should write, without the value.
        value: as in the file or the environment; ``ABSENT``: it is not to be shown.
    """

    key: Key
    expected: str
    value: Any = ABSENT
