"""The real program as a subprocess, a sandbox in this process, and a configuration for both."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
import structlog

from poller.cli.app import exit_code, run_app
from poller.sandbox.data import seed
from poller.sandbox.history import RESOURCES, History
from poller.sandbox.server import SEEDED_AT, serving
from tests.cli.commands import Ended, environment, ran
from tests.harness.forks import forks_for
from tests.harness.waiting import limited
from tests.programs import Running, for_the_block

_LIMIT = 30.0  # seconds; a program that takes longer hangs


Poller = Callable[..., Awaitable[Ended]]
Called = Callable[..., Ended]


class Site(NamedTuple):
    """A served sandbox and the configuration of a daemon for it."""

    history: History
    file: Path
    url: str


@asynccontextmanager
async def started(*arguments: str, cwd: Path, **extra: str) -> AsyncIterator[Running]:
    """Run the program while the block runs; a program that is still running at the end is killed."""
    forks = forks_for({})
    assert forks is not None
    process = await forks.start(arguments, cwd=cwd, environ=environment(extra), piped=(1, 2))
    async with for_the_block(process):
        yield process


@pytest.fixture
def poller(tmp_path: Path) -> Poller:
    """Run ``poller ARGUMENTS`` in an empty directory to its end."""

    async def run(*arguments: str, **extra: str) -> Ended:
        return await ran(arguments, cwd=tmp_path, extra=extra)

    return run


@pytest.fixture
def started_poller(tmp_path: Path) -> Poller:
    """Run ``poller ARGUMENTS`` by starting Python, as a user does."""

    async def run(*arguments: str, **extra: str) -> Ended:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "poller",
            *arguments,
            cwd=tmp_path,
            env=environment(extra),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with for_the_block(process), limited(_LIMIT):
            out, err = await process.communicate()
        assert process.returncode is not None
        return Ended(process.returncode, out.decode(), err.decode())

    return run


@pytest.fixture
def called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Iterator[Called]:
    """Run ``poller ARGUMENTS`` in this process, where a subprocess would prove nothing more."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, **extra: str) -> Ended:
        with monkeypatch.context() as now:
            for name in os.environ:
                if name.startswith(("POLLER_", "REDIS_")):
                    now.delenv(name)
            for name, value in extra.items():
                now.setenv(name, value)
            code = exit_code(lambda: run_app(arguments))
        out, err = capsysbinary.readouterr()
        return Ended(code, out.decode("utf-8", "surrogateescape"), err.decode())

    yield call
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A sandbox with sixty records; the store is embedded, in a directory with a path short enough for a socket."""
    history, rng = History(), Random(5)
    seed(history, rng, records=60, at=SEEDED_AT)
    with TemporaryDirectory(prefix="pc-") as short:
        async with serving(history, rng=rng) as url:
            file = Path(short) / "poller.toml"
            lines = [f'embedded = {{ data_dir = "{short}/data" }}', 'http = { bind = "off" }']
            lines += ["[[sources]]", 'name = "acme"', f'base_url = "{url}"', 'auth = { token_env = "API_TOKEN" }']
            for resource in RESOURCES:
                lines += ["[[sources.feeds]]", f'resource = "{resource}"', 'interval = "1h"']
            file.write_text("\n".join(lines), "utf-8")
            yield Site(history, file, url)
