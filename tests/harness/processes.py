"""The program as users start it: ``python -m poller …`` in a process of its own, with its log parsed line by line."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness.forks import PROGRAM, forks_for
from tests.harness.waiting import patience
from tests.programs import Running, bare_environ, for_the_block

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    Line = dict[str, Any]

_ROOT = Path(__file__).parents[2]
_FORKED = {"poller": PROGRAM} | {name: name for name in ("tests.harness.naive", "tests.harness.naive_dispatcher")}
SANDBOX_TOKEN = "sandbox"  # noqa: S105 -- public on purpose


class Daemon:
    """A running daemon.

    Attributes:
        lines: its log so far, one object for each line; a line that is not JSON is under ``text``.
        gone: set once it has exited; :attr:`code` says how.
    """

    def __init__(self, process: Running) -> None:
        self.lines: list[Line] = []
        self.gone = asyncio.Event()
        self._process = process
        self._more = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    @property
    def code(self) -> int | None:
        """The exit code, or minus the number of the signal that killed it; None while it runs."""
        return self._process.returncode

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill it, and wait until it has ended."""
        if self.code is None:
            self.send(signal.SIGKILL)
        await self._reading

    async def left(self) -> int:
        """Wait until it exits by itself; its exit code."""
        async with patience("the daemon to exit"):
            await self.gone.wait()
        assert self.code is not None
        return self.code

    async def until(self, told: Callable[[Line], bool], what: str, *, since: int = 0) -> Line:
        """The first line of the log, from index ``since`` on, for which ``told`` is true; waits for it."""
        try:
            async with patience(what):
                while True:
                    for line in self.lines[since:]:
                        since += 1
                        if told(line):
                            return line
                    async with self._more:  # which may have to wait while more lines come
                        await self._more.wait_for(lambda: len(self.lines) > since or self.gone.is_set())  # noqa: B023 -- used at once
                        assert len(self.lines) > since, f"exited with {self.code} before {what}"
        except AssertionError as error:
            raise AssertionError(f"{error}: {self}") from None

    async def started(self) -> str:
        """Wait until it has started; its member name."""
        line = await self.until(lambda line: line.get("event") == "started", "started")
        return str(line.get("member"))

    async def polled(self, resources: Sequence[str], *, since: int = 0) -> None:
        """Wait for a good round of each of these resources, from a line of its log on."""
        for resource in resources:
            await self.until(
                lambda line, feed=f"acme/{resource}": (
                    _round_of(line, feed) and line["ok"] and line["mode"] != "skipped"
                ),  # type: ignore[misc] # feed is bound here
                f"a good round of {resource}",
                since=since,
            )

    def rounds(self, *, since: int = 0) -> list[Line]:
        """Its log lines about rounds, without the skipped ones."""
        return [line for line in self.lines[since:] if line.get("event") == "round" and line["mode"] != "skipped"]

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines[-12:]))

    async def _read(self) -> None:
        log = self._process.stderr
        assert log is not None
        async for line in log:
            await self._add(line.decode("utf-8", "replace").strip())
        await self._process.wait()
        async with self._more:
            self.gone.set()
            self._more.notify_all()

    async def _add(self, text: str) -> None:
        try:
            line = json.loads(text) if text.startswith("{") else {"text": text}
        except ValueError:  # cut off by its death
            line = {"text": text}
        async with self._more:
            self.lines.append(line)
            self._more.notify_all()


@asynccontextmanager
async def daemon(
    config: Path,
    *,
    failpoint: str = "",
    command: Sequence[str] = ("poller", "run"),
    level: str = "info",
    environ: Mapping[str, str] | None = None,
    descriptors: tuple[int, int] | None = None,
    importing: bool = False,
    checkout: Path | None = None,
) -> AsyncIterator[Daemon]:
    """A daemon for the duration of the block; killed at its end if it still runs.

    Args:
        config: its configuration file.
        failpoint: where it is killed, as in ``POLLER_FAILPOINT``.
        command: the module that ``python -m`` runs, and its arguments.
        level: of its log; ``debug`` includes skipped rounds.
        environ: additions to this process's environment.
        descriptors: its soft and hard limit of descriptors.
        importing: whether to start a new Python process, for a test of the start itself.
        checkout: the directory of another version of the program; None: this one.
    """
    words = (*command[1:], "--config", str(config), "--log-format", "json", "--log-level", level)
    environs = bare_environ() | dict(environ or {}) | ({"POLLER_FAILPOINT": failpoint} if failpoint else {})
    process: Running
    forked = command[0] in _FORKED and not importing and not descriptors and checkout is None
    if forked and (forks := forks_for(environ or {})):
        process = await forks.start(words, cwd=_ROOT, environ=environs, piped=(2,), module=_FORKED[command[0]])
    else:
        limits = " && ".join(
            f"ulimit -{kind} {number}" for kind, number in zip(("Sn", "Hn"), descriptors or (), strict=False)
        )
        process = await asyncio.create_subprocess_exec(
            *(("sh", "-c", f'{limits} && exec "$@"', "sh") if descriptors else ()),
            *(sys.executable, "-m", command[0], *words),
            cwd=checkout or _ROOT,
            env=environs,
            stderr=asyncio.subprocess.PIPE,
            limit=2**20,
        )
    started = Daemon(process)
    try:
        yield started
    finally:
        await started.kill()


@asynccontextmanager
async def sandbox(
    *, records: int, changes_per_second: float, seed: int, profile: str = "", faults: str = ""
) -> AsyncIterator[str]:
    """A sandbox for the duration of the block; its URL."""
    options: dict[str, object] = {
        "port": 0,
        "records": records,
        "changes-per-second": changes_per_second,
        "seed": seed,
        **({"profile": profile} if profile else {}),
        **({"faults": faults} if faults else {}),
    }
    words = ("sandbox", *(f"--{name}={value}" for name, value in options.items()))
    async with for_the_block(await _command(words, os.environ)) as process:
        assert process.stdout is not None
        async with patience("the sandbox"):
            said = await process.stdout.readline()
        found = re.search(rb"http://\S+", said)
        assert found, said
        yield found[0].decode()


async def ran(*words: str) -> tuple[int, bytes]:
    """Run ``poller WORDS`` to its end: its exit code and standard output."""
    async with for_the_block(await _command(words, bare_environ())) as process:
        said, _ = await process.communicate()
        return await process.wait(), said


async def _command(words: Sequence[str], environ: Mapping[str, str]) -> Running:
    """Start the program with its standard output piped."""
    if forks := forks_for({}):
        return await forks.start(words, cwd=_ROOT, environ=environ, piped=(1,))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "poller", *words, cwd=_ROOT, env=environ, stdout=asyncio.subprocess.PIPE
    )


def _round_of(line: Line, feed: str) -> bool:
    return line.get("event") == "round" and line["feed"] == feed


def takes_sigterm(pid: int) -> bool:
    """Whether the process has a handler of its own for SIGTERM."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
