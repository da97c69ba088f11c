"""Laws of :mod:`poller.source.exchange` that need connections which are kept, and of repetitions on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest

from poller.source.client import ATTEMPTS, ApiClient, Limits
from tests.harness.waiting import limited
from tests.source.api import Flying, Request, http, serving
from tests.source.clients import Time, client_of, failure_of

SECOND = timedelta(seconds=1)
KEPT = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Keeping:
    """A server that keeps connections: the start of each request, by the loop's clock, and of which connection."""

    def __init__(self, answered: int) -> None:
        self.starts: list[tuple[int, float]] = []
        self._answered = answered
        self._connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """So many requests of each connection are answered; then it is closed in answer to a request."""
        self._connections += 1
        connection, left = self._connections, self._answered
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    self.starts.append((connection, asyncio.get_running_loop().time()))
                    if not left:
                        return
                    left -= 1
                    writer.write(KEPT)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def keeping(answered: int, time: Time, limits: Limits) -> AsyncIterator[tuple[Keeping, ApiClient]]:
    keeps = Keeping(answered)
    server = await asyncio.start_server(keeps, "127.0.0.1", 0)
    async with client_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", time, limits=limits) as client:
        yield keeps, client
    server.close()
    await server.wait_closed()


async def test_a_kept_connection_that_was_closed_costs_no_pause_but_its_turn() -> None:
    """Asked again at once on a new connection, within the rate: nothing repeats a request past it."""
    time = Time()
    async with keeping(1, time, Limits(rate=25)) as (keeps, client):
        for _ in range(3):
            assert await client.get("/x") == b"ok"
    assert [connection for connection, _ in keeps.starts] == [1, 1, 2, 2, 3]
    assert set(time.slept) == {0.0}
    assert keeps.starts[-1][1] - keeps.starts[0][1] >= 4 / 25 - 0.02


async def test_a_server_that_only_closes_is_asked_as_often_as_there_are_attempts() -> None:
    """Once at once, then with pauses; no request beyond those that the policy counts."""
    time = Time()
    async with keeping(0, time, Limits()) as (keeps, client):
        assert f"({ATTEMPTS} attempts)" in str(await failure_of(client))
    assert len(keeps.starts) == ATTEMPTS
    assert time.slept == [0.0, 0.5]


@pytest.mark.parametrize("patience", [timedelta(0), SECOND / 10, SECOND / 4])
async def test_no_attempt_begins_when_the_patience_is_over(patience: timedelta) -> None:
    """A feed that comes again sooner than the pause ends does not wait for it."""
    time = Time()
    async with serving(http(500)) as api, client_of(api.url, time) as client:
        assert "(1 attempt)" in str(await failure_of(client, patience=patience))
        assert (len(api.requests), time.slept) == (1, [])


async def test_a_repetition_is_broken_off_when_the_patience_is_over() -> None:
    """The first attempt has its whole timeout; a further one ends with the patience, in the error of the first."""
    hanging = asyncio.Event()

    async def answer(_: Request, __: asyncio.StreamWriter) -> bytes | None:
        if len(api.requests) == 1:
            return http(500, b"first")
        hanging.set()
        await asyncio.Event().wait()
        return None

    async with serving(answer) as api, client_of(api.url, limits=Limits(timeout=60 * SECOND)) as client:
        async with limited(2):
            failed = await failure_of(client, patience=SECOND * 0.35)
        assert "answered 500: first (1 attempt)" in str(failed)
        assert hanging.is_set()
        assert len(api.requests) == 2


async def test_two_feeds_of_a_source_share_its_rate() -> None:
    """By the loop's clock: together they ask no faster than one may, repetitions included."""
    async with serving([http(500), http(500), http(200)]) as api:
        async with client_of(api.url, limits=Limits(rate=100, concurrency=8)) as client:
            await asyncio.gather(*(client.get(path) for path in ("/one", "/other") for _ in range(6)))
        starts = [request.at for request in api.requests]
        assert {request.path for request in api.requests} == {"/one", "/other"}
    assert len(starts) == 14
    assert starts[-1] - starts[0] >= 13 / 100 - 0.02


async def test_two_feeds_of_a_source_share_its_places() -> None:
    """Together they have as many requests in flight as one may, and never one more."""
    flying = Flying(2)
    async with serving(flying.answer) as api, client_of(api.url, limits=Limits(concurrency=2)) as client:
        await asyncio.gather(*(client.get(path) for path in ("/one", "/other") for _ in range(4)))
    assert flying.most == 2
