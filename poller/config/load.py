"""Loads the configuration: file and environment in, one frozen value out.

**Invariants**

- The environment beats the file, variable by variable; an empty variable counts as not set. A variable that cannot be
  applied without guessing is a problem that names the variable.
- A token belongs to one API: with several sources it goes to none of them.
- All problems are reported together, one line each: where, the key path, the value, what is expected.
- A file that cannot be read is refused with its name, and if it is not TOML, with line and column; no part of its
  text is repeated, because it may be a secret.
- A path that a file names is absolute once it is loaded: relative to the file's directory, or to the working
  directory if it comes from the environment. It is recognised by its type, so a new key is no exception. Two kinds
  are text: the options of a Redis URL that name files, and the program of a command if it is written with a slash
  (without one it is looked up in the PATH).
- Nothing is read but the one file: not the process's environment, no secret, no network.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from pydantic import BaseModel, ValidationError

from poller.config.errors import ABSENT, ConfigProblem, Key, shown_key, shown_problem
from poller.config.http import AuthSettings, holds_password
from poller.config.settings import RedisSettings, Settings, broken_relations
from poller.config.validation import problems_of
from poller.errors import ConfigurationError
from poller.resources import RESOURCES

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
class EnvironmentOverlay:
    """The values that the environment sets.

    Attributes:
        values: in the shape of the file; a list replaces that of the file.
        variables: the variable of each key path.
        problems: variables that cannot be applied.
    """

    values: dict[str, Any] = field(default_factory=dict)
    variables: dict[Key, str] = field(default_factory=dict)
    problems: list[tuple[str, ConfigProblem]] = field(default_factory=list)

    def variable(self, key: Key) -> str | None:
        """The variable of a key path or of a table around it."""
        return next((self.variables[key[:end]] for end in range(len(key), 0, -1) if key[:end] in self.variables), None)


def environment_overlay(file: Mapping[str, Any], environ: Mapping[str, str]) -> EnvironmentOverlay:
    """The values that ``environ`` sets over those of a file, which may be wrong anywhere."""
    made = EnvironmentOverlay()
    for name, (table, key) in _TABLES.items():
        if value := environ.get(name, "").rstrip("\r\n"):  # as a value from a file that an editor has saved ends
            _set(made, name, table, key, value)
    if environ.get("PORT") and not environ.get("POLLER_HTTP_BIND"):
        _port(made, environ["PORT"])
    for name in (READ_TOKEN, ADMIN_TOKEN):
        if environ.get(name, "").strip() and environ.get(f"{name}_FILE"):
            made.problems.append((name, ConfigProblem((), f"expected either {name} or {name}_FILE, not both")))
    _sources(made, file.get("sources", []), environ)
    return made


def _set(made: EnvironmentOverlay, name: str, table: str, key: str, value: str) -> None:
    made.values.setdefault(table, {})[key] = value
    made.variables[table, key] = name


def _port(made: EnvironmentOverlay, port: str) -> None:
    if port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535:  # noqa: PLR2004  # the largest
        _set(made, "PORT", "http", "bind", f"0.0.0.0:{port}")
    else:
        made.problems.append(("PORT", ConfigProblem((), "expected a port, 1 to 65535", port)))


def _sources(made: EnvironmentOverlay, sources: Any, environ: Mapping[str, str]) -> None:
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


def _base_url(made: EnvironmentOverlay, sources: list[Any], base_url: str) -> None:
    if len(sources) > 1:
        expected = f"expected only with one source: the file has {len(sources)}, and each has its own base_url"
        made.problems.append(("POLLER_BASE_URL", ConfigProblem((), expected, ABSENT)))
    elif isinstance(sources[0], dict):
        sources[0]["base_url"] = base_url
        made.variables["sources", 0, "base_url"] = "POLLER_BASE_URL"


def _credentials(made: EnvironmentOverlay, sources: list[Any], environ: Mapping[str, str]) -> None:
    given = [name for name in _CREDENTIALS if environ.get(name)]
    if len(given) > 1:
        made.problems.append(
            ("POLLER_TOKEN", ConfigProblem((), "expected either POLLER_TOKEN or POLLER_TOKEN_FILE, not both"))
        )
    elif given and len(sources) > 1:
        _own_credentials(made, given[0], sources)
    elif given and isinstance(sources[0], dict):
        (name,) = given
        sources[0]["auth"] = {_CREDENTIALS[name]: name if name in SECRETS else environ[name]}
        made.variables["sources", 0, "auth"] = name


def _own_credentials(made: EnvironmentOverlay, name: str, sources: list[Any]) -> None:
    without = ", ".join(shown_key(at) for at in _keys(sources) if "auth" not in sources[at[1]])
    if without:
        several = f"the file has {len(sources)}, and each needs its own auth; none in {without}"
        made.problems.append((name, ConfigProblem((), f"expected only with one source: {several}")))


def _keys(sources: list[Any]) -> list[tuple[str, int]]:
    return [("sources", at) for at, source in enumerate(sources) if isinstance(source, dict)]


LARGEST: Final = 4 * 1024**2

_PLACE: Final = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)\s*$")
_QUOTED: Final = re.compile(r""" ?(?:'[^']{2,}'|"[^"]{2,}"|\([^)]*\))""")


