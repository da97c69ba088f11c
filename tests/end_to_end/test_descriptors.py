"""The real daemon with few file descriptors keeps working while clients hold connections to its HTTP service."""

from __future__ import annotations

import asyncio
import resource
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp
import psutil  # type: ignore[import-untyped]  # has no types of its own
import pytest

from tests.harness.processes import daemon
from tests.harness.subscribed import Wish, subscribed
from tests.harness.waiting import patience, until

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 1024
HELD = 1006
REQUEST = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"

pytestmark = pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * LIMIT, reason="this process may not open so many connections"
)


async def _held(port: int, count: int, stack: AsyncExitStack) -> None:
    """Open this many connections, half of them silent and half idle after a request; the daemon may close them."""
    for number in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        stack.callback(writer.close)
        if number % 2:
            writer.write(REQUEST)


@pytest.mark.thorough
async def test_idle_connections_take_no_descriptor_from_the_work(tmp_path: Path, store: str) -> None:
    """With 1 006 idle connections and 1 024 descriptors every change is delivered and probes answer."""
    async with (
        subscribed(tmp_path, [Wish("one", lines='timeout = "30s"')], store=store) as scene,
        AsyncExitStack() as stack,
        daemon(scene.config(bind="127.0.0.1:0", ttl="30s"), descriptors=(LIMIT, LIMIT)) as flooded,
    ):
        await flooded.started()
        said = await flooded.until(lambda line: line.get("event") == "listening", "listening")
        url = str(said["page"]).rstrip("/")
        process = psutil.Process(flooded.pid)
        for _ in range(3):
            await _held(int(url.rpartition(":")[2]), HELD // 3, stack)
            await scene.more("one", 20)
            assert process.num_fds() < LIMIT * 3 // 4
            async with patience("a probe"), aiohttp.ClientSession() as http, http.get(f"{url}/livez") as answer:
                assert answer.status == 200
        await until(lambda: process.num_fds() < LIMIT // 2, "the connections to be bounded")
        found = (await scene.caught_up())["one"]
    assert found.clean, found
    amiss = [line for line in flooded.lines if line.get("level") in {"warning", "error"}]
    assert {line["event"] for line in amiss} == {"no room for more HTTP connections"}, amiss


HANGING = """
[[subscriptions]]
id = "hanging-{number}"
sink = "http://127.0.0.1:{port}/{number}"
allow_private = true
concurrency = 50
timeout = "60s"
"""


async def test_sinks_that_hang_take_no_descriptor_from_the_others(tmp_path: Path, store: str) -> None:
    """With sinks that never answer and few descriptors, another sink gets every event, and probes answer."""
    connections: set[asyncio.StreamWriter] = set()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)

    def close() -> None:
        for writer in connections:
            writer.close()

    few = 128
    async with (
        subscribed(tmp_path, [Wish("one")], store=store, records=100) as scene,
        await asyncio.start_server(hang, "127.0.0.1", 0) as server,
        AsyncExitStack() as stack,
    ):
        config, port = scene.config(bind="127.0.0.1:0", ttl="30s"), server.sockets[0].getsockname()[1]
        hanging = (HANGING.format(number=number, port=port) for number in range(12))
        config.write_text(config.read_text() + "".join(hanging))
        crowded = await stack.enter_async_context(daemon(config, descriptors=(few, few)))
        stack.callback(close)
        await crowded.started()
        said = await crowded.until(lambda line: line.get("event") == "listening", "listening")
        await scene.more("one", 150)
        await until(lambda: len(connections) >= 12, "each sink to hang")
        await scene.more("one", 50)
        assert psutil.Process(crowded.pid).num_fds() < few
        async with patience("a probe"), aiohttp.ClientSession() as http, http.get(f"{said['page']}livez") as answer:
            assert answer.status == 200
        found = (await scene.caught_up())["one"]
        assert found.clean, found
        warned = [line for line in crowded.lines if line.get("level") in {"warning", "error"}]
        assert {line["event"] for line in warned} == {"few descriptors"}, warned


SLOW_SOURCE = """
[[sources]]
name = "slow-{number}"
base_url = "http://127.0.0.1:{port}"
concurrency = 16
timeout = "30m"
"""
SLOW_FEED = """
[[sources.feeds]]
resource = "feed-{number}"
path = "/feed-{number}"
interval = "1s"
"""


@pytest.mark.thorough
async def test_sources_that_hang_take_no_descriptor_from_the_others(tmp_path: Path, store: str) -> None:
    """With APIs that never answer and few descriptors, every change of another is delivered, and probes answer."""
    connections: set[asyncio.StreamWriter] = set()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)

    def close() -> None:
        for writer in connections:
            writer.close()

    few, sources = 128, 12
    async with (
        subscribed(tmp_path, [Wish("one")], store=store, records=100) as scene,
        await asyncio.start_server(hang, "127.0.0.1", 0) as server,
        AsyncExitStack() as stack,
    ):
        config, port = scene.config(bind="127.0.0.1:0", ttl="30s"), server.sockets[0].getsockname()[1]
        feeds = "".join(SLOW_FEED.format(number=number) for number in range(16))
        slow = (SLOW_SOURCE.format(number=number, port=port) + feeds for number in range(sources))
        config.write_text(config.read_text() + "".join(slow))
        crowded = await stack.enter_async_context(daemon(config, descriptors=(few, few)))
        stack.callback(close)
        await crowded.started()
        said = await crowded.until(lambda line: line.get("event") == "listening", "listening")
        await until(lambda: len(connections) >= sources, "each source to hang")
        await scene.more("one", 100)
        assert len(connections) == sources
        assert psutil.Process(crowded.pid).num_fds() < few
        async with patience("a probe"), aiohttp.ClientSession() as http, http.get(f"{said['page']}livez") as answer:
            assert answer.status == 200
        found = (await scene.caught_up())["one"]
        assert found.clean, found
        warned = [line for line in crowded.lines if line.get("level") in {"warning", "error"}]
        assert [(line["event"], line.get("sources")) for line in warned] == [("few descriptors", sources + 1)], warned


async def test_it_has_as_many_descriptors_as_it_may(tmp_path: Path, store: str) -> None:
    """The daemon raises its soft limit of descriptors to the hard limit at the start."""
    async with (
        subscribed(tmp_path, [Wish("one")], store=store, records=4) as scene,
        daemon(scene.config(), descriptors=(256, LIMIT)) as raised,
    ):
        await raised.started()
        assert psutil.Process(raised.pid).rlimit(psutil.RLIMIT_NOFILE) == (LIMIT, LIMIT)
