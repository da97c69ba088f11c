"""A newcomer's two paths, walked as the README has them and timed.

``python -m tests.newcomer`` clones this checkout twice, runs in one what stands under "Try it", up to the first event
on the screen, and in the other what leads to the first webhook, and writes the times into tests/README.md.
Packages are fetched anew: nothing that pip has kept counts. ``tests/test_newcomer.py`` walks the same without the
installation.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.documents import ROOT, block, write_table
from tests.harness.waiting import patience
from tests.programs import bare_environ

_ENDED: Final = re.compile(r"<ended with (\d+)>\n")
_INSTALLATION: Final = 300.0
_ENDLESS: Final = ("poller sandbox", "receiver.py", "poller run")  # each goes on in a terminal of its own
_PORTS: Final = ("8090", "8000", "8080")  # of the sandbox, the receiver and the page


@dataclass(frozen=True, slots=True)
class Route:
    """What a newcomer pastes, and why.

    Attributes:
        script: code of the README.
        goal: what is then seen on the screen.
        name: what to call that.
        ports: on 127.0.0.1, that have to be free when it begins.
    """

    script: str
    goal: re.Pattern[str]
    name: str
    ports: tuple[str, ...] = ()

    def commands(self) -> list[str]:
        """Each with the lines that belong to it."""
        lines = iter(self.script.splitlines())
        found = []
        for line in lines:
            command = [line]
            if (here := re.search(r"<<'(\w+)'$", line)) is not None:
                while command[-1] != here[1]:
                    command.append(next(lines))
            found.append("\n".join(command))
        return found

    def cells(self) -> list[str]:
        """The commands in Markdown, and at the last one what comes of it."""
        *before, last = map(_cell, self.commands())
        return [*before, f"{last}: **{self.name}**"]


def to_the_first_event() -> Route:
    """As ``poller demo`` shows it."""
    shown = re.compile(r"^\d\d:\d\d:\d\d .* (created|modified) ", re.MULTILINE)
    return Route(block("demo"), shown, "the first event on the screen")


def to_the_first_webhook() -> Route:
    """As the README's receiver shows it, when it has verified the signature."""
    shown = re.compile(r"\.employmentUnavailability\.created\.v1 \S+ 1$", re.MULTILINE)
    install, *_ = to_the_first_event().commands()
    return Route(f"{install}\n{block('webhook')}", shown, "the first webhook", _PORTS)


def _cell(command: str) -> str:
    first, *more = command.partition(" #")[0].strip().splitlines()
    return f"`{first.replace('|', chr(92) + '|')}`{' …' if more else ''}"


class Shell:
    """A bash that is told one command after the other, as a terminal is."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.screen = ""

    async def run(self, command: str) -> None:
        """Its end, or at ``&`` its beginning; fails where it fails."""
        assert self._process.stdin is not None
        seen = len(self.screen)
        self._process.stdin.write(f'{command}\necho "<ended with $?>"\n'.encode())
        await self.sees(_ENDED, since=seen)
        code = _ENDED.search(self.screen, seen)
        assert code is not None
        assert code[1] == "0", f"{command}\n{self.screen}"

    async def sees(self, pattern: re.Pattern[str], *, since: int = 0) -> None:
        """Until it is on the screen, its line ended."""
        assert self._process.stdout is not None
        async with patience(f"{pattern.pattern} on the screen", _INSTALLATION):
            while pattern.search(self.screen, since) is None:
                line = await self._process.stdout.readline()
                assert line, f"the shell has ended\n{self.screen}"
                self.screen += line.decode()


@asynccontextmanager
async def shell(directory: str | Path, environ: Mapping[str, str]) -> AsyncIterator[Shell]:
    """A shell in this directory; with all that it has started it is told to end after the block, and waited for."""
    process = await asyncio.create_subprocess_exec(
        "bash",
        cwd=directory,
        env={**environ, "PYTHONUNBUFFERED": "1"},  # as if the screen were one
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield Shell(process)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        async with patience("the end of what the shell has started"):
            await process.communicate()  # until the last of them has closed the screen


async def walk(terminal: Shell, route: Route) -> list[float]:
    """Run the commands, the last of them until the goal is on the screen.

    Returns:
        When each had ended, in seconds since the beginning.

    Raises:
        AssertionError: a command failed, or somebody else listens where one of them is to.
    """
    assert not any(map(_listens, route.ports)), "a port of the script is taken"
    begun = time.monotonic()
    ended = []
    *before, last = route.commands()
    for command in before:
        await terminal.run(f"{command} &" if any(part in command for part in _ENDLESS) else command)
        ended.append(time.monotonic() - begun)
    await terminal.run(f"{last} &")
    await terminal.sees(route.goal)
    return [*ended, time.monotonic() - begun]


def _listens(port: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(port))).close()
    except ConnectionError:
        return False
    return True


def table(walked: Mapping[Route, list[float]]) -> str:
    """The table of when each command had ended."""
    ends = (pair for route, ended in walked.items() for pair in zip(route.cells(), ended, strict=True))
    rows = [f"| {cell} | {at:.1f} s |" for cell, at in ends]
    return "\n".join(["| from a bare checkout | ended after |", "|---|---|", *rows])


async def _timed(route: Route) -> list[float]:
    """In a checkout of its own."""
    with TemporaryDirectory() as directory:
        clone = await asyncio.create_subprocess_exec("git", "clone", "--quiet", ROOT, directory)
        assert await clone.wait() == 0
        async with shell(directory, bare_environ() | {"PIP_NO_CACHE_DIR": "1"}) as terminal:
            return await walk(terminal, route)


async def main() -> None:
    """Walk both and write the table."""
    walked = {route: await _timed(route) for route in (to_the_first_event(), to_the_first_webhook())}
    write_table("newcomer", found := table(walked))
    sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    asyncio.run(main())
