"""Programs of the tests, each in a process that ends with the block."""

from __future__ import annotations

import os
import subprocess
import sys
from asyncio import StreamReader
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from tests.harness.forks import forks_for

_ROOT = Path(__file__).parent.parent


def bare_environ() -> dict[str, str]:
    """The environment of these tests without variables for poller."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("POLLER_", "REDIS_"))}


@contextmanager
def program(module: str, *arguments: object) -> Iterator[str]:
    """The first line that ``python -m MODULE ARGUMENTS`` writes, such as its URL; killed after the block.

    In tests its ``main`` runs in a forked process: see :mod:`tests.harness.forks`.
    """
    words = [str(argument) for argument in arguments]
    if forks := forks_for({}):
        with forks.running(module, words, cwd=_ROOT) as said:
            yield said.readline().strip()
        return
    command = [sys.executable, "-m", module, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
    try:
        assert process.stdout is not None
        with process.stdout as told:
            yield told.readline().strip()
    finally:
        process.kill()
        process.wait()


class Running(Protocol):
    """A started process: a child, or a process forked for this one."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    @property
    def stdout(self) -> StreamReader | None: ...
    @property
    def stderr(self) -> StreamReader | None: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...
    async def wait(self) -> int: ...
    async def communicate(self) -> tuple[bytes, bytes]: ...


P = TypeVar("P", bound=Running)


@asynccontextmanager
async def for_the_block(process: P) -> AsyncIterator[P]:
    """Kill the process after the block if it still runs."""
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
