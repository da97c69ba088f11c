"""The command line: what a person or a supervisor asks, turned into calls of the service, and how it ended.

Law: nothing is decided here that outlives the command. Each command's module reads its arguments, calls one function of
the service (or the sandbox), and shows what came of it. Everything but this page is imported when it is needed, so that
``--help`` and ``--version`` answer at once.

=========  ==========================================================================
exit code  means
=========  ==========================================================================
0          done; also a daemon that was told to stop, and a reader of ours that left
1          it ran and something failed
2          usage or configuration is wrong
130        interrupted
=========  ==========================================================================
"""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """The program: reads ``sys.argv``, exits with one of the codes above."""
    try:
        _open_standard_streams()
        _say_all_that_can_be_said()
        from poller.cli.ending import ended  # noqa: PLC0415 -- late, see above

        code = ended(_run)
    except KeyboardInterrupt:  # while modules are imported, before anything has begun
        code = 130
    sys.exit(code)


def _open_standard_streams() -> None:
    """Whoever starts us without some of them (``<&-``) gets /dev/null there.

    Else the next file or socket would take their number, and what is meant for them would be written into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _say_all_that_can_be_said() -> None:
    """A terminal or pipe whose encoding lacks a character gets it escaped; to end for it would say nothing at all."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run() -> int:
    from poller.telemetry.tracing import block_opentelemetry  # noqa: PLC0415 -- late, see above

    block_opentelemetry()
    from poller.cli.app import app  # noqa: PLC0415 -- late, see above

    code = app(prog_name="poller", standalone_mode=False)
    return code if isinstance(code, int) else 0
