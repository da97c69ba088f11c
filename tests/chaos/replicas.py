"""The processes of the program in a scene: which run, which poll, which were ended by a fault or by themselves."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from poller.lifecycle import ended
from tests.harness.waiting import patience

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from random import Random

    from tests.harness.processes import Daemon

_LATELY = timedelta(seconds=1.5)
_LOOKED_AT = 60


class Starts(Protocol):
    """Starts a process; see :func:`tests.harness.processes.daemon`."""

    def __call__(
        self, command: Sequence[str], *, failpoint: str, environ: Mapping[str, str], checkout: Path | None
    ) -> AbstractAsyncContextManager[Daemon]: ...


class Replicas:
    """All processes of a chapter, including ended ones.

    Attributes:
        running: those that should run now.
        started: all of them.
        checkout: the version of the program that is started from now on; None: this one.
    """

    def __init__(
        self,
        start: Starts,
        commands: Sequence[Sequence[str]],
        environ: Mapping[str, str],
        checkout: Path | None = None,
    ) -> None:
        self.checkout = checkout
        self.running: list[Daemon] = []
        self.started: list[Daemon] = []
        self._start = start
        self._commands = commands
        self._environ = environ
        self._does: dict[int, Sequence[str]] = {}
        self._stacks: dict[int, AsyncExitStack] = {}

    async def open(self) -> None:
        """Start one process for each command."""
        for command in self._commands:
            await self.add(command)

    async def at_work(self) -> None:
        """Return when one of them has logged a round."""
        async with patience("a first round"):
            told = [asyncio.create_task(one.until(of_round, "a round")) for one in self.started]
            try:
                await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await ended(*told)

    async def add(self, command: Sequence[str] = (), *, failpoint: str = "", **environ: str) -> Daemon:
        """Start another process, with the first command unless one is given."""
        does, stack = command or self._commands[0], AsyncExitStack()
        added = await stack.enter_async_context(
            self._start(does, failpoint=failpoint, environ={**self._environ, **environ}, checkout=self.checkout)
        )
        self._stacks[id(added)], self._does[id(added)] = stack, does
        self.running.append(added)
        self.started.append(added)
        return added

    async def replace(self, gone: Daemon, **environ: str) -> Daemon:
        """Start a process in place of an ended one."""
        self.running.remove(gone)
        return await self.add(self._does[id(gone)], **environ)

    def choose(self, rng: Random) -> Daemon:
        """One of the processes that poll, or any one if none does."""
        at_work = [one for one in self.running if _at_work(one)]
        return rng.choice(at_work or self.running)

    def others(self, than: Daemon) -> list[Daemon]:
        return [one for one in self.running if one is not than]

    def strayed(self) -> list[str]:
        """The processes that should run and have exited, as remarks."""
        return [f"a process exited by itself with {one.code}:\n{one}" for one in self.running if one.code is not None]

    def lines(self, text: str) -> int:
        """How many lines of all logs have this text in their error."""
        return sum(text in (line.get("error") or "") for one in self.started for line in one.lines)

    def keep_logs(self, directory: Path) -> None:
        """Write the log of each process."""
        for number, one in enumerate(self.started, start=1):
            text = "\n".join(json.dumps(line) for line in one.lines)
            (directory / f"process-{number}-{one.pid}.log").write_text(text + f"\n-- exited with {one.code}\n")

    async def close(self) -> None:
        for stack in self._stacks.values():
            await stack.aclose()


def of_round(line: Mapping[str, Any]) -> bool:
    """Whether a line of a log is about a round that was not skipped."""
    return line.get("event") == "round" and line["mode"] != "skipped"


def _at_work(one: Daemon) -> bool:
    """Whether the process had a round lately; rounds without the lease are not in its log."""
    rounds = (line for line in reversed(one.lines[-_LOOKED_AT:]) if line.get("event") == "round" and "at" in line)
    latest = next(rounds, None)
    return latest is not None and datetime.now(UTC) - datetime.fromisoformat(latest["at"]) < _LATELY
