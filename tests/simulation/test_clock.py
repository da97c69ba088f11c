"""Tests of the clocks of hosts, and of what libraries see of them."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import uuid
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import aiohttp
import apscheduler.schedulers.base
import apscheduler.triggers.interval
import pytest
import structlog.processors

from poller.clock import Clock
from poller.errors import AddressTaken
from poller.http.server import listening
from poller.http.ssrf import system_lookup
from tests.simulation.loop import SimulatedLoop
from tests.simulation.system import system_of_hosts
from tests.simulation.test_loop import START, simulated


def _module(name: str) -> Any:
    """A module that does not say that it has what it imports."""
    return sys.modules[name]


def test_a_clock_that_is_wrong() -> None:
    """Skew and jumps move the wall clock alone; drift moves both clocks and the length of sleeps."""

    async def main(loop: SimulatedLoop) -> None:
        await asyncio.sleep(100)
        clock = loop.host("one", address="10.0.0.11", skew=timedelta(days=3), drift=0.25).clock
        assert clock.now() == START + timedelta(days=3, seconds=100)
        began = clock.monotonic()
        await clock.sleep(10)
        assert loop.time() == pytest.approx(108)
        assert clock.monotonic() == pytest.approx(began + 10)
        assert clock.now() == START + timedelta(days=3, seconds=110)
        clock.jump(timedelta(hours=-1))
        assert clock.now() == START + timedelta(days=2, hours=23, seconds=110)
        assert clock.monotonic() == pytest.approx(began + 10)
        assert not await clock.wait(asyncio.Event(), 5)
        assert loop.time() == pytest.approx(112)

    simulated(main)


def test_draws_follow_from_the_seed() -> None:
    """The same seed gives the same draws, another seed others, and no two hosts the same."""

    async def draws(loop: SimulatedLoop) -> list[bytes]:
        hosts = [loop.host(name, address=f"10.0.0.{number}") for number, name in enumerate("ab")]
        return [host.clock.random.randbytes(8) for host in hosts]

    first = simulated(draws, seed=1)
    assert simulated(draws, seed=1) == first
    assert len({*first, *simulated(draws, seed=2)}) == 4


def test_libraries_see_the_clock_of_the_host() -> None:
    """Each library that reads the system's clock sees that of the host whose code runs, and the real one afterwards."""

    async def main(loop: SimulatedLoop) -> None:
        host = loop.host("one", address="10.0.0.11", skew=timedelta(days=3))
        await asyncio.sleep(50)
        clock = host.clock

        def look() -> None:
            for module in (apscheduler.schedulers.base, apscheduler.triggers.interval):
                moments = module.datetime
                assert moments.now(UTC) == clock.now()
                assert isinstance(clock.now(), moments)
                assert not isinstance(1, moments)
                assert moments(2026, 1, 1, tzinfo=UTC) == START
            assert _module("aiohttp.connector").monotonic() == clock.monotonic()
            assert _module("aiohttp.helpers").time.time() == clock.now().timestamp()
            event = structlog.processors.TimeStamper(fmt="iso", utc=True)(None, "info", {})
            assert event["timestamp"] == "2026-01-04T00:00:50Z"
            assert os.getpid() == host.pid
            assert socket.gethostname() == "one"

        host.run(look)
        assert _module("aiohttp.helpers").time.time() == (START + timedelta(seconds=50)).timestamp()
        assert socket.gethostname() != "one"

    own = os.getpid()
    loop = SimulatedLoop(Random(1), START)
    with system_of_hosts(loop):
        loop.run_until_complete(main(loop))
    loop.close()
    assert apscheduler.schedulers.base.datetime is datetime
    assert os.getpid() == own


def test_what_libraries_draw_follows_from_the_seed() -> None:
    """Random ids and secrets of libraries are the same with the same seed."""

    def drawn(seed: int) -> list[str]:
        loop = SimulatedLoop(Random(seed), START)
        with system_of_hosts(loop):
            found = [str(uuid.uuid4()), secrets.token_hex(8), os.urandom(4).hex()]
        loop.close()
        return found

    assert drawn(1) == drawn(1)
    assert not set(drawn(1)) & set(drawn(2))


def _with_system(main: Any) -> None:
    loop = SimulatedLoop(Random(1), START)
    try:
        with system_of_hosts(loop):
            loop.run_until_complete(main(loop))
    finally:
        loop.close()
    assert loop.failures == []


def test_the_programs_http_server_listens_on_the_simulated_network() -> None:
    """The server of the program runs unchanged: each host has its own ports, and a port is taken once."""

    async def app(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def main(loop: SimulatedLoop) -> None:
        one, two = loop.host("one", address="10.0.0.11"), loop.host("two", address="10.0.0.12")
        stop, urls = asyncio.Event(), asyncio.Queue[str]()

        async def serve(port: int) -> None:
            async with listening(app, "127.0.0.1", port, clock=Clock()) as url:
                urls.put_nowait(url)
                await stop.wait()

        serving = [one.start(serve(8080)), two.start(serve(8080))]
        assert [await urls.get(), await urls.get()] == ["http://127.0.0.1:8080"] * 2
        with pytest.raises(AddressTaken):
            await one.start(serve(8080))

        async def ask(url: str) -> str:
            async with aiohttp.ClientSession() as http, http.get(url) as answer:
                return await answer.text()

        assert await one.start(ask("http://10.0.0.12:8080/")) == "ok"
        assert await one.start(ask("http://two:8080/")) == "ok"
        stop.set()
        await asyncio.gather(*serving)
        with pytest.raises(aiohttp.ClientConnectorError):
            await one.start(ask("http://10.0.0.12:8080/"))

    _with_system(main)


def test_the_programs_look_up_asks_the_simulated_network() -> None:
    """Names that the program looks up in a thread of its own are those of hosts, and others do not exist."""

    async def main(loop: SimulatedLoop) -> None:
        one = loop.host("one", address="10.0.0.11")
        loop.host("sink.test", address="10.0.0.50")
        assert await one.start(system_lookup("sink.test")) == ["10.0.0.50"]
        with pytest.raises(socket.gaierror):
            await one.start(system_lookup("other.test"))

    _with_system(main)
