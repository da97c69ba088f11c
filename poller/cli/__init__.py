"""The command line: ``poller``, one module for each group of commands.

Start at :mod:`poller.cli.app`, which joins them; :mod:`poller.cli.options` says how a command is declared.
Every module imports what is slow in the bodies of its functions, so that ``--help`` answers quickly.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_COLLECT_AFTER: Final = 50_000  # objects; at Python's 700 the collector takes a seventh of all imports
DAEMONS: Final = {"demo": "", "run": "", "sandbox": "", "status": "--watch", "tail": ""}
"""The commands that a signal ends with code 0 from the first moment; a command with an option here only with that."""


def main() -> None:
    """Run the program with ``sys.argv`` and exit; for the codes see :mod:`poller.cli.app`."""
    gc.disable()  # until a loop runs: what is imported before is no garbage
    gc.set_threshold(_COLLECT_AFTER)
    if _is_daemon(sys.argv[1:]):
        _exit_on_signals()
    try:
        from poller.cli.app import program

        code = program()
    except KeyboardInterrupt:  # while modules are imported
        code = 130
    sys.exit(code)


def _exit_on_signals() -> None:
    """End the process with code 0 at SIGTERM, SIGINT and SIGHUP until the daemon's loop handles them.

    Nothing has started before that, so nothing needs to be cleaned up. Without this, a signal during a second of
    imports would end the process by itself, which supervisors count as a failure. As later, only SIGHUP stays ignored
    if it is, as under ``nohup``; SIGINT is handled though a script that starts this in the background has it ignored.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # who sees SIGTERM handled sees all handled
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(0))


def _is_daemon(arguments: Sequence[str]) -> bool:
    """Whether the command is one of :data:`DAEMONS`, said before the modules that know the commands are imported."""
    before = ""
    for at, argument in enumerate(arguments):
        is_value = before == "-c" or (before.startswith("--") and "=" not in before)  # of a global option
        if not argument.startswith("-") and not is_value:
            option = DAEMONS.get(argument)
            return option == "" or option in [one.partition("=")[0] for one in arguments[at + 1 :]]
        before = argument
    return False
