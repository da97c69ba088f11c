"""The options that every command takes, before its name or after it; what was said after it wins."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poller.cli.completing import feeds

if TYPE_CHECKING:
    from poller.config.settings import Settings
    from poller.telemetry.logs import Level


class LogFormat(StrEnum):
    """How log lines look."""

    CONSOLE = "console"
    JSON = "json"


class LogLevel(StrEnum):
    """From which level up they are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Document(StrEnum):
    """What ``poller schema`` prints."""

    ASYNCAPI = "asyncapi"
    EVENTS = "events"
    CONFIG = "config"


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Configuration file. Default: $POLLER_CONFIG, else ./poller.toml if it exists, else the environment.",
        show_default=False,
    ),
]
Format = Annotated[
    LogFormat | None,
    typer.Option("--log-format", help="Default: console on a terminal, json otherwise.", show_default=False),
]
Verbosity = Annotated[
    LogLevel | None, typer.Option("--log-level", help="debug also shows tracebacks.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on each line.")]
Feed = Annotated[
    str,
    typer.Argument(metavar="FEED", help="SOURCE/NAME, or NAME where only one source has it.", autocompletion=feeds),
]
Feeds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FEED",
        help="SOURCE/NAME, or NAME where only one source has it. Default: all feeds.",
        autocompletion=feeds,
    ),
]
Wait = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        help="Until it is carried out, or for nobody. Default: until a daemon says that it has begun, 5 s at most.",
        show_default=False,
    ),
]

Profiles = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[@RESOURCE],...", help="How it differs or misbehaves, always; see --list.", show_default=False
    ),
]
Faults = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[@RESOURCE][=RATE|COUNT],...",
        help="Profiles that strike now and then: 0.2 of all requests, or 3 times and no more. Default: 0.1.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options of every command say; None where nothing was said."""

    config: Path | None = None
    log_format: LogFormat | None = None
    log_level: LogLevel | None = None

    @classmethod
    def by(
        cls, context: typer.Context, config: Path | None, log_format: LogFormat | None, log_level: LogLevel | None
    ) -> Asked:
        """What was said after the command's name, else before it."""
        before = context.obj if isinstance(context.obj, Asked) else cls()
        return cls(config or before.config, log_format or before.log_format, log_level or before.log_level)

    def set_up_logs(self, level: Level, environ: Mapping[str, str] = os.environ) -> None:
        """Send logs to standard error; ``level`` is the command's default."""
        from poller.telemetry.logs import set_up  # noqa: PLC0415 -- late: structlog

        form = self.log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
        plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        set_up(form.value, self.log_level.value if self.log_level else level, colours=not plain)

    def file(self, environ: Mapping[str, str] = os.environ) -> Path | None:
        """The configuration file; None where there is none."""
        from poller.config.load import find_file  # noqa: PLC0415 -- late: pydantic

        return find_file(self.config, environ, Path.cwd())

    def settings(self, environ: Mapping[str, str] = os.environ) -> Settings:
        """The configuration.

        Raises:
            ConfigurationError: it cannot be used.
        """
        from poller.config.load import load  # noqa: PLC0415 -- late: pydantic

        return load(self.file(environ), environ)


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def named_feeds(settings: Settings, names: list[str] | None) -> tuple[str, ...]:
    """The ids of these feeds, of all where none is named; in the order named, each once.

    Raises:
        ConfigurationError: there is no such feed, or several.
    """
    if not names:
        return settings.feed_ids
    pairs = [settings.find_feed(name) for name in names]
    return tuple(dict.fromkeys(source.feed_id(feed) for source, feed in pairs))
