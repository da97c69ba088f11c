"""The application: all commands, and the exit codes.

=========  ==========================================================================
exit code  meaning
=========  ==========================================================================
0          done; also a daemon that a signal stopped, and output whose reader left
1          the command ran and something failed
2          the usage or the configuration is wrong
130        interrupted
=========  ==========================================================================

**Invariants**

- Every error becomes one paragraph on standard error; a traceback only with ``--log-level debug``.
- Standard streams that are closed at the start (``<&-``) lead to ``/dev/null``. Otherwise the next file or socket
  would take their number, and output would be written into it.
- A character that the encoding of the output lacks is escaped.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer
import typer.main
from typer.core import TyperGroup

from poller.cli.options import CommandLine, Config, Format, GlobalOptions, Verbosity
from poller.cli.output import OutputClosed, OutputFailed, writing
from poller.errors import ConfigurationError, PollerError, StoreUnavailable
from poller.telemetry import block_opentelemetry

DONE: Final = 0
FAILED: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130

GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "Try it": {"demo": "demo:app", "sandbox": "tools:app", "receive": "receive:app"},
    "Run it": {"check": "run:app", "once": "run:app", "run": "run:app"},
    "Watch it": {
        "status": "status:app",
        "tail": "tail:app",
        "records": "records:app",
        "dead-letters": "dead_letters:app",
    },
    "Change it": {
        "pause": "feeds:app",
        "resume": "feeds:app",
        "resync": "feeds:app",
        "release": "feeds:app",
        "subscriptions": "subscriptions:app",
        "keys": "tools:keys_app",
        "backfill": "backfill:app",
        "replay": "replay:app",
        "feeds": "feeds:feeds_app",
    },
    "Make documents": {"config": "tools:config_app", "schema": "tools:app"},
}
"""The commands of ``poller --help``, in the order in which a newcomer needs them, each with its module and object."""


class CommandsOnDemand(Mapping[str, Any]):
    """The commands of :data:`GROUPS`; each is imported when it is looked up, since a daemon needs no other one."""

    def __init__(self) -> None:
        self._places = {name: place for commands in GROUPS.values() for name, place in commands.items()}

    def __getitem__(self, name: str) -> Any:
        found = _group(self._places[name])
        return found if found.name == name else found.commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@cache
def _group(place: str) -> TyperGroup:
    module, _, name = place.partition(":")
    return typer.main.get_group(getattr(import_module(f"poller.cli.{module}"), name))


class GroupedCommands(TyperGroup):
    """The commands under the headings of :data:`GROUPS`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Mapping[str, Any] = CommandsOnDemand()  # type: ignore[assignment]  # read only

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 -- click passes it
        """Write a section for each heading."""
        width = max(map(len, self.commands))
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                helps = ((name, self.commands[name].get_short_help_str(formatter.width - 6 - width)) for name in names)
                formatter.write_dl([(name.ljust(width), text) for name, text in helps])


app = CommandLine(
    cls=GroupedCommands,
    help="Turns a polled API into CloudEvents on Redis streams, exactly once, and webhooks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:  # noqa: FBT001 -- typer passes the value alone
    if value:
        from poller import __version__

        typer.echo(f"poller {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    context: typer.Context,
    *,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
    version: Annotated[  # noqa: ARG001 -- its callback does it
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    context.obj = GlobalOptions(context, config, log_format, log_level)


def program() -> int:
    """The program with ``sys.argv``; its exit code."""
    _open_standard_streams()
    _escape_what_cannot_be_encoded()
    block_opentelemetry()
    return exit_code(run_app)


def run_app(arguments: Sequence[str] | None = None) -> int:
    """One command line, by default ``sys.argv``; its exit code, unless an exception says more."""
    code = app(arguments, prog_name="poller", standalone_mode=False)
    return code if isinstance(code, int) else DONE


def exit_code(run: Callable[[], int]) -> int:
    """The exit code of what runs; errors are reported on standard error."""
    try:
        _arm_failpoint()
        code = run()
        with writing():
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (OutputClosed, BrokenPipeError):
        _drop_output()
        return DONE
    except OutputFailed as error:
        _drop_output()
        return _reported(error)
    except Exception as error:  # noqa: BLE001 -- the program ends here, with a sentence
        return _reported(error)
    return code


def _open_standard_streams() -> None:
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _escape_what_cannot_be_encoded() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _arm_failpoint() -> None:
    spec = os.environ.get("POLLER_FAILPOINT")
    if spec:
        from poller.failpoints import arm

        arm(spec)


def _reported(error: Exception) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # its text is the help page
        sys.stderr.write(f"{error}\n")
        return WRONG
    code, text = _code_and_text(error)
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        traceback.print_exception(error, file=sys.stderr)
    if text:
        sys.stderr.write(f"poller: {text}\n")
    return code


def _code_and_text(error: Exception) -> tuple[int, str]:
    if isinstance(error, ConfigurationError):
        return WRONG, str(error)
    if isinstance(error, PollerError):
        return FAILED, f"{error}; `poller check` says more" if isinstance(error, StoreUnavailable) else str(error)
    usage = getattr(error, "format_message", None)  # typer's usage errors have no public base in all versions
    if usage is not None:
        return WRONG, _usage(error, usage())
    if type(error).__name__ == "Abort":
        return INTERRUPTED, ""
    if isinstance(error, OSError):
        return FAILED, str(error)
    return FAILED, f"unexpected {type(error).__name__}: {error} (--log-level debug shows where)"


def _usage(error: Exception, text: str) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "poller"
    text = text.rstrip().removesuffix(".").replace(": Value error, ", ": ")  # the words of a library
    if type(error).__name__ == "NoSuchOption" and getattr(error, "option_name", "") in _GLOBAL:
        text += f" after {path.rpartition(' ')[2]}; it goes before that, or after the command that follows"
    return f"{text}{'' if text.endswith('?') else '.'} See {path} --help"


_GLOBAL: Final = ("-c", "--config", "--log-format", "--log-level")


def _drop_output() -> None:
    """Discard what is still buffered, because writing it would fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
