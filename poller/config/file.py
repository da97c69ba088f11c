"""The file: which one, and its text as values.

Law: a file that cannot be read is refused with its name, and where it is not TOML, with line and column; no part of
the text is repeated, for it may be a secret.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from poller.errors import ConfigurationError

LARGEST: Final = 4 * 1024**2

_PLACE: Final = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)\s*$")
_QUOTED: Final = re.compile(r""" ?(?:'[^']{2,}'|"[^"]{2,}"|\([^)]*\))""")


def find_file(option: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The file to load: ``option`` (``--config``), else ``$POLLER_CONFIG``, else ``poller.toml`` in ``cwd``, if there.

    The first two count whether or not there is such a file. None: the environment alone.
    """
    if option is not None:
        return cwd / option
    if environ.get("POLLER_CONFIG"):
        return cwd / environ["POLLER_CONFIG"]
    default = cwd / "poller.toml"
    return default if default.exists() else None


def read(path: Path) -> dict[str, Any]:
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
