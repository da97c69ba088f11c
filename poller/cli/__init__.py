"""The command line: ``poller``, one module for each group of commands.

Start at :mod:`poller.cli.app`, which joins them; :mod:`poller.cli.options` says how a command is declared.
Every module imports what is slow in the bodies of its functions, so that ``--help`` answers quickly.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program with ``sys.argv`` and exit; for the codes see :mod:`poller.cli.app`."""
    try:
        from poller.cli.app import program

        code = program()
    except KeyboardInterrupt:  # while modules are imported
        code = 130
    sys.exit(code)
