"""Laws of :mod:`poller.source.gate`, over real sockets: when a source is asked, and when it is left alone."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from poller.errors import SourceRefused, SourceUnavailable
from poller.source.circuit import THRESHOLD
from poller.source.client import ATTEMPTS, ApiClient, Limits
from tests.source.api import Request, http, serving
from tests.source.clients import Time, client_of, failure_of

SECOND = timedelta(seconds=1)
OK = http(200, b"ok")
BUSY = http(429, b"slow down", "Retry-After: 20")


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_pause_is_waited_for_where_there_is_patience(status: int) -> None:
    """What the API asks for is kept to, and then the request is made again: one attempt of several."""
    time = Time()
    answers = [http(status, b"", "Retry-After: 20"), OK]
    async with serving(answers) as api, client_of(api.url, time) as client:
        assert await client.get("/x") == b"ok"
        assert (time.slept, len(api.requests)) == ([20.0], 2)


async def test_who_has_less_patience_fails_at_once_and_says_until_when() -> None:
    """Neither the feed that was told nor any other asks in the pause; after it all do."""
    time = Time()
    async with serving([BUSY, OK]) as api, client_of(api.url, time) as client:
        until = "the API asked to be left alone until 2025-03-01T12:00:20Z"
        told = await failure_of(client, "/one", patience=5 * SECOND)
        assert isinstance(told, SourceUnavailable)
        assert str(told) == f"GET /one: the API answered 429: slow down (1 attempt); {until}"
        time.pass_by(5)
        other = await failure_of(client, "/other", patience=5 * SECOND)
        assert isinstance(other, SourceUnavailable)
        assert str(other) == f"GET /other: not asked; {until}"
        assert (time.slept, len(api.requests)) == ([], 1)
        time.pass_by(15)
        assert await client.get("/other", patience=5 * SECOND) == b"ok"


@pytest.mark.parametrize("limits", [Limits(concurrency=1), Limits(rate=8)], ids=["place", "rate"])
async def test_nobody_who_was_waiting_for_a_turn_starts_inside_a_pause(limits: Limits) -> None:
    """The first of many is told to wait: all the others wait with it, and none has asked before the time is over."""
    time, over, waiting, changed = Time(), asyncio.Event(), 0, asyncio.Event()

    async def sleep(seconds: float) -> None:
        nonlocal waiting
        waiting += 1
        changed.set()
        await over.wait()
        await time.sleep(seconds)

    async def feed(path: str) -> bytes:
        try:
            return await client.get(path)
        finally:
            changed.set()

    async with serving([BUSY, OK]) as api, client_of(api.url, time, limits=limits, sleep=sleep) as client:
        feeds = [asyncio.create_task(feed(f"/{index}")) for index in range(6)]
        while waiting + sum(task.done() for task in feeds) < 6:
            changed.clear()
            await changed.wait()
        assert (waiting, len(api.requests)) == (6, 1)
        over.set()
        assert await asyncio.gather(*feeds) == [b"ok"] * 6
        assert len(api.requests) == 7


async def test_a_pause_ends_the_attempts_as_failures_do() -> None:
    """An API that asks for a second's pause again and again is asked so often, within the patience, and no more."""
    time = Time()
    async with serving(http(429)) as api, client_of(api.url, time) as client:
        failed = await failure_of(client)
        assert f"({ATTEMPTS} attempts); the API asked to be left alone until" in str(failed)
        assert (time.slept, len(api.requests)) == ([1.0] * (ATTEMPTS - 1), ATTEMPTS)


async def test_a_later_and_shorter_pause_does_not_shorten_an_earlier_one() -> None:
    """Two answers under way at once: the longer pause counts, though it came first."""
    time, both, told = Time(), asyncio.Barrier(2), asyncio.Event()

    async def answer(request: Request, _: Any) -> bytes:
        await both.wait()
        if request.path == "/long":
            return BUSY
        await told.wait()
        return http(429)

    async def feed(path: str) -> None:
        await failure_of(client, path, patience=SECOND / 2)
        told.set()

    async with serving(answer) as api, client_of(api.url, time) as client:
        await asyncio.gather(feed("/long"), feed("/short"))
        time.pass_by(19)
        assert "not asked" in str(await failure_of(client, patience=SECOND / 2))
        assert len(api.requests) == 2


async def broken(client: ApiClient) -> None:
    """Let a source fail until its circuit is open."""
    for feed in range(THRESHOLD):
        await failure_of(client, f"/{feed}", patience=SECOND / 10)


async def test_failures_of_any_feeds_open_the_circuit() -> None:
    """From then on nobody asks, and the error says since when and until when; the probe goes as soon as it is due."""
    time = Time()
    async with serving(http(500)) as api, client_of(api.url, time) as client:
        await broken(client)
        time.pass_by(0.75)
        failed = await failure_of(client)
        assert isinstance(failed, SourceUnavailable)
        since = "the API has not answered since 2025-03-01T12:00:00Z"
        assert str(failed) == f"GET /x: not asked; {since}; next probe in 0.2 s"
        assert len(api.requests) == THRESHOLD
        for count, pause in enumerate((0.25, 2, 4, 8, 16, 32, 60, 60), start=1):
            time.pass_by(pause - 0.01)
            await failure_of(client)
            assert len(api.requests) == THRESHOLD + count - 1
            time.pass_by(0.01)
            assert "(1 attempt)" in str(await failure_of(client))
            assert len(api.requests) == THRESHOLD + count


@pytest.mark.parametrize("answer", [OK, http(404), http(429)], ids=["ok", "refused", "busy"])
async def test_any_answer_to_the_probe_closes_the_circuit(answer: bytes) -> None:
    """Good or not, an answer is one; the next failures are tried again as ever."""
    time = Time()
    async with serving([*[http(500)] * THRESHOLD, answer, http(500)]) as api, client_of(api.url, time) as client:
        await broken(client)
        time.pass_by(1)
        await asyncio.gather(client.get("/x", patience=SECOND), return_exceptions=True)
        time.pass_by(1)
        await failure_of(client)
        assert len(api.requests) == THRESHOLD + 1 + ATTEMPTS


async def test_one_probe_at_a_time_goes_through() -> None:
    """Of many that come when it is due one is sent; the others are told; called off, it leaves its place to another."""
    time, asked = Time(), asyncio.Event()

    async def answer(request: Request, _: Any) -> bytes:
        if request.path == "/probe":
            asked.set()
            await asyncio.Event().wait()
        return OK if request.path == "/x" else http(500)

    async with serving(answer) as api, client_of(api.url, time) as client:
        await broken(client)
        time.pass_by(1)
        probe = asyncio.create_task(client.get("/probe"))
        await asked.wait()
        time.pass_by(100)
        assert str(await failure_of(client)).endswith("a probe is on its way")
        assert len(api.requests) == THRESHOLD + 1
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        assert await client.get("/x") == b"ok"


async def test_an_api_that_refuses_or_is_busy_is_there() -> None:
    """However often it says no, it is asked."""
    time = Time()
    for answer in (http(403), http(429)):
        async with serving(answer) as api, client_of(api.url, time) as client:
            for _ in range(3 * THRESHOLD):
                assert isinstance(await failure_of(client, patience=SECOND), SourceRefused | SourceUnavailable)
                time.pass_by(1)
            assert len(api.requests) == 3 * THRESHOLD
