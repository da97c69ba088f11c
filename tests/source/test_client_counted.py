"""Laws of :mod:`poller.source.client`: every request is counted once, by its outcome."""

from __future__ import annotations

import asyncio
import gzip
from datetime import timedelta

import pytest

from poller.source.client import ClientLimits
from poller.telemetry.metrics import SourceSeries, counted
from tests.servers import free_port
from tests.source.api import http, serving
from tests.source.clients import Time, client_of, failure_of
from tests.telemetry.series import grown, value

LIMITS = ClientLimits(max_page_bytes=100)
SHORT = ClientLimits(timeout=timedelta(seconds=0.3))


def counts(source: str) -> dict[str, float]:
    """How many requests had each outcome."""
    ways = ("200", "404", "429", "503", "connect", "timeout", "body", "other")
    found = {way: grown("poller_source_requests_total", source=source, status=way) for way in ways}
    return {way: n for way, n in found.items() if n}


@pytest.mark.parametrize(
    ("answer", "way", "times"),
    [
        (http(200, b"ok"), "200", 1),
        (http(404), "404", 1),
        (http(299), "other", 1),
        (http(200, b"cut", length=50), "body", 3),
        (http(200, b"x" * 101), "body", 1),
        (http(200, b"no gzip", "Content-Encoding: gzip"), "body", 3),
        (http(200, b"x", "Content-Encoding: br"), "body", 1),
        (b"no HTTP at all\r\n\r\n", "other", 3),
    ],
)
async def test_each_end_has_a_word(answer: bytes, way: str, times: int) -> None:
    """A request counts by its status, or by why the answer is unusable: cut, too large, or wrongly encoded."""
    source = f"{way}-{answer[:40]!r}-{len(answer)}"
    async with serving(answer) as api, client_of(api.url, limits=LIMITS, series=SourceSeries(source)) as client:
        if way == "200":
            await client.get("/x")
        else:
            await failure_of(client)
    assert counts(source) == {way: times}
    assert grown("poller_source_request_duration_seconds_count", source=source) == times


async def test_no_connection_and_no_answer_in_time() -> None:
    """A failed connection and a timeout are counted apart, for each attempt."""
    async with client_of(f"http://127.0.0.1:{free_port()}", limits=LIMITS, series=SourceSeries("gone")) as client:
        await failure_of(client)
    assert counts("gone") == {"connect": 3}

    hangs = asyncio.Event()

    async def never(*_: object) -> bytes:
        await hangs.wait()
        return b""

    async with serving(never) as api, client_of(api.url, limits=SHORT, series=SourceSeries("slow")) as client:
        await failure_of(client, patience=timedelta(seconds=0.01))
        hangs.set()
    assert counts("slow") == {"timeout": 1}


async def test_a_source_that_asks_for_rest_is_said_to_have_it() -> None:
    """A source counts as paused while it asks for a pause; requests and retries count for their round."""
    time = Time()
    answers = [http(429, b"", "Retry-After: 7"), http(200, gzip.compress(b"ok"), "Content-Encoding: gzip")]
    async with serving(answers) as api, client_of(api.url, time, series=SourceSeries("busy")) as client:
        assert value("poller_source_paused", source="busy") == 0
        with counted() as costs:
            await failure_of(client, patience=timedelta(seconds=1))
        assert value("poller_source_paused", source="busy") == 1
        assert (costs.requests, costs.retries) == (1, 0)
        time.pass_by(8)
        assert value("poller_source_paused", source="busy") == 0
        with counted() as costs:
            assert await client.get("/x") == b"ok"
        assert (costs.requests, costs.retries, costs.received) == (1, 0, len(gzip.compress(b"ok")))
    assert counts("busy") == {"429": 1, "200": 1}
    assert value("poller_source_paused", source="busy") is None


async def test_what_is_asked_again_is_a_retry() -> None:
    """Of three requests for one page, two count as retries."""
    async with serving([http(503), http(503), http(200, b"ok")]) as api, client_of(api.url) as client:
        with counted() as costs:
            await client.get("/x")
    assert (costs.requests, costs.retries, costs.received) == (3, 2, 2)
