"""How a command is declared, and the options and arguments that several commands share.

**Invariants**

- Global options (``--config``, ``--log-format``, ``--log-level``) stand before or after the command's name; after it
  wins. :meth:`CommandLine.command` alone adds them, sets up logging, runs the event loop, and makes ``False`` exit code
  1.
- ``poller --help`` alone explains the global options; every other help page names them in one line, and ends with the
  command's example.
- ``poller --help`` and completion take less than 0.4 s on a quiet machine: what is slow to import (pydantic, redis,
  structlog, msgspec, rich) is imported in the bodies of functions, here and in the modules of the commands.
- Completion never reports an error: the configuration file is read without being checked, the store is asked once
  with little patience, and any failure offers nothing.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand

from poller.resources import RESOURCES

if TYPE_CHECKING:
    import asyncio

    from poller.config.settings import Settings
    from poller.telemetry.logs import Level

COMPLETION_PATIENCE: Final = 0.1  # seconds
WATCH_SECONDS: Final = "2"
"""Seconds of ``--watch`` without a number."""

_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", re.ASCII)

T = TypeVar("T")


# Completion


def complete_feeds(context: typer.Context, incomplete: str) -> list[str]:
    """Feeds as ``SOURCE/NAME``, and as ``NAME`` if that was begun."""
    return _offered(lambda: _configured_feeds(configuration(context)), incomplete)


def complete_subscriptions(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of subscriptions, of the file and added at run time."""
    return _offered(lambda: _known_subscriptions(configuration(context)), incomplete)


def configuration(context: typer.Context) -> dict[str, Any]:
    """The configuration file unchecked, with its data directory made absolute; empty where there is no file."""
    import tomllib

    named, outer = context.params.get("config"), context.parent
    while outer is not None and not named:
        named, outer = outer.params.get("config"), outer.parent
    path = Path(str(named or os.environ.get("POLLER_CONFIG") or "poller.toml"))
    file = tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
    embedded = file.get("embedded")
    if isinstance(embedded, dict) and isinstance(embedded.get("data_dir"), str):
        embedded["data_dir"] = str(path.absolute().parent / embedded["data_dir"])
    return file


def _offered(find: Callable[[], Iterator[str]], incomplete: str) -> list[str]:
    try:
        return sorted({name for name in find() if name.startswith(incomplete)})
    except Exception:  # noqa: BLE001 -- completion never reports an error
        return []


def _configured_feeds(file: Mapping[str, Any]) -> Iterator[str]:
    sources = file.get("sources") or []
    if not sources and os.environ.get("POLLER_BASE_URL"):
        sources = [{"name": "default", "feeds": [{"resource": name} for name in RESOURCES]}]
    for source in sources:
        for feed in source.get("feeds") or []:
            name = feed.get("name") or feed["resource"]
            yield f"{source['name']}/{name}"
            yield str(name)


def _known_subscriptions(file: Mapping[str, Any]) -> Iterator[str]:
    for one in file.get("subscriptions") or []:
        yield str(one["id"])
    yield from _registered_subscriptions(file)


def _registered_subscriptions(file: Mapping[str, Any]) -> Iterator[str]:
    """Subscriptions in the registry of a single server; of Sentinels and a Cluster none are offered."""
    table = file.get("redis") or {}
    url = os.environ.get("REDIS_URL") or table.get("url") or _embedded_url(file)
    if not str(url).startswith(("redis://", "rediss://", "unix://")):
        return
    from redis import Redis
    from redis.exceptions import RedisError

    patience = {"socket_timeout": COMPLETION_PATIENCE, "socket_connect_timeout": COMPLETION_PATIENCE}
    try:
        with Redis.from_url(str(url), retry=None, **patience) as client:
            key = f"{table.get('prefix') or 'poller'}:{{subscriptions}}:registry"
            names: Any = client.hkeys(key)
    except (RedisError, OSError, ValueError):
        return
    yield from (name.decode() for name in names)


