"""The store is reachable but refuses: the daemon waits, /readyz says why, and nothing is half written."""

from __future__ import annotations

import asyncio
import resource
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import psutil  # type: ignore[import-untyped]  # has no types of its own
import pytest
from redis.asyncio import Redis

from tests.harness import store_faults as faults
from tests.harness.agreement import disagreements
from tests.harness.processes import daemon
from tests.harness.subscribed import FEEDS, Wish, subscribed
from tests.harness.waiting import patience, until
from tests.servers import Kind, free_port, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.harness.processes import Daemon
    from tests.harness.store_faults import Fault
    from tests.harness.subscribed import Subscribed

FAULTS: tuple[tuple[Fault, str], ...] = (
    (faults.out_of_memory, "memory"),
    (faults.disk_full, "disk"),
    (faults.read_only, "role"),
    (faults.without_a_primary, "store"),
    (faults.without_replicas, "replicas"),
    (faults.busy, "store"),
    (faults.loading, "store"),
    (faults.forgetful, "store"),
)


@dataclass(slots=True)
class Played:
    """A daemon at work on a scene, and its HTTP service."""

    scene: Subscribed
    daemon: Daemon
    url: str
    http: aiohttp.ClientSession

    async def ready(self, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The report of /readyz once this predicate holds."""
        async with patience(f"the expected report of /readyz; {self.daemon}"):
            while True:
                async with self.http.get(f"{self.url}/readyz") as answer:
                    said: dict[str, Any] = await answer.json()
                assert answer.status == (200 if said["ready"] else 503)
                if true(said):
                    return said

    async def goes_on(self) -> None:
        """Wait until the daemon is ready, reads and delivers."""
        await self.ready(lambda one: bool(one["ready"]))
        await self.scene.more("one", 5)

    def told(self, since: int) -> list[str]:
        """The warnings about the store; failed attempts at a slow sink are left out."""
        lines = [line for line in self.daemon.lines[since:] if line.get("level") in ("warning", "error")]
        lines = [line for line in lines if line["event"] != "attempt"]
        return [f"{line.get('check', line['event'])} {line.get('feed', '')}".strip() for line in lines]


@asynccontextmanager
async def played(directory: Path, store: str, *, embedded: Path | None = None) -> AsyncIterator[Played]:
    async with AsyncExitStack() as stack:
        scene = await stack.enter_async_context(subscribed(directory, [Wish("one")], store=store))
        port = free_port()
        config = scene.config(bind=f"127.0.0.1:{port}", ttl="30s")
        if embedded is not None:
            table = f'[embedded]\ndata_dir = "{embedded}"\n'
            config.write_text(config.read_text().replace(f'[redis]\nurl = "{store}"\n', table))
        running_daemon = await stack.enter_async_context(daemon(config))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        await running_daemon.started()
        await scene.more("one", 5)
        yield Played(scene, running_daemon, f"http://127.0.0.1:{port}", http)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "some"), [("valkey", FAULTS[::2]), ("redis", FAULTS[1::2])], ids=["valkey", "redis"])
async def test_a_store_that_refuses_is_waited_for(
    kind: Kind, some: tuple[tuple[Fault, str], ...], tmp_path: Path
) -> None:
    """During a store fault /readyz names the reason, it is logged once, and the daemon then recovers cleanly."""
    with running(kind, tmp_path / "s", appendfsync="everysec", options=faults.OPTIONS) as server:
        async with (
            played(tmp_path, server.url) as one,
            Redis.from_url(server.url, socket_timeout=None) as admin,
        ):
            for fault, reason in some:
                since = len(one.daemon.lines)
                async with fault(server, admin):
                    await one.ready(lambda said, name=reason: name in [it["name"] for it in said["reasons"]])  # type: ignore[misc] # bound here
                await one.goes_on()
                told = one.told(since)
                assert told.count("redis unavailable") <= 1, told
                assert len(told) == len(set(told)), told
            verdicts = await one.scene.caught_up()
            assert verdicts["one"].clean, verdicts
            await one.daemon.kill()
            assert [await disagreements(admin, f"acme/{feed}") for feed in FEEDS] == [[], []]


async def test_a_disk_that_is_full_under_the_embedded_server(tmp_path: Path) -> None:
    """With a full disk the embedded server exits and is restarted at growing intervals; the reason is logged once."""
    data = tmp_path / "e"
    async with played(tmp_path, f"unix://{data}/valkey.sock", embedded=data) as one:
        full, since = await _larger_than_its_log(data), len(one.daemon.lines)
        before = asyncio.get_running_loop().time()
        _limit(one.daemon.pid, full)
        told = await one.daemon.until(lambda line: line.get("event") == "embedded server went", "why", since=since)
        assert "Error writing to the AOF file: File too large" in told["log"]
        await one.ready(lambda said: not said["ready"])
        await _started(data, times=4)
        assert asyncio.get_running_loop().time() - before > 1  # 0, 0.5, 1 s: restarts are spaced out
        _limit(one.daemon.pid, resource.RLIM_INFINITY)
        await one.goes_on()
        assert sorted(one.told(since)) == ["embedded server went", "redis unavailable"]
        verdicts = await one.scene.caught_up()
        assert verdicts["one"].clean, verdicts
        agree = [await disagreements(one.scene.played.client, f"acme/{feed}") for feed in FEEDS]
        assert agree == [[], []]


def _limit(daemon_pid: int, largest: int) -> None:
    """Limit the file size of the daemon, its server, and the servers it starts later."""
    for process in (psutil.Process(daemon_pid), *psutil.Process(daemon_pid).children()):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))


async def _larger_than_its_log(data: Path) -> int:
    """Wait until the append-only file is much larger than the server's log; its size."""

    def large() -> int | None:
        size = max(file.stat().st_size for file in (data / "appendonlydir").iterdir())
        return size if size > 3 * (data / "valkey.log").stat().st_size + 20_000 else None

    return await until(large, "a larger append-only file")


async def _started(data: Path, *, times: int) -> None:
    """Wait until a server has been started this many times on the directory."""
    log = data / "valkey.log"
    await until(lambda: log.read_text().count("Server initialized") >= times, "the server to be started again")
