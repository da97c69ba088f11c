"""Commands of the program, each in a process of its own that need not import the program any more.

Starting Python and importing the program costs more than most of what a command does. ``python -m tests.cli.commands``
imports all of it once; then each line on standard input is a command in JSON, for which it forks, and each line on
standard output says how that ended: ``[code, out, err]``. What a test proves of the start itself, or of what runs on,
takes :func:`tests.cli.conftest.started`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

import poller
from poller.cli import main
from poller.telemetry import block_opentelemetry
from tests.harness.waiting import patience

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

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


class Commands:
    """The process that forks, seen from the tests; it is started with the first command."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    async def run(self, arguments: tuple[str, ...], *, cwd: Path, extra: dict[str, str]) -> Ended:
        """One command, to its end."""
        order = json.dumps({"arguments": arguments, "cwd": str(cwd), "environ": environment(extra)})
        try:
            async with patience(f"poller {arguments}", _LIMIT):
                return Ended(*await asyncio.to_thread(self._answer, order))
        except BaseException:
            self.close()  # and what it forked
            raise

    def close(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def _answer(self, order: str) -> Any:
        if self._process is None:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "tests.cli.commands"),
                cwd=_ROOT,
                env=environment({}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def commands() -> Iterator[Commands]:
    """The process for the time of the block."""
    forking = Commands()
    try:
        yield forking
    finally:
        forking.close()


class Program:
    """The program in one environment."""

    def __init__(self, forking: Commands, extra: dict[str, str]) -> None:
        self._forking = forking
        self._extra = extra

    async def run(self, *arguments: str) -> Ended:
        """One command, to its end."""
        return await self._forking.run(arguments, cwd=_ROOT, extra=self._extra)


@asynccontextmanager
async def commands_in(**extra: str) -> AsyncIterator[Program]:
    """The program in this environment, for the time of the block."""
    with commands() as forking:
        yield Program(forking, extra)


def _serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if not child:
                _become(order, out, err)
                _run()
            _, status = os.waitpid(child, 0)
            said = [file.seek(0) or file.read().decode() for file in (out, err)]
        sys.stdout.write(json.dumps([os.waitstatus_to_exitcode(status), *said]) + "\n")
        sys.stdout.flush()


def _run() -> NoReturn:
    """The command, and the end of the process, without what Python does then for each module and object."""
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(end.code or 0))
    os._exit(1)


def _become(order: dict[str, Any], out: IO[bytes], err: IO[bytes]) -> None:
    """Be as a process that was started for this command."""
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environ"])
    tempfile.tempdir = None
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 -- for its number alone
        os.dup2(nothing.fileno(), 0)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 -- the old one has read ahead
    sys.argv = ["poller", *order["arguments"]]


def _import_all() -> None:
    block_opentelemetry()
    for module in pkgutil.walk_packages(poller.__path__, "poller."):
        if module.name != "poller.__main__":
            with suppress(ImportError):  # of what is optional and not installed
                import_module(module.name)


if __name__ == "__main__":
    _import_all()
    gc.freeze()  # the forked ones leave alone what is there already
    _serve()
