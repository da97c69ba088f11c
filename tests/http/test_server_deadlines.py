"""Laws of :mod:`poller.http.server` by real connections: only an incomplete request has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from poller.clock import Clock
from poller.http.server import listening
from tests.harness.waiting import patience, turns

SOON = 0.25
"""Seconds; a request that is to be in time is sent as soon as the connection is open."""

NEVER = 3600.0
WHOLE = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


class Site:
    """An application that answers when allowed, and records the messages it receives."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.answer.set()
        self.told: list[str] = []

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            self.told.append(message["type"])
            more = message.get("more_body", False)
        await self.answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def served(site: Site, seconds: float) -> AsyncIterator[int]:
    """The port of the served site, with this much time for each request."""
    async with (
        listening(site, "127.0.0.1", 0, clock=Clock(), request_seconds=seconds) as url,
        patience("an answer or the end of the connection"),
    ):
        yield int(url.rpartition(":")[2])


@asynccontextmanager
async def opened(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to the port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def connected(site: Site, seconds: float) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a site that is served for the duration of the block."""
    async with served(site, seconds) as port, opened(port) as both:
        yield both


async def passed(port: int) -> None:
    """Return once any earlier deadline has passed, as it has for a silent connection."""
    async with opened(port) as (reader, _):
        assert await reader.read() == b""


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nhost: here\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\nab",
    ],
    ids=["nothing", "a line", "a head", "a body"],
)
async def test_what_is_begun_and_not_ended_is_closed(begun: bytes) -> None:
    """A connection whose request is not completed in time is closed."""
    site = Site()
    async with connected(site, SOON) as (reader, writer):
        writer.write(begun)
        assert await reader.read() == b""
    if b"POST" in begun:
        assert site.told[-1] == "http.disconnect"


async def test_a_second_request_has_its_time_from_its_first_byte() -> None:
    """Idling between requests is not limited, and a started second request has its own deadline."""
    async with connected(Site(), SOON) as (reader, writer):
        writer.write(WHOLE)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE + b"GET / HT")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""


async def test_who_has_asked_may_wait_for_the_answer_and_ask_again() -> None:
    """A complete request leaves no deadline behind, however long its answer or the next request takes."""
    site = Site()
    async with served(site, SOON) as port, opened(port) as (reader, writer):
        site.answer.clear()
        writer.write(WHOLE)
        await passed(port)
        site.answer.set()
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        await passed(port)
        writer.write(WHOLE)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")


class LeapingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock a test sets forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def test_an_idle_connection_is_closed_after_its_time() -> None:
    """After an answer a connection is kept for 75 s, counted from each answer, and then closed."""

    async def asked_twice() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, LeapingLoop)
        async with listening(Site(), "127.0.0.1", 0, clock=Clock()) as url, opened(int(url.rpartition(":")[2])) as both:
            reader, writer = both
            for _ in range(2):
                writer.write(WHOLE)
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                loop.ahead += 70
                await turns(3)
                assert not reader.at_eof()
            loop.ahead += 6
            async with patience("the end of the connection", 5):
                assert await reader.read() == b""

    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        runner.run(asked_twice())


async def test_a_slow_body_that_comes_in_time_is_taken() -> None:
    """A body that arrives in time is accepted in any number of parts."""
    site = Site()
    async with connected(site, NEVER) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\n")
        for part in (b"a", b"b", b"c"):
            writer.write(part)
            await writer.drain()
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