def _embedded_url(file: Mapping[str, Any]) -> str | None:
    directory = os.environ.get("POLLER_DATA_DIR") or (file.get("embedded") or {}).get("data_dir")
    return f"unix://{Path(directory).absolute() / 'valkey.sock'}" if directory else None


# Global options


class LogFormat(StrEnum):
    """The format of log lines."""

    CONSOLE = "console"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


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

_GLOBAL_PARAMETERS: Final = tuple(
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
    for name, annotation in (("config", Config), ("log_format", Format), ("log_level", Verbosity))
)
GLOBAL_OPTIONS: Final = tuple(parameter.name for parameter in _GLOBAL_PARAMETERS)


@dataclass(frozen=True, slots=True)
class GlobalOptions:
    """Values of the global options; None where an option is absent."""

    context: typer.Context
    config: Path | None = None
    log_format: LogFormat | None = None
    log_level: LogLevel | None = None

    def over(self, before: object) -> GlobalOptions:
        """These options, completed by those before the command's name."""
        if not isinstance(before, GlobalOptions):
            return self
        return GlobalOptions(
            self.context,
            self.config or before.config,
            self.log_format or before.log_format,
            self.log_level or before.log_level,
        )

    def set_up_logs(self, level: Level, environ: Mapping[str, str] = os.environ) -> None:
        """Send logs to standard error; ``level`` is the command's default."""
        from poller.telemetry import absent

        with absent("rich"):  # tracebacks are plain
            import structlog.dev  # noqa: F401 -- for its first import alone

        from poller.telemetry.logs import set_up

        form = self.log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
        plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        set_up(form.value, self.log_level.value if self.log_level else level, colours=not plain)

    def file(self, environ: Mapping[str, str] = os.environ) -> Path | None:
        """The configuration file; None where there is none."""
        from poller.config.load import find_file

        return find_file(self.config, environ, Path.cwd())

    def settings(self, environ: Mapping[str, str] = os.environ) -> Settings:
        """The configuration.

        Raises:
            ConfigurationError: it cannot be used.
        """
        from poller.config.load import load

        return load(self.file(environ), environ)

    def usage_error(self, text: str) -> typer.BadParameter:
        """An error in the arguments of this command, to be raised."""
        return typer.BadParameter(text, self.context)


# Commands


class HelpfulCommand(TyperCommand):
    """A command whose help names the global options in one line and ends with an example."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, each list under its heading, without the global options."""
        arguments, options = [], []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or param.name in GLOBAL_OPTIONS:
                continue
            if param.param_type_name == "argument":
                name, text = record
                arguments.append((name.partition(" <")[0], text))  # without the type
            else:
                options.append(record)
        for heading, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 -- click passes it
        """Write the global options and the example."""
        formatter.write_paragraph()
        formatter.write_text("Global options, see poller --help: --config, --log-format, --log-level.")
        formatter.write_paragraph()
        formatter.write(f"Example: poller {self.epilog}\n")


class WatchCommand(HelpfulCommand):
    """A command with ``--watch [SECONDS]``, whose number may be missing."""

    def parse_args(self, ctx: typer.Context | Any, args: list[str]) -> list[str]:
        """Parse the arguments after :func:`with_seconds`."""
        return list(super().parse_args(ctx, list(with_seconds(args))))


