"""Laws of :mod:`poller.http.server`: connections are limited, and the longest-waiting one is closed first."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from poller.clock import Clock
from poller.http.server import GRACE_SECONDS, MOST, ConnectionLimit, listening, most_connections
from tests.harness.clock import FakeClock
from tests.harness.waiting import patience, strain, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


NEVER = 3600.0
MIB = 1024 * 1024
LARGE = 32 * MIB
"""Bytes; more than the buffers of any connection hold."""

WHOLE = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"


class Site:
    """An application that answers each request once allowed, in this many parts or with an empty body."""

    def __init__(self, parts: int = 0, size: int = 0) -> None:
        self.asked = 0
        self.answer = asyncio.Event()
        self._parts = [bytes(size // parts)] * parts if parts else [b""]

    async def __call__(self, _: Any, __: Any, send: Any) -> None:
        self.asked += 1
        await self.answer.wait()
        headers = [(b"content-length", str(sum(map(len, self._parts))).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class Held:
    """A held connection that records whether it was dropped."""

    dropped = False

    def drop(self) -> None:
        self.dropped = True


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def served(site: Site, most: int, *, stalled_seconds: float = NEVER) -> AsyncIterator[int]:
    """The port of the served site, with room for this many connections."""
    async with (
        listening(site, "127.0.0.1", 0, clock=Clock(), most=most, stalled_seconds=stalled_seconds) as url,
        patience("all connections to be answered or closed"),
    ):
        try:
            yield int(url.rpartition(":")[2])
        finally:
            site.answer.set()


async def opened(port: int, until_the_end: AsyncExitStack, said: bytes = b"") -> Connection:
    """A connection that is closed at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    until_the_end.callback(writer.close)
    writer.write(said)
    return reader, writer


