"""Commands of the program, each in a forked process of its own: see :mod:`tests.harness.forks`.

A test of the start itself takes the fixture ``started_poller``.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import tempfile
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.harness.forks import forks_for
from tests.harness.waiting import patience

_ROOT = Path(__file__).parents[2]
_LIMIT = 30.0  # seconds; a command that takes longer hangs


class Ended(NamedTuple):
    """How a program ended."""

    code: int
    out: str
    err: str


def environment(extra: dict[str, str]) -> dict[str, str]:
    """The test's own environment without anything that configures the program."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG", "PYTHONPATH") if name in os.environ}
    return {**kept, "PYTHONUTF8": "1", **extra}


async def ran(arguments: tuple[str, ...], *, cwd: Path, extra: dict[str, str]) -> Ended:
    """Run one command to its end."""
    forks = forks_for({})
    assert forks is not None, "commands are for tests"
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = forks.start_with((out.fileno(), err.fileno()), arguments, cwd=cwd, environ=environment(extra))
        try:
            async with patience(f"poller {arguments}", _LIMIT):
                code = await process.wait()
        finally:
            process.kill()
            await process.wait()
        out.seek(0)
        err.seek(0)
        return Ended(code, out.read().decode(), err.read().decode())


def called_at(arguments: Sequence[str], *, cwd: Path, extra: dict[str, str], stdin: int | None = None) -> Ended:
    """Run one command to its end, without an event loop; ``stdin``: a descriptor, such as a terminal's."""
    forks = forks_for({})
    assert forks is not None, "commands are for tests"
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        outputs = (out.fileno(), err.fileno())
        code = forks.ran(outputs, arguments, cwd=cwd, environ=environment(extra), stdin=stdin)()
        out.seek(0)
        err.seek(0)
        return Ended(code, out.read().decode(), err.read().decode())


def on_terminal(arguments: Sequence[str], extra: dict[str, str], columns: int) -> list[str]:
    """The lines that the program writes to a terminal of this width; the program has to succeed."""
    forks = forks_for({})
    assert forks is not None, "commands are for tests"
    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        ended = forks.ran((side, side), arguments, cwd=_ROOT, environ=environment(extra), stdin=side)
    finally:
        os.close(side)
    written = b""
    while chunk := _read(terminal):
        written += chunk
    os.close(terminal)
    assert ended() == 0, written
    return re.sub(r"\x1b\[[\d;]*m", "", written.decode()).splitlines()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so where the other side is closed
        return b""


class Program:
    """The program in one environment."""

    def __init__(self, **extra: str) -> None:
        self._extra = extra

    async def run(self, *arguments: str) -> Ended:
        """Run one command to its end."""
        return await ran(arguments, cwd=_ROOT, extra=self._extra)
