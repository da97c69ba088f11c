"""File and environment in, one frozen value out.

Law: everything that is wrong is said at once, one line each: where, the key path, the value, what is expected.
Nothing is read but the one file: not the process's environment, no secret, no network. Relative paths of the file are
relative to its directory, those of the environment to the working directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from poller.config.file import read
from poller.config.layers import EnvironmentLayer, FileLayer
from poller.config.overlay import SECRETS, Overlay, overlay
from poller.config.paths import based
from poller.config.problems import Problem
from poller.config.relations import broken_relations
from poller.config.settings import Settings
from poller.config.showing import shown_problem
from poller.config.urls import holds_password
from poller.config.wording import problems_of
from poller.errors import ConfigurationError

_PASSWORD = "expected a URL without a password: put the whole URL into the environment as REDIS_URL"  # noqa: S105  # a message


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings of the file ``path`` (None: no file) with ``environ`` laid over it.

    Raises:
        ConfigurationError: they cannot be used. The message has a line for each problem and shows no secret.
    """
    file = {} if path is None else read(path)
    outside = overlay(file, environ)
    settings: Settings | None = None
    problems = _literal_password(file)
    try:
        settings = Settings.layered(EnvironmentLayer(outside.values, Settings), FileLayer(file, Settings))
    except ValidationError as invalid:
        problems += [*problems_of(invalid), *broken_relations(file | outside.values)]
    if settings is None or problems or outside.problems:
        raise ConfigurationError("\n".join(_lines(path, outside, problems, environ)))
    return settings if path is None else based(settings, path.absolute().parent, outside.variable)


def _literal_password(file: Mapping[str, Any]) -> list[Problem]:
    redis = file.get("redis")
    url = redis.get("url") if isinstance(redis, Mapping) else None
    return [Problem(("redis", "url"), _PASSWORD)] if isinstance(url, str) and holds_password(url) else []


def _lines(path: Path | None, outside: Overlay, problems: list[Problem], environ: Mapping[str, str]) -> list[str]:
    secrets = [environ[name] for name in SECRETS if environ.get(name)]
    where = "configuration" if path is None else str(path)
    lines = [
        shown_problem(problem, where="environment", name=name, secrets=secrets) for name, problem in outside.problems
    ]
    for problem in problems:
        name = None if problem.expected == _PASSWORD else outside.variable(problem.key)
        lines.append(shown_problem(problem, where="environment" if name else where, name=name, secrets=secrets))
    return list(dict.fromkeys(lines))
