"""Laws of :mod:`poller.service.web.application` and the probes: what every answer and every request has in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import aiohttp
import pytest
from fakeredis import FakeAsyncRedis
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from poller.http.listening import listening
from poller.service.readiness import Readiness
from poller.service.watching import StoreWatch
from poller.service.web.application import LARGEST_BODY, application
from poller.service.web.probes import probe_routes
from poller.store.checks import Finding
from tests.harness.waiting import turns

Asking = Callable[..., "aiohttp.client._RequestContextManager"]


@pytest.fixture
def watch() -> StoreWatch:
    return StoreWatch("warn", now=lambda: datetime.now(UTC), clock=lambda: 0.0)


@pytest.fixture
def readiness(watch: StoreWatch) -> Readiness:
    return Readiness(watch)


async def echo(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())), headers={"Content-Security-Policy": "its own"})


@pytest.fixture
async def ask(readiness: Readiness) -> AsyncIterator[Asking]:
    site = application(*probe_routes(readiness), Route("/echo", echo, methods=["POST"]))
    async with listening(site, "127.0.0.1", 0) as url, aiohttp.ClientSession() as http:
        yield lambda method, path, **more: http.request(method, url + path, **more)


async def test_alive_before_anything_else(ask: Asking) -> None:
    """/livez is 200 and /readyz 503 while the store has not answered; the reason is JSON."""
    async with ask("GET", "/livez") as answer:
        assert (answer.status, await answer.json()) == (200, {"live": True})
    async with ask("GET", "/readyz") as answer:
        assert answer.status == 503
        assert await answer.json() == {
            "ready": False,
            "reasons": [{"name": "store", "text": "has not answered yet"}],
            "failing": {},
            "store": [],
            "subscriptions": {},
        }


async def test_ready_from_the_start_of_the_work_to_its_end(
    ask: Asking, watch: StoreWatch, readiness: Readiness
) -> None:
    """Each phase has its reason, an error of the store too; a feed or subscription that fails is named and is none."""
    reasons = []
    readiness.delivering(lambda: {"hook": "status 502"})
    async with FakeAsyncRedis() as client:
        error = Finding("error", "memory", "full")
        steps: tuple[Callable[[], None], ...] = (
            lambda: watch.attach(client, [Finding("warning", "aof", "off")]),
            readiness.started,
            lambda: readiness.round("acme/a", "status 500"),
            lambda: watch.attach(client, [error]),
            lambda: watch.attach(client, []),
            lambda: watch.failed("acme/a", "refused"),
            readiness.stopping,
        )
        for step in steps:
            step()
            async with ask("GET", "/readyz") as answer:
                report = await answer.json()
                assert (answer.status == 200) is report["ready"] is (report["reasons"] == [])
                reasons.append([(one["name"], one["text"]) for one in report["reasons"]])
                if step is steps[2]:
                    assert (report["failing"], report["subscriptions"]) == (
                        {"acme/a": "status 500"},
                        {"hook": "status 502"},
                    )
                    assert report["store"] == [{"name": "aof", "severity": "warning", "text": "off"}]
    starting, stopping = ("starting", "this process has not begun its work yet"), "this process was told to stop"
    assert reasons == [
        [starting],
        [],
        [],
        [("memory", "full")],
        [],
        [("store", "refused")],
        [("stopping", stopping)],
    ]


async def test_every_answer_is_guarded(ask: Asking) -> None:
    """Security headers on what is found and what is not; a route's own come first; nothing says what serves."""
    for path, status in (("/livez", 200), ("/none", 404), ("/readyz", 503)):
        async with ask("GET", path) as answer:
            assert answer.status == status
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert "Server" not in answer.headers
    async with ask("POST", "/echo") as answer:
        assert answer.headers["Content-Security-Policy"] == "its own"


async def test_head_and_other_methods(ask: Asking) -> None:
    """HEAD is answered as GET, without the body; what a route does not know with 405, and what it knows."""
    async with ask("HEAD", "/livez") as answer:
        assert (answer.status, await answer.read()) == (200, b"")
        assert int(answer.headers["Content-Length"]) > 0
    async with ask("DELETE", "/readyz") as answer:
        assert answer.status == 405
        assert {name.strip() for name in answer.headers["Allow"].split(",")} == {"GET", "HEAD"}


async def test_a_body_has_an_end(ask: Asking) -> None:
    """One that is as large as it may be is taken; one that is larger is refused, whether it says so or goes on."""

    async def in_pieces(size: int) -> AsyncIterator[bytes]:
        for _ in range(size // 1024):
            yield b"." * 1024
            await turns()

    async with ask("POST", "/echo", data=b"." * LARGEST_BODY) as answer:
        assert await answer.text() == str(LARGEST_BODY)
    async with ask("POST", "/echo", data=in_pieces(LARGEST_BODY)) as answer:
        assert await answer.text() == str(LARGEST_BODY)
    for body in (b"." * (LARGEST_BODY + 1), in_pieces(LARGEST_BODY + 1024)):
        async with ask("POST", "/echo", data=body) as answer:
            assert answer.status == 413
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_nobody_is_led_to_a_host_that_the_request_has_named(ask: Asking) -> None:
    """Law: a path that is not there is not there, and no redirect is made of it."""
    async with ask("GET", "/livez/", headers={"host": "evil.example"}, allow_redirects=False) as answer:
        assert (answer.status, answer.headers.get("Location")) == (404, None)