def with_seconds(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments with a number after each ``--watch`` that no number follows."""
    for at, argument in enumerate(arguments):
        yield argument
        if argument == "--watch" and not _NUMBER.fullmatch("".join(arguments[at + 1 : at + 2])):
            yield WATCH_SECONDS


class CommandLine(typer.Typer):
    """A group of commands; each has the global options, and an example."""

    def __init__(self, **options: Any) -> None:
        super().__init__(rich_markup_mode=None, **options)

    def command(
        self,
        name: str | None = None,
        *,
        cls: type[TyperCommand] | None = None,
        example: str = "",
        logs: Level = "error",
        **options: Any,
    ) -> Callable[[Any], Any]:
        """Register a function as a command.

        The function takes :class:`GlobalOptions` first, then its own parameters. It may be a coroutine function, and
        ends with exit code 1 where it returns False.

        Args:
            name: default: the function's.
            cls: of the command; default: :class:`HelpfulCommand`.
            example: arguments of ``poller`` for the help page, the command's name first.
            logs: the log level by default.
            options: see :meth:`typer.Typer.command`.
        """
        register = super().command(name, cls=cls or HelpfulCommand, epilog=example, **options)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            register(_with_global_options(function, logs=logs))
            return function

        return decorate


def _with_global_options(function: Callable[..., Any], *, logs: Level) -> Callable[..., None]:
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    context_parameter = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

    @wraps(function)
    def call(
        *,
        context: typer.Context,
        config: Path | None,
        log_format: LogFormat | None,
        log_level: LogLevel | None,
        **values: Any,
    ) -> None:
        options = GlobalOptions(context, config, log_format, log_level).over(context.obj)
        options.set_up_logs(logs)
        result = function(options, **values)
        if inspect.iscoroutine(result):
            result = run_loop(result)
        if result is False:
            raise typer.Exit(1)

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    signature = inspect.Signature([context_parameter, *parameters, *_GLOBAL_PARAMETERS])
    call.__signature__ = signature  # type: ignore[attr-defined]  # typer reads the parameters from here
    call.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return call


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in an event loop of its own: uvloop where it is installed, else asyncio's.

    SIGINT, SIGTERM and SIGHUP cancel it, so that leases are released and files closed, unless it handles them itself
    (:func:`poller.lifecycle.stopped_by_signals`).

    Raises:
        KeyboardInterrupt: a signal stopped it.
    """
    import asyncio
    import gc

    gc.enable()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            return runner.run(_cancelled_by_signals(main))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _cancelled_by_signals(main: Coroutine[Any, Any, T]) -> T:
    import asyncio

    from poller.lifecycle import terminations

    task = asyncio.current_task()
    if task is not None:
        for number in terminations():
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await main


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


# Options and arguments of several commands

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Feed = Annotated[
    str,
    typer.Argument(
        metavar="FEED", help="SOURCE/NAME, or NAME where only one source has it.", autocompletion=complete_feeds
    ),
]
Feeds = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FEED",
        help="SOURCE/NAME, or NAME where only one source has it. Default: all feeds.",
        autocompletion=complete_feeds,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def operator() -> str:
    """``USER on HOST``, as far as the system knows them."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "an operator"
    return f"{user} on {socket.gethostname()}"


def text_of(argument: str) -> str:
    """An argument as text that can be stored: bytes that are no UTF-8 become question marks."""
    return argument.encode(errors="replace").decode()


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


def named_feeds(settings: Settings, names: Sequence[str] | None) -> tuple[str, ...]:
    """The ids of these feeds, in the order named, each once; of all feeds if none is named.

    Raises:
        ConfigurationError: a name means no feed, or several.
    """
    if not names:
        return settings.feed_ids
    pairs = [settings.find_feed(name) for name in names]
    return tuple(dict.fromkeys(source.feed_id(feed) for source, feed in pairs))


def confirm(question: str, otherwise: str) -> bool:
    """Ask on the terminal.

    Args:
        question: what is to be done; a yes or no answers it.
        otherwise: the error where there is no terminal.

    Raises:
        ConfigurationError: standard input ended.
    """
    from poller.errors import ConfigurationError

    try:
        return typer.confirm(question, err=True)
    except typer.Abort as aborted:
        if not isinstance(aborted.__context__, EOFError):
            raise  # Ctrl-C at the prompt
        typer.echo(err=True)  # ends the line of the question
        raise ConfigurationError(otherwise) from None
