"""What the environment says, laid over the file.

Law: the environment beats the file, variable by variable; an empty variable counts as not set. Where a variable
cannot be applied without guessing, it is a problem that names the variable. A token belongs to one API: where there
are several sources it goes to none of them.

Pure: the environment is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from poller.config.problems import ABSENT, Key, Problem
from poller.config.showing import shown_key
from poller.config.spelling import RESOURCES

READ_TOKEN: Final = "POLLER_READ_TOKEN"  # noqa: S105  # a variable's name
ADMIN_TOKEN: Final = "POLLER_ADMIN_TOKEN"  # noqa: S105  # likewise
SECRETS: Final = ("POLLER_TOKEN", READ_TOKEN, ADMIN_TOKEN)
"""Variables whose value is a secret."""

_TABLES: Final = {
    "REDIS_URL": ("redis", "url"),
    "POLLER_HTTP_BIND": ("http", "bind"),
    "POLLER_DATA_DIR": ("embedded", "data_dir"),
    f"{READ_TOKEN}_FILE": ("http", "read_token_file"),
    f"{ADMIN_TOKEN}_FILE": ("http", "admin_token_file"),
}
_CREDENTIALS: Final = {"POLLER_TOKEN": "token_env", "POLLER_TOKEN_FILE": "token_file"}


@dataclass(slots=True)
class Overlay:
    """What the environment sets.

    Attributes:
        values: in the shape of the file; a list replaces that of the file.
        variables: which variable stands behind a key path.
        problems: variables that cannot be applied.
    """

    values: dict[str, Any] = field(default_factory=dict)
    variables: dict[Key, str] = field(default_factory=dict)
    problems: list[tuple[str, Problem]] = field(default_factory=list)

    def variable(self, key: Key) -> str | None:
        """The variable behind a key path or what it lies in."""
        return next((self.variables[key[:end]] for end in range(len(key), 0, -1) if key[:end] in self.variables), None)


def overlay(file: Mapping[str, Any], environ: Mapping[str, str]) -> Overlay:
    """What ``environ`` sets over the values of a file, which may be wrong anywhere."""
    made = Overlay()
    for name, (table, key) in _TABLES.items():
        if value := environ.get(name, "").rstrip("\r\n"):  # as a value from a file that an editor has saved ends
            _set(made, name, table, key, value)
    if environ.get("PORT") and not environ.get("POLLER_HTTP_BIND"):
        _port(made, environ["PORT"])
    for name in (READ_TOKEN, ADMIN_TOKEN):
        if environ.get(name, "").strip() and environ.get(f"{name}_FILE"):
            made.problems.append((name, Problem((), f"expected either {name} or {name}_FILE, not both")))
    _sources(made, file.get("sources", []), environ)
    return made


def _set(made: Overlay, name: str, table: str, key: str, value: str) -> None:
    made.values.setdefault(table, {})[key] = value
    made.variables[table, key] = name


def _port(made: Overlay, port: str) -> None:
    if port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535:  # noqa: PLR2004  # the largest
        _set(made, "PORT", "http", "bind", f"0.0.0.0:{port}")
    else:
        made.problems.append(("PORT", Problem((), "expected a port, 1 to 65535", port)))


def _sources(made: Overlay, sources: Any, environ: Mapping[str, str]) -> None:
    base_url = environ.get("POLLER_BASE_URL", "").rstrip("\r\n")
    if not isinstance(sources, list):
        return  # the file is wrong, and says so
    if not sources and base_url:
        sources = [{"name": "default", "feeds": [{"resource": name} for name in RESOURCES]}]
    if not sources:
        return
    replaced = [dict(source) if isinstance(source, Mapping) else source for source in sources]
    if base_url:
        _base_url(made, replaced, base_url)
    _credentials(made, replaced, environ)
    if made.variables.keys() & {(*at, key) for at in _keys(replaced) for key in ("base_url", "auth")}:
        made.values["sources"] = replaced


def _base_url(made: Overlay, sources: list[Any], base_url: str) -> None:
    if len(sources) > 1:
        expected = f"expected only with one source: the file has {len(sources)}, and each has its own base_url"
        made.problems.append(("POLLER_BASE_URL", Problem((), expected, ABSENT)))
    elif isinstance(sources[0], dict):
        sources[0]["base_url"] = base_url
        made.variables["sources", 0, "base_url"] = "POLLER_BASE_URL"


def _credentials(made: Overlay, sources: list[Any], environ: Mapping[str, str]) -> None:
    given = [name for name in _CREDENTIALS if environ.get(name)]
    if len(given) > 1:
        made.problems.append(
            ("POLLER_TOKEN", Problem((), "expected either POLLER_TOKEN or POLLER_TOKEN_FILE, not both"))
        )
    elif given and len(sources) > 1:
        _own_credentials(made, given[0], sources)
    elif given and isinstance(sources[0], dict):
        (name,) = given
        sources[0]["auth"] = {_CREDENTIALS[name]: name if name in SECRETS else environ[name]}
        made.variables["sources", 0, "auth"] = name


def _own_credentials(made: Overlay, name: str, sources: list[Any]) -> None:
    without = ", ".join(shown_key(at) for at in _keys(sources) if "auth" not in sources[at[1]])
    if without:
        several = f"the file has {len(sources)}, and each needs its own auth; none in {without}"
        made.problems.append((name, Problem((), f"expected only with one source: {several}")))


def _keys(sources: list[Any]) -> list[tuple[str, int]]:
    return [("sources", at) for at, source in enumerate(sources) if isinstance(source, dict)]
