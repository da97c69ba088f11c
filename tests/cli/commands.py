"""Many commands in one process of their own: starting the program costs more than most of what it does.

``python -m tests.cli.commands``: each line on standard input is a list of arguments in JSON, each on standard output
how that ended: ``[code, out, err]``.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from poller.cli.app import app
from poller.cli.ending import ended
from tests.cli.conftest import Ended, environment
from tests.harness.waiting import patience

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_ROOT = Path(__file__).parents[2]


class Commands:
    """The process, seen from a test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, *arguments: str) -> Ended:
        """One command, to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments).encode() + b"\n")
        async with patience(f"poller {arguments}"):
            return Ended(*json.loads(await self._process.stdout.readline()))


@asynccontextmanager
async def commands_in(**extra: str) -> AsyncIterator[Commands]:
    """The process for the time of the block, with this environment."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.cli.commands"),
        cwd=_ROOT,
        env=environment(extra),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**22,  # a line is all that a command said
    )
    try:
        yield Commands(process)
    finally:
        process.kill()
        await process.communicate()


def _run(arguments: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = ended(lambda: app(arguments, prog_name="poller", standalone_mode=False) or 0)
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    for order in sys.stdin:
        sys.stdout.write(json.dumps(_run(json.loads(order))) + "\n")
        sys.stdout.flush()
