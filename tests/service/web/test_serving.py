"""Laws of :mod:`poller.service.web.serving`: an address that is taken is waited for, and told once."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from structlog.testing import capture_logs

from poller.config.daemon import Address
from poller.errors import ConfigurationError
from poller.http.listening import listener
from poller.service.readiness import Readiness
from poller.service.watching import StoreWatch
from poller.service.web.application import application
from poller.service.web.probes import probe_routes
from poller.service.web.serving import serve
from tests.harness.waiting import patience, until
from tests.service.test_watching import Hours, now


def site() -> object:
    return application(*probe_routes(Readiness(StoreWatch("warn", now=now, clock=lambda: 0.0))))


async def until_served(url: str) -> None:
    async with aiohttp.ClientSession() as http:

        async def look() -> bool:
            async with http.get(url) as answer:
                assert answer.status == 200
            return True

        await until(look, "an answer", despite=(aiohttp.ClientConnectionError,))


async def test_the_second_takes_over_when_the_first_goes() -> None:
    """However often it is tried: one warning, with what to do; then it listens, until it is told to end."""
    until, hours = asyncio.Event(), Hours()
    with listener("127.0.0.1", 0) as first, capture_logs() as logs:
        port = first.getsockname()[1]
        serving = asyncio.create_task(serve(site(), Address("127.0.0.1", port), until=until, pause=hours.pause))
        for turn in (1, 2, 3):
            assert await hours.paused(turn) == 2
            if turn < 3:
                hours.go_on.set()
        first.close()
        hours.go_on.set()
        await until_served(f"http://127.0.0.1:{port}/livez")
        until.set()
        async with patience("the end"):
            await serving
    assert [line["event"] for line in logs] == ["not listening", "listening"]
    assert "POLLER_HTTP_BIND" in logs[0]["advice"]
    assert f"port {port}" in logs[0]["error"]


async def test_an_address_that_is_not_this_machines() -> None:
    """That is a mistake in the configuration, and told as one."""
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1"):
        await serve(site(), Address("192.0.2.1", 80), until=asyncio.Event())
