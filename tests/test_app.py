"""The daemon reports its state from start to end, and stops on request whatever its store is doing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from poller.app import run
from poller.clock import Clock
from poller.config.load import load
from poller.config.settings import Settings
from poller.control.diagnostics import check
from poller.errors import ConfigurationError
from poller.redis.client import commands
from poller.sandbox.data import seed
from poller.sandbox.history import History
from poller.sandbox.server import serving
from poller.store.keys import FeedKeys, remembered_key
from tests.harness.clock import StubClock
from tests.harness.waiting import until, within
from tests.harness.wire import wired
from tests.servers import free_port, running

SOON = 8.0  # seconds; a supervisor kills after ten


def now() -> datetime:
    return datetime.now(UTC)


def settings(directory: Path, *, url: str, store: str, bind: str = "off") -> Settings:
    file = directory / "poller.toml"
    file.write_text(
        f'{store}\nhttp = {{ bind = "{bind}" }}\n[[sources]]\nname = "acme"\nbase_url = "{url}"\n'
        'auth = { token_env = "TOKEN" }\n'
        '[[sources.feeds]]\nresource = "employmentUnavailabilities"\ninterval = "200ms"\n',
        "utf-8",
    )
    return load(file, {})


@asynccontextmanager
async def running_daemon(wanted: Settings) -> AsyncIterator[asyncio.Event]:
    """The daemon for the duration of the block; it stops in order."""
    stop = asyncio.Event()
    daemon = asyncio.create_task(run(wanted, {"TOKEN": "sandbox"}, stop=stop, clock=StubClock(now=now)))
    try:
        yield stop
    finally:
        stop.set()
        await within(daemon, SOON)


async def report(url: str, ready: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The report of /readyz, once this predicate holds."""
    async with aiohttp.ClientSession() as http:

        async def look() -> dict[str, Any] | None:
            async with http.get(f"{url}/readyz") as answer:
                said: dict[str, Any] = await answer.json()
            assert answer.status == (200 if said["ready"] else 503)
            return said if ready(said) else None

        return await until(look, "the expected report of /readyz", despite=(aiohttp.ClientConnectionError,))


async def test_served_before_the_store_is_there(tmp_path: Path) -> None:
    """The service is alive immediately, and ready exactly while the store answers."""
    web = f"127.0.0.1:{free_port()}"
    store = f'redis = {{ url = "unix://{tmp_path}/s/s" }}'
    wanted = settings(tmp_path, url="http://127.0.0.1:9", store=store, bind=web)
    async with running_daemon(wanted):
        said = await report(f"http://{web}", lambda one: "No such file" in str(one["reasons"]))
        assert [one["name"] for one in said["reasons"]] == ["store"]
        for _ in range(2):
            with running("valkey", tmp_path / "s"):
                said = await report(f"http://{web}", lambda one: bool(one["ready"] and one["failing"]))
                assert list(said["failing"]) == ["acme/employmentUnavailabilities"]  # its source is unavailable
                assert {one["severity"] for one in said["store"]} == {"ok"}
            await report(f"http://{web}", lambda one: not one["ready"])


async def test_two_daemons_on_one_address(tmp_path: Path) -> None:
    """Two daemons with one address both work; the second one serves when the first has stopped."""
    web = f"127.0.0.1:{free_port()}"
    with running("valkey", tmp_path / "s") as server:
        wanted = settings(tmp_path, url="http://127.0.0.1:9", store=f'redis = {{ url = "{server.url}" }}', bind=web)
        async with running_daemon(wanted) as first:
            await report(f"http://{web}", lambda one: bool(one["ready"]))
            with capture_logs() as logs:
                async with running_daemon(wanted):
                    wanted_events = {"not listening", "started"}
                    await until(lambda: wanted_events <= {line["event"] for line in logs}, "both daemons to start")
                    first.set()
                    await report(f"http://{web}", lambda one: bool(one["ready"]))


async def test_its_address_is_no_fault_to_check(tmp_path: Path) -> None:
    """``check`` accepts an address that a daemon of the same store uses, and warns of any other user."""
    web = f"127.0.0.1:{free_port()}"

    async def found(wanted: Settings) -> list[tuple[str, str]]:
        return [(one.severity, one.text) async for one in check(wanted, {}, clock=Clock()) if one.subject == "http"]

    with running("valkey", tmp_path / "s") as server, running("valkey", tmp_path / "other") as other:
        at = [f'redis = {{ url = "{one.url}" }}' for one in (server, other)]
        wanted = settings(tmp_path, url="http://127.0.0.1:9", store=at[0], bind=web)
        async with running_daemon(wanted):
            await report(f"http://{web}", lambda one: bool(one["ready"]))
            host, _, port = web.partition(":")
            await until(
                partial(_is, found, wanted, [("ok", f"a poller listens on {host} port {port}")]), "the check to be ok"
            )
            ((severity, text),) = await found(settings(tmp_path, url="http://127.0.0.1:9", store=at[1], bind=web))
            assert (severity, "POLLER_HTTP_BIND" in text) == ("warning", True)