def test_a_quarter_of_the_descriptors() -> None:
    """A listener gets a quarter of the descriptors for connections, at most 256; the limit is raised to the hard limit.

    A quarter of the descriptors, at most 96, are not for connections.
    """
    program = (
        "import resource, sys; from poller.http import server as c\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))\n"
        "print(c.most_connections()); c.raise_descriptor_limit()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE), c.most_connections())"
    )
    for soft, hard, before, after in ((40, 80, 7, 15), (100, 900, 18, 201), (1024, 1200, 232, 256)):
        given = (sys.executable, "-c", program, str(soft), str(hard))
        said = subprocess.run(given, check=True, capture_output=True, text=True).stdout
        assert said.split() == [str(one) for one in (before, hard, hard, after)]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert most_connections() == min(MOST, (limit - min(96, limit // 4)) // 4)


def test_the_one_that_waits_longest_goes() -> None:
    """The connection that has waited longest for its client is closed, not one that is being answered."""
    hold = ConnectionLimit(3, clock=FakeClock())
    first, second, third, fourth, fifth, sixth = (Held() for _ in range(6))
    assert all(map(hold.has_room, (first, second, third)))
    hold.waits(first, for_client=False)
    hold.waits(second, for_client=True)  # another byte of its request
    with capture_logs() as logs:
        assert hold.has_room(fourth)
        assert [one.dropped for one in (first, second, third)] == [False, True, False]
        hold.waits(third, for_client=False)
        hold.waits(fourth, for_client=False)
        assert not hold.has_room(fifth)
        hold.waits(fifth, for_client=True)  # a connection that is not held has no effect
        hold.waits(fourth, for_client=True)
        assert hold.has_room(sixth)
        assert (fourth.dropped, fifth.dropped) == (True, False)
    assert [line["event"] for line in logs] == ["no room for more HTTP connections"]
    hold.forget(first)
    assert hold.has_room(Held())
    assert not third.dropped


async def test_who_asks_is_answered_whoever_says_nothing() -> None:
    """Silent and idle connections take no room from requests."""
    site = Site()
    site.answer.set()
    async with served(site, 4) as port, AsyncExitStack() as stack:
        for _ in range(3):
            silent = [await opened(port, stack) for _ in range(5)]
            rested = [await opened(port, stack, WHOLE) for _ in range(2)]
            for reader, _writer in rested:
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
            assert await silent[0][0].read() == b""  # closed long before its deadline


async def test_where_all_are_being_answered_the_next_one_is_refused() -> None:
    """When every connection is being answered the next gets 503; afterwards there is room again."""
    site = Site()
    async with served(site, 2) as port, AsyncExitStack() as stack:
        asking = [await opened(port, stack, WHOLE) for _ in range(2)]
        await until(lambda: site.asked == 2, "both requests")
        refused, _ = await opened(port, stack)
        assert (await refused.read()).startswith(b"HTTP/1.1 503 ")
        site.answer.set()
        for reader, _writer in asking:
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        reader, _ = await opened(port, stack, WHOLE)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")


def taken_unread() -> int:
    """How many bytes the system buffers for a client that does not read."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        sending, _ = server.accept()
        with sending:
            sending.settimeout(0.2)
            taken = 0
            with suppress(TimeoutError):
                while True:
                    taken += sending.send(bytes(LARGE))
            return taken


@pytest.mark.parametrize(
    ("parts", "header", "size"),
    [(512, b"", LARGE), (1, b"connection: close\r\n", LARGE), (1, b"connection: close\r\n", None)],
    ids=["written", "closed", "closed with a little left"],
)
async def test_who_takes_nothing_of_its_answer_is_let_go(parts: int, header: bytes, size: int | None) -> None:
    """A client that does not read its answer loses its connection, during the writing or after the close."""
    site = Site(parts, taken_unread() + 32 * 1024 if size is None else size)  # 64 KiB would stop the writing
    site.answer.set()
    async with served(site, 1, stalled_seconds=0.05) as port, AsyncExitStack() as stack:
        silent = stack.enter_context(socket.create_connection(("127.0.0.1", port)))  # nothing reads, as asyncio would
        silent.sendall(WHOLE.replace(b"\r\n\r\n", b"\r\n" + header + b"\r\n"))
        await until(lambda: site.asked == 1, "the request")

        async def answered() -> bool:
            reader, writer = await opened(port, stack, WHOLE)
            line = await reader.readline()
            writer.close()
            return b" 200 " in line

        await until(answered, "a free slot", despite=(ConnectionError,))


async def test_who_takes_nothing_of_its_answer_makes_room() -> None:
    """Clients that do not read their answers take no room from those that do."""
    site = Site(512, LARGE)
    async with served(site, 2) as port, AsyncExitStack() as stack:
        for _ in range(2):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", port)))  # nothing reads
            silent.sendall(WHOLE * 2)  # the second request waits for the first one's answer
        await until(lambda: site.asked == 2, "both requests")
        site.answer.set()

        async def answered() -> bool:
            reader, writer = await opened(port, stack, WHOLE)
            line = await reader.readline()
            writer.close()
            return b" 200 " in line

        await until(answered, "a free slot", despite=(ConnectionError,))


class Waiting:
    """An application whose requests wait: for their body, for an answer that never comes, or for its reader."""

    def __init__(self) -> None:
        self.waiting = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.waiting += 1
        if scope["path"] == "/body":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(LARGE // MIB if scope["path"] == "/large" else 0):
            await send({"type": "http.response.body", "body": bytes(MIB), "more_body": True})
        await asyncio.Event().wait()


async def test_requests_that_are_not_over_at_a_stop_are_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """After the block, requests that still wait are dropped soon, and nothing of it is logged."""
    site, loop = Waiting(), asyncio.get_running_loop()
    asked = [
        b"POST /body HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\nx",
        b"GET /never HTTP/1.1\r\nhost: here\r\n\r\n",
        b"GET /large HTTP/1.1\r\nhost: here\r\n\r\n",
    ]
    async with AsyncExitStack() as clients, patience("the server to stop"):
        async with listening(site, "127.0.0.1", 0, clock=Clock(), most=8) as url:
            for said in asked:
                await opened(int(url.rpartition(":")[2]), clients, said)
            await until(lambda: site.waiting == len(asked), "all requests to wait")
            stopped = loop.time()
        assert loop.time() - stopped < GRACE_SECONDS + 1.5 * strain()
    assert [line for line in caplog.records if line.levelname in {"WARNING", "ERROR"}] == []


async def _empty(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def test_the_date_of_an_answer_is_that_of_its_moment() -> None:
    """The header ``Date`` goes on while nothing else happens at the server."""
    async with AsyncExitStack() as clients, listening(_empty, "127.0.0.1", 0, clock=Clock(), most=8) as url:
        reader, writer = await opened(int(url.rpartition(":")[2]), clients)
        dates: set[bytes] = set()

        async def went_on() -> bool:
            writer.write(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            dates.add(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"date:")))
            return len(dates) > 1

        await until(went_on, "another date", every=0.2)
