"""Lines on a terminal, here a real one of 40 columns."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LINE = "0123456789" * 9 + "介"


def on_terminal(program: str) -> str:
    """What a program writes to a terminal."""
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        try:
            environ = {"COLUMNS": "40", "TERM": "xterm", "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
            subprocess.run([sys.executable, "-c", program], stdout=theirs, env=environ, check=True)
            written = b""
            while not written.endswith(b"\n"):
                written += terminal.read(4096)
            return written.decode()
        finally:
            os.close(theirs)


@pytest.mark.parametrize(("cut", "shown"), [(True, LINE[:39] + "…"), (False, LINE)])
def test_a_line_that_is_too_long(cut: bool, shown: str) -> None:
    """It is cut at the terminal's width where that is asked for; else the terminal wraps it, and all of it is there."""
    program = f"from poller.cli.output import say_styled; say_styled([({LINE!r}, '')], cut={cut})"
    assert on_terminal(program) == shown + "\r\n"


def test_who_reads_no_more_is_not_complained_to() -> None:
    """Law: a pipe whose reader has left, as with ``| head``, ends the program in order and without a word."""
    theirs, ours = os.pipe()
    os.close(theirs)
    program = "from poller.cli.ending import ended; from poller.cli.output import say; import sys\n"
    program += "sys.exit(ended(lambda: say('line') or 0))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=ours,
            stderr=subprocess.PIPE,
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
    finally:
        os.close(ours)
    assert (done.returncode, done.stderr) == (0, b"")


def test_each_line_is_there_when_it_is_written() -> None:
    """Law: whoever reads a pipe has a line before the program goes on to the next, and not when it ends."""
    program = "from poller.cli.output import say; import sys\nsay('line'); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stdout.readline() == b"line\n"
        running.stdin.close()
