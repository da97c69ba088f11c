"""Commands of the program, each in a process of its own that is forked: see :mod:`tests.harness.forks`.

What a test proves of the start itself takes the fixture ``started_poller``.
"""

from __future__ import annotations

import os
import tempfile
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
    """One command, to its end."""
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


class Program:
    """The program in one environment."""

    def __init__(self, **extra: str) -> None:
        self._extra = extra

    async def run(self, *arguments: str) -> Ended:
        """One command, to its end."""
        return await ran(arguments, cwd=_ROOT, extra=self._extra)
