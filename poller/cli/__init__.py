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

import sys


def main() -> None:
    """The program: reads ``sys.argv``, exits with one of the codes above."""
    from poller.cli.ending import ended  # noqa: PLC0415 -- late, see above

    sys.exit(ended(_run))


def _run() -> int:
    from poller.cli.app import app  # noqa: PLC0415 -- late, see above

    code = app(prog_name="poller", standalone_mode=False)
    return code if isinstance(code, int) else 0
