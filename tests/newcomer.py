"""Runs and times the two introductions of the README.

``python -m tests.newcomer`` clones this checkout twice, runs in one clone the commands under "Try it" up to the first
event on the screen, and in the other those up to the first webhook, and writes the times into tests/README.md. Packages
are downloaded without pip's cache. ``tests/test_newcomer.py`` does the same without the installation.
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
_ENDLESS: Final = ("poller sandbox", "poller receive", "poller run")  # each runs on in a terminal of its own
_PORTS: Final = ("8090", "8000", "8080")  # of the sandbox, the receiver and the page


@dataclass(frozen=True, slots=True)
class Route:
    """The commands that a newcomer pastes, and their goal.

    Attributes:
        script: code of the README.
        goal: the output that follows.
        name: the name of the goal.
        ports: the ports on 127.0.0.1 that must be free at the start.
    """

    script: str
    goal: re.Pattern[str]
    name: str
    ports: tuple[str, ...] = ()

    def commands(self) -> list[str]:
        """The commands, each with its here-document."""
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
        """The commands in Markdown, the last one with the goal."""
        *before, last = map(_cell, self.commands())
        return [*before, f"{last}: **{self.name}**"]


def to_the_first_event() -> Route:
    """The route to the first event, as ``poller demo`` shows it."""
    shown = re.compile(r"^\d\d:\d\d:\d\d .* (created|modified) ", re.MULTILINE)
    return Route(block("demo"), shown, "the first event on the screen")


def to_the_first_webhook() -> Route:
    """The route to the first webhook, whose signature ``poller receive`` has verified."""
    shown = re.compile(r"^\d\d:\d\d:\d\d\.\d{3}  employmentUnavailabilities +created +\S+ +r1 ", re.MULTILINE)
    install, *_ = to_the_first_event().commands()
    return Route(f"{install}\n{block('webhook')}", shown, "the first webhook", _PORTS)


def _cell(command: str) -> str:
    first, *more = command.partition(" #")[0].strip().splitlines()
    return f"`{first.replace('|', chr(92) + '|')}`{' …' if more else ''}"


class Shell:
    """A bash that gets one command after the other, like a terminal."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.screen = ""

    async def run(self, command: str) -> None:
        """Run a command to its end, or start it with ``&``; fails if the command fails."""
        assert self._process.stdin is not None
        seen = len(self.screen)
        self._process.stdin.write(f'{command}\necho "<ended with $?>"\n'.encode())
        await self.sees(_ENDED, since=seen)
        code = _ENDED.search(self.screen, seen)
        assert code is not None
        assert code[1] == "0", f"{command}\n{self.screen}"

    async def sees(self, pattern: re.Pattern[str], *, since: int = 0) -> None:
        """Wait until a line with this pattern is on the screen."""
        assert self._process.stdout is not None
        async with patience(f"{pattern.pattern} on the screen", _INSTALLATION):
            while pattern.search(self.screen, since) is None:
                line = await self._process.stdout.readline()
                assert line, f"the shell has ended\n{self.screen}"
                self.screen += line.decode()


@asynccontextmanager
async def shell(directory: str | Path, environ: Mapping[str, str]) -> AsyncIterator[Shell]:
    """A shell in this directory; after the block it and everything it has started is terminated."""
    process = await asyncio.create_subprocess_exec(
        "bash",
        cwd=directory,
        env={**environ, "PYTHONUNBUFFERED": "1"},  # so that output appears as on a terminal
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield Shell(process)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        async with patience("the end of the shell's processes"):
            await process.communicate()  # until the last of them has closed its output


async def walk(terminal: Shell, route: Route) -> list[float]:
    """Run the commands, the last of them until the goal is on the screen.

    Returns:
        When each had ended, in seconds since the start.

    Raises:
        AssertionError: a command failed, or a port of the route is in use.
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
    """The table of the times at which the commands had ended."""
    ends = (pair for route, ended in walked.items() for pair in zip(route.cells(), ended, strict=True))
    rows = [f"| {cell} | {at:.1f} s |" for cell, at in ends]
    return "\n".join(["| from a bare checkout | ended after |", "|---|---|", *rows])


async def _timed(route: Route) -> list[float]:
    """Run the route in a checkout of its own; the times."""
    with TemporaryDirectory() as directory:
        clone = await asyncio.create_subprocess_exec("git", "clone", "--quiet", ROOT, directory)
        assert await clone.wait() == 0
        async with shell(directory, bare_environ() | {"PIP_NO_CACHE_DIR": "1"}) as terminal:
            return await walk(terminal, route)


async def main() -> None:
    """Run both routes and write the table."""
    walked = {route: await _timed(route) for route in (to_the_first_event(), to_the_first_webhook())}
    write_table("newcomer", found := table(walked))
    sys.stdout.write(f"{found}\n")


if __name__ == "__main__":
    asyncio.run(main())