def find_file(option: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The file to load: ``option``, ``$POLLER_CONFIG`` or ``poller.toml`` in ``cwd``.

    The first two count whether or not the file exists. None: there is no file.
    """
    if option is not None:
        return cwd / option
    if environ.get("POLLER_CONFIG"):
        return cwd / environ["POLLER_CONFIG"]
    default = cwd / "poller.toml"
    return default if default.exists() else None


def read_file(path: Path) -> dict[str, Any]:
    """The values of a TOML file.

    Raises:
        ConfigurationError: it is not there, not readable, larger than 4 MiB, not UTF-8 or not TOML.
    """
    text = _text(path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigurationError(f"{path}: {_described(str(wrong), text)}") from None
    except (RecursionError, ValueError):  # a number of thousands of digits is a ValueError of its own
        raise ConfigurationError(
            f"{path}: expected tables, lists and numbers of a reasonable depth and length"
        ) from None


def _text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            content = opened.read(LARGEST + 1)
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: this is a directory; expected a TOML file") from None
    except (OSError, ValueError) as failed:  # ValueError: a NUL in the path
        reason = failed.strerror if isinstance(failed, OSError) else "not a path"
        raise ConfigurationError(f"{path}: cannot be read: {reason}") from None
    if len(content) > LARGEST:
        raise ConfigurationError(f"{path}: expected a TOML file of at most 4 MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        line = content.count(b"\n", 0, wrong.start) + 1
        raise ConfigurationError(f"{path}: line {line}: expected text in UTF-8") from None


def _described(message: str, text: str) -> str:
    """The message of tomllib with its place in front and without what it quotes."""
    place = _PLACE.search(message)
    what = _QUOTED.sub("", message[: place.start()] if place else message)
    what = (what[:1].lower() + what[1:]).strip()
    line, column = (place[1], place[2]) if place and place[1] else _end(text)
    return f"line {line}, column {column}: not valid TOML: {what}"


def _end(text: str) -> tuple[str, str]:
    lines = text.split("\n")
    return str(len(lines)), str(len(lines[-1]) + 1)


KeyTest = Callable[[Key], object]
"""Whether the value of a key came by another way, and stays as it is."""

T = TypeVar("T")

_OPTION: Final = re.compile(r"(?<=[?&])(ssl_ca_certs|ssl_ca_path|ssl_certfile|ssl_keyfile)=([^&#]*)")


def with_absolute_paths(settings: T, directory: Path, elsewhere: KeyTest = lambda _: False) -> T:
    """The settings, whole or a table of them, with every path absolute.

    Args:
        settings: validated.
        directory: what relative paths are relative to; absolute.
        elsewhere: whether the value of a key path, from these settings on, came another way and stays as it is.
    """
    made: T = _based(settings, (), directory, elsewhere)
    return made


def _based(value: Any, at: Key, directory: Path, elsewhere: KeyTest) -> Any:
    if elsewhere(at):
        return value
    if isinstance(value, Path):
        return directory / value
    if type(value) is tuple:  # and not one of those with names
        return tuple(_based(one, (*at, number), directory, elsewhere) for number, one in enumerate(value))
    if isinstance(value, BaseModel):
        said = {name: getattr(value, name) for name in value.model_fields_set}
        found = {name: _based(one, (*at, name), directory, elsewhere) for name, one in said.items()}
        found |= _texts(value, at, directory, elsewhere)
        changed = {name: one for name, one in found.items() if one != said[name]}
        return value.model_copy(update=changed) if changed else value
    return value


def _texts(table: BaseModel, at: Key, directory: Path, elsewhere: KeyTest) -> dict[str, Any]:
    if isinstance(table, RedisSettings) and table.url and not elsewhere((*at, "url")):
        return {"url": _OPTION.sub(lambda option: _option(option, directory), table.url)}
    if isinstance(table, AuthSettings) and table.command and "/" in table.command[0]:
        program, *arguments = table.command
        return {"command": (str(directory / program), *arguments)}
    return {}


def _option(option: re.Match[str], directory: Path) -> str:
    name, path = option[1], unquote(option[2])
    return option[0] if not path or Path(path).is_absolute() else f"{name}={quote(str(directory / path))}"


_PASSWORD = "expected a URL without a password: put the whole URL into the environment as REDIS_URL"  # noqa: S105  # a message


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings of the file ``path`` (None: no file) with ``environ`` over it.

    Raises:
        ConfigurationError: they cannot be used. The message has a line for each problem and shows no secret.
    """
    file = {} if path is None else read_file(path)
    outside = environment_overlay(file, environ)
    values = _merged(file, outside.values)
    settings: Settings | None = None
    problems = _literal_password(file)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as invalid:
        problems += [*problems_of(invalid), *broken_relations(values)]
    if settings is None or problems or outside.problems:
        raise ConfigurationError("\n".join(_lines(path, outside, problems, environ)))
    return settings if path is None else with_absolute_paths(settings, path.absolute().parent, outside.variable)


def _merged(file: Mapping[str, Any], outside: Mapping[str, Any]) -> dict[str, Any]:
    """The file's values, with those of the environment over them."""
    merged = dict(file)
    for name, value in outside.items():
        table = merged.get(name)
        merged[name] = {**table, **value} if isinstance(table, dict) and isinstance(value, dict) else value
    return merged


def _literal_password(file: Mapping[str, Any]) -> list[ConfigProblem]:
    redis = file.get("redis")
    url = redis.get("url") if isinstance(redis, Mapping) else None
    return [ConfigProblem(("redis", "url"), _PASSWORD)] if isinstance(url, str) and holds_password(url) else []


def _lines(
    path: Path | None, outside: EnvironmentOverlay, problems: list[ConfigProblem], environ: Mapping[str, str]
) -> list[str]:
    secrets = [environ[name] for name in SECRETS if environ.get(name)]
    where = "configuration" if path is None else str(path)
    lines = [
        shown_problem(problem, where="environment", name=name, secrets=secrets) for name, problem in outside.problems
    ]
    for problem in problems:
        name = None if problem.expected == _PASSWORD else outside.variable(problem.key)
        lines.append(shown_problem(problem, where="environment" if name else where, name=name, secrets=secrets))
    return list(dict.fromkeys(lines))
