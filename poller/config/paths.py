"""What relative paths are relative to: the directory of whatever names them, wherever the program was started.

Law: a path that a file names is absolute from the moment that it is loaded, so all that are given the settings, by the
registry too, mean the same file. It is told by its type and not by its key: a key that is added later is no exception.
Two kinds are text: the options of a Redis URL that name files, and the program of a command where it is written with a
slash; one without is looked for on the PATH, as a shell does it.

Pure: a directory is an argument, and nothing is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

from pydantic import BaseModel

from poller.config.auth import AuthSettings
from poller.config.daemon import RedisSettings
from poller.config.problems import Key

Elsewhere = Callable[[Key], object]
"""Whether the value of a key came by another way, and stays as it is."""

T = TypeVar("T")

_OPTION: Final = re.compile(r"(?<=[?&])(ssl_ca_certs|ssl_ca_path|ssl_certfile|ssl_keyfile)=([^&#]*)")


def based(settings: T, directory: Path, elsewhere: Elsewhere = lambda _: False) -> T:
    """The settings, whole or a table of them, with every path absolute.

    Args:
        settings: checked already.
        directory: what relative paths are relative to; absolute.
        elsewhere: is told the key path of a value, from these settings on.
    """
    made: T = _based(settings, (), directory, elsewhere)
    return made


def _based(value: Any, at: Key, directory: Path, elsewhere: Elsewhere) -> Any:
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


def _texts(table: BaseModel, at: Key, directory: Path, elsewhere: Elsewhere) -> dict[str, Any]:
    if isinstance(table, RedisSettings) and table.url and not elsewhere((*at, "url")):
        return {"url": _OPTION.sub(lambda option: _option(option, directory), table.url)}
    if isinstance(table, AuthSettings) and table.command and "/" in table.command[0]:
        program, *arguments = table.command
        return {"command": (str(directory / program), *arguments)}
    return {}


def _option(option: re.Match[str], directory: Path) -> str:
    name, path = option[1], unquote(option[2])
    return option[0] if not path or Path(path).is_absolute() else f"{name}={quote(str(directory / path))}"
