"""How the program ends: every error becomes one paragraph on standard error and an exit code.

A traceback is shown with ``--log-level debug`` only.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Final

from poller.cli.output import ReaderGone
from poller.errors import ConfigurationError, PollerError

DONE: Final = 0
FAILED: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130


def ended(run: Callable[[], int]) -> int:
    """Run it; the exit code."""
    try:
        _arm_failpoint()
        code = run()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ReaderGone, BrokenPipeError):
        _drop_output()
        return DONE
    except Exception as error:  # noqa: BLE001 -- the program ends here, and the operator is owed a sentence
        return _told(error)
    return code


def end_at_once_when_told() -> None:
    """Let SIGTERM, SIGINT and SIGHUP end the process with code 0 until the daemon's loop takes them over.

    Nothing has begun before that, so there is nothing to put in order; a second of imports would else end by the signal
    itself, which supervisors count as a failure.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(DONE))


def _arm_failpoint() -> None:
    spec = os.environ.get("POLLER_FAILPOINT")
    if spec:
        from poller.failpoints import arm  # noqa: PLC0415 -- tests alone need it

        arm(spec)


def _told(error: Exception) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # nothing was asked: what --help prints, as it is
        sys.stderr.write(f"{error}\n")
        return WRONG
    code, text = _judged(error)
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        traceback.print_exception(error, file=sys.stderr)
    if text:
        sys.stderr.write(f"poller: {text}\n")
    return code


def _judged(error: Exception) -> tuple[int, str]:
    if isinstance(error, ConfigurationError):
        return WRONG, str(error)
    if isinstance(error, PollerError):
        return FAILED, str(error)
    usage = getattr(error, "format_message", None)  # what typer raises has no public base of one name in all versions
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
    text = text.rstrip().removesuffix(".")
    return f"{text}{'' if text.endswith('?') else '.'} See {path} --help"


def _drop_output() -> None:
    """Whoever read our output has left; what is still buffered must not fail once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
