"""Laws of :mod:`poller.sandbox.serving`."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING

import httpx
import pytest

from poller.errors import ConfigurationError
from poller.http.listening import listener as listener_on
from poller.sandbox.serving import serving
from tests.sandbox.conftest import client_of

if TYPE_CHECKING:
    from random import Random

    from poller.sandbox.model import History


async def test_nothing_is_left_behind(history: History, rng: Random) -> None:
    """When the block is left no task is left, and the port refuses connections, even with a client still there."""
    before = asyncio.all_tasks()
    async with client_of("http://unused") as client:
        async with serving(history, rng=rng, changes_per_second=100) as url:
            assert (await client.get(f"{url}/contractTypes")).status_code == 200
        assert asyncio.all_tasks() == before
        with pytest.raises(httpx.TransportError):
            await client.get(f"{url}/contractTypes")


def test_small_answers_do_not_wait() -> None:
    """The listening socket is such that asyncio turns Nagle's algorithm off on its connections."""
    with listener_on("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


async def test_signals_are_left_alone(history: History, rng: Random) -> None:
    """Serving changes no signal's disposition, neither while it runs nor after."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    async with serving(history, rng=rng):
        assert [signal.getsignal(number) for number in numbers] == before
    assert [signal.getsignal(number) for number in numbers] == before


async def test_an_error_in_the_block_passes_through(history: History, rng: Random) -> None:
    """The block's own error comes out unchanged, and the server is stopped all the same."""
    before = asyncio.all_tasks()
    with pytest.raises(LookupError, match="mine"):
        async with serving(history, rng=rng):
            raise LookupError("mine")
    assert asyncio.all_tasks() == before


async def test_a_busy_port_is_the_operators(history: History, rng: Random) -> None:
    """A port that is taken is a configuration error that names it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=str(port)):
            async with serving(history, rng=rng, port=port):
                pytest.fail("served on a port that was taken")


async def test_changes_happen_by_themselves(history: History, rng: Random) -> None:
    """At a rate the version rises without anybody asking, never faster than the rate, and stands still afterwards."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with serving(history, rng=rng, changes_per_second=400) as url, client_of(url) as client:
        version = 0
        while version < 40:
            version = (await client.get("/_sandbox/version")).json()["version"]
            assert version <= (loop.time() - start) * 400
    assert len(list(history.since(0))) == history.version


async def test_the_token_can_be_chosen(history: History, rng: Random) -> None:
    """Another token than the default opens the API, and the default does not."""
    async with serving(history, rng=rng, token="other") as url:  # noqa: S106 - a test's
        async with client_of(url, "other") as client:
            assert (await client.get("/contractTypes")).status_code == 200
        async with client_of(url) as client:
            assert (await client.get("/contractTypes")).status_code == 401


async def test_requests_side_by_side(history: History, rng: Random) -> None:
    """Many connections are answered at once."""
    async with serving(history, rng=rng) as url, client_of(url) as client:
        answers = await asyncio.gather(*(client.get("/contractTypes") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
