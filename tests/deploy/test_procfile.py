"""The Procfile on a fresh checkout, with only the API and its token in the environment."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import aiohttp
import psutil  # type: ignore[import-untyped]  # has no types of its own
import pytest
from redis.asyncio import Redis

from poller.clock import Clock
from poller.redis.embedded import EmbeddedServer
from tests.deploy.files import ROOT, roles_of
from tests.harness.checker import judge
from tests.harness.json_values import read
from tests.harness.processes import SANDBOX_TOKEN, sandbox
from tests.harness.scene import RESOURCES
from tests.harness.waiting import patience, until
from tests.receiver import Receiver, receiving

Entry = tuple[bytes, dict[bytes, bytes]]

NAMES = ("web", "poll", "deliver")
READ = "the-read-token-of-this-test"
GOOD_ROUND = re.compile(r'"feed": "default/(\w+)", "mode": "(?:delta|full)", "ok": true')
ENDED = re.compile(r"(\w+)\.1 stopped \(rc=(-?\d+)\)")


def three_ports() -> int:
    """The first of three free ports, a hundred apart."""
    while True:
        first = Random().randrange(10_000, 30_000)
        with ExitStack() as stack:
            try:
                for number in range(3):
                    stack.enter_context(socket.create_server(("127.0.0.1", first + 100 * number)))
            except OSError:
                continue
            return first


class Honcho:
    """``honcho start``, and its output so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.said = ""
        self.process = process
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said += line.decode()

    async def ended(self) -> dict[str, str]:
        """The exit code of each of the three processes, once all have ended."""
        async with patience(f"honcho to end: {self.said}"):
            await self._reading
            await self.process.wait()
        return dict(ENDED.findall(self.said))

    async def close(self) -> None:
        if self.process.returncode is None:
            for one in (*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)):
                one.kill()
        await self._reading
        await self.process.wait()


@asynccontextmanager
async def honcho(directory: Path, environ: Mapping[str, str], port: int) -> AsyncIterator[Honcho]:
    """``honcho start`` for the duration of the block; its processes are killed with it."""
    command = (sys.executable, "-m", "honcho", "--no-colour", "-d", str(directory), "-f", str(ROOT / "Procfile"))
    process = await asyncio.create_subprocess_exec(
        *command, "start", "-p", str(port), env=environ, stdout=asyncio.subprocess.PIPE, limit=2**20
    )
    started = Honcho(process)
    try:
        yield started
    finally:
        await started.close()


async def all_ready(http: aiohttp.ClientSession, port: int) -> bool:
    """Whether each of the three processes is ready on its own port."""
    try:
        for number in range(3):
            async with http.get(f"http://127.0.0.1:{port + 100 * number}/readyz") as answer:
                if answer.status != 200:
                    return False
    except aiohttp.ClientConnectionError:
        return False
    return True


async def who_reads(http: aiohttp.ClientSession, port: int, token: str | None) -> set[int]:
    """The statuses of the paths that show records, on the three ports."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    statuses = set()
    for number in range(3):
        for path in ("/", "/feeds", "/events?from=earliest"):
            async with http.get(f"http://127.0.0.1:{port + 100 * number}{path}", headers=headers) as answer:
                statuses.add(answer.status)
    return statuses


def owner_of_the_store(process: asyncio.subprocess.Process) -> psutil.Process:
    """The process that started the embedded server."""
    servers = [one for one in psutil.Process(process.pid).children(recursive=True) if "valkey" in one.name()]
    owner: psutil.Process | None = servers[0].parent()
    assert owner is not None
    return owner


@pytest.mark.thorough
async def test_three_processes_on_a_fresh_checkout(tmp_path: Path) -> None:
    """Three processes share one embedded store, are ready on their ports, and stop in order, in any order of signals.

    After a restart nothing is published twice and everything published is delivered. Because PORT means all interfaces,
    reading needs a token.
    """
    port = three_ports()
    ours = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    environ = ours | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),  # the default place of the embedded server's directory
        "XDG_STATE_HOME": str(tmp_path / "s"),
        "POLLER_TOKEN": SANDBOX_TOKEN,
    }
    store = tmp_path / "s" / "poller"
    adding = (sys.executable, "-m", "poller", "subscriptions", "add", "there")
    how = ("--no-secret", "--allow-private", "--start", "earliest")
    async with (
        receiving() as sink,
        aiohttp.ClientSession() as http,
        sandbox(records=60, changes_per_second=40, seed=5) as source,
    ):
        environ["POLLER_BASE_URL"] = source
        async with honcho(tmp_path, environ, port) as started:
            await until(lambda: all_ready(http, port), "all three processes to be ready")
            assert await who_reads(http, port, None) == await who_reads(http, port, READ) == {403}
            add = await asyncio.create_subprocess_exec(*adding, f"{sink.url}/", *how, env=environ, cwd=tmp_path)
            assert await add.wait() == 0
            await sink.received(20)
            owner_of_the_store(started.process).send_signal(signal.SIGTERM)  # honcho then ends the others
            assert await started.ended() == dict.fromkeys(NAMES, "0"), started.said
        before = await published(store)
        async with honcho(tmp_path, environ | {"POLLER_READ_TOKEN": READ}, port) as started:
            await until(lambda: all_ready(http, port), "all three processes to be ready again")
            assert await who_reads(http, port, None) == {401}
            assert await who_reads(http, port, READ) == {200}
            await until(lambda: len(set(GOOD_ROUND.findall(started.said))) == len(RESOURCES), "a round of each feed")
            await until(lambda: everything(sink, store), "all events to be delivered")
            started.process.send_signal(signal.SIGTERM)
            assert await started.ended() == dict.fromkeys(NAMES, "0"), started.said
        log = await asked(http, f"{source}/_sandbox/log")
    streams = await published(store)
    verdict = judge(log, streams, upto=0)
    assert verdict.clean, str(verdict)
    assert len(ids(streams)) > len(ids(before)) >= 20


async def published(directory: Path) -> dict[str, list[bytes]]:
    """The events in the embedded store, by resource."""
    server = EmbeddedServer(directory, clock=Clock())
    await server.ensure()
    try:
        async with Redis.from_url(server.url) as client:
            keys = {resource: f"poller:{{default/{resource}}}:events" for resource in RESOURCES}
            found = {name: cast("list[Entry]", await client.xrange(key)) for name, key in keys.items()}
            return {name: [fields[b"data"] for _, fields in entries] for name, entries in found.items()}
    finally:
        await server.stop()


def ids(streams: Mapping[str, Sequence[bytes]]) -> set[str]:
    return {read(event)["id"] for events in streams.values() for event in events}


async def everything(sink: Receiver, directory: Path) -> bool:
    """Whether the sink has received every published event."""
    return ids(await published(directory)) <= ids({"": [request.body for request in sink.requests]})


async def asked(http: aiohttp.ClientSession, url: str) -> Any:
    async with http.get(url) as answer:
        return read(await answer.read())


def test_each_command() -> None:
    """Each line is a valid command that needs no shell, and together they have all roles."""
    lines = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text("utf-8").splitlines())
    assert tuple(lines) == NAMES
    roles = {}
    for name, line in lines.items():
        execute, program, *arguments = line.split()
        assert (execute, program) == ("exec", "poller")  # a shell would stay and get the signal instead
        roles[name] = roles_of(arguments)
    assert all("serve" in one for one in roles.values())  # each has a port of its own to be scraped at
    assert frozenset().union(*roles.values()) == {"poll", "deliver", "serve"}