async def _is(found: Callable[[Settings], Awaitable[Any]], wanted: Settings, expected: Any) -> bool:
    return bool(await found(wanted) == expected)


async def test_nothing_to_do(tmp_path: Path) -> None:
    """A daemon with only the serve role and no address to serve does not start."""
    wanted = settings(tmp_path, url="http://127.0.0.1:9", store="")
    with pytest.raises(ConfigurationError, match="nothing to do"):
        await run(wanted, {}, stop=asyncio.Event(), clock=StubClock(now=now), roles=frozenset({"serve"}))


async def test_stopping_while_the_embedded_server_cannot_start(tmp_path: Path) -> None:
    """A daemon that waits for a data directory held by another server still stops in time."""
    held = tmp_path / "data"
    held.mkdir()
    with (held / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stop = asyncio.Event()
        wanted = settings(tmp_path, url="http://127.0.0.1:9", store=f'embedded = {{ data_dir = "{held}" }}')
        daemon = asyncio.create_task(run(wanted, {}, stop=stop, clock=StubClock(now=now)))
        asyncio.get_running_loop().call_later(0.2, stop.set)
        await within(daemon, SOON)


async def test_stopping_while_the_store_hangs(tmp_path: Path) -> None:
    """A daemon whose store stops answering during rounds still stops in time."""
    history, rng = History(), Random(1)
    seed(history, rng, records=400, at=now())
    stop = asyncio.Event()
    with running("valkey", tmp_path / "s") as server:
        async with serving(history, rng=rng, changes_per_second=200) as url:
            wanted = settings(tmp_path, url=url, store=f'redis = {{ url = "{server.url}" }}')
            daemon = asyncio.create_task(run(wanted, {"TOKEN": "sandbox"}, stop=stop, clock=StubClock(now=now)))
            loop = asyncio.get_running_loop()
            loop.call_later(1.0, os.kill, server.pid, signal.SIGSTOP)
            loop.call_later(1.5, stop.set)
            try:
                await within(asyncio.shield(daemon), 1.5 + SOON)
            finally:
                os.kill(server.pid, signal.SIGCONT)
                await asyncio.gather(daemon, return_exceptions=True)


@pytest.mark.parametrize("answers", [2_000, 5_000, 8_000])
async def test_a_store_that_breaks_off_at_the_start_is_asked_again(tmp_path: Path, answers: int) -> None:
    """A daemon whose store connection breaks at any point of the start waits, and starts when the store answers."""
    web = f"127.0.0.1:{free_port()}"
    with running("valkey", tmp_path / "v", tcp=True) as server:
        async with wired(server.url) as wire:
            wire.cut(answers)
            wanted = settings(tmp_path, url="http://127.0.0.1:9", store=f'redis = {{ url = "{wire.url}" }}', bind=web)
            async with running_daemon(wanted):
                await report(f"http://{web}", lambda said: "connection" in str(said["reasons"]).lower())
                wire.mend()
                await report(f"http://{web}", lambda said: bool(said["ready"]))


async def test_a_list_of_feeds_that_cannot_be_read_ends_no_start(tmp_path: Path) -> None:
    """While the key with the list of known feeds has another type, the daemon runs and says so; then it is ready."""
    web = f"127.0.0.1:{free_port()}"
    with running("valkey", tmp_path / "s") as server:
        wanted = settings(tmp_path, url="http://127.0.0.1:9", store=f'redis = {{ url = "{server.url}" }}', bind=web)
        async with commands(server.url) as client:
            await client.set(remembered_key("poller"), "x")
            async with running_daemon(wanted):
                said = await report(f"http://{web}", lambda one: bool(one["failing"]) and bool(one["reasons"]))
                assert [one["name"] for one in said["reasons"]] == ["subscriptions"]
                assert all(remembered_key("poller") in text for text in said["failing"].values())
                await client.delete(remembered_key("poller"))
                await report(f"http://{web}", lambda one: bool(one["ready"]))


async def test_a_lease_that_the_store_refuses_is_named(tmp_path: Path) -> None:
    """While the lease of a feed has another type at the start, the feed is named as failing; then it is polled."""
    web, lease = f"127.0.0.1:{free_port()}", FeedKeys.of("poller", "acme/employmentUnavailabilities").lease
    with running("valkey", tmp_path / "s") as server:
        wanted = settings(tmp_path, url="http://127.0.0.1:9", store=f'redis = {{ url = "{server.url}" }}', bind=web)
        async with commands(server.url) as client:
            await client.hset(lease, "x", "y")
            async with running_daemon(wanted):
                said = await report(f"http://{web}", lambda one: bool(one["failing"]))
                assert lease in said["failing"]["acme/employmentUnavailabilities"]
                await client.delete(lease)
                await report(f"http://{web}", lambda one: "127.0.0.1:9" in str(one["failing"]))  # of its source
