"""Laws of :mod:`poller.web.app` and the probes: what every request and every answer has in common."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import aiohttp
import pytest
from fakeredis import FakeAsyncRedis
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from structlog.testing import capture_logs

from poller.app import run
from poller.clock import Clock
from poller.config.load import load
from poller.config.settings import ListenAddress
from poller.daemon.health import Readiness, StoreMonitor
from poller.errors import ConfigurationError
from poller.http.server import listener, listening
from poller.redis.health import ServerCheck
from poller.sandbox.data import seed
from poller.sandbox.history import History
from poller.sandbox.server import serving
from poller.web.app import LARGEST_BODY, application, serve
from poller.web.health import probe_routes
from tests.daemon.test_health import Hours, now
from tests.harness.clock import StubClock
from tests.harness.waiting import patience, turns, until, within
from tests.receiver import receiving
from tests.servers import free_port
from tests.web.served import TOKEN
from tests.web.sse import Parser, following

Asking = Callable[..., "aiohttp.client._RequestContextManager"]


@pytest.fixture
def watch() -> StoreMonitor:
    return StoreMonitor("warn", clock=StubClock(monotonic=lambda: 0.0))


@pytest.fixture
def readiness(watch: StoreMonitor) -> Readiness:
    return Readiness(watch)


async def echo(request: Request) -> Response:
    return PlainTextResponse(str(len(await request.body())), headers={"Content-Security-Policy": "its own"})


@pytest.fixture
async def ask(readiness: Readiness) -> AsyncIterator[Asking]:
    site = application(*probe_routes(readiness), Route("/echo", echo, methods=["POST"]))
    async with listening(site, "127.0.0.1", 0, clock=Clock()) as url, aiohttp.ClientSession() as http:
        yield lambda method, path, **more: http.request(method, url + path, **more)


async def test_alive_before_anything_else(ask: Asking) -> None:
    """While the store has not answered yet /livez is 200 and /readyz is 503 with a JSON reason."""
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
    ask: Asking, watch: StoreMonitor, readiness: Readiness
) -> None:
    """/readyz is 503 with a reason in each unready phase; a failing feed or subscription is listed but is no reason."""
    reasons = []
    readiness.delivering(lambda: {"hook": "status 502"})
    async with FakeAsyncRedis() as client:
        error = ServerCheck("memory", "error", "full")
        steps: tuple[Callable[[], None], ...] = (
            lambda: watch.attach(client, [ServerCheck("aof", "warning", "off")]),
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
    starting, stopping = ("starting", "this process has not begun its work yet"), "this process is stopping"
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
    """Found and missing pages have security headers, a route's own header wins, and no header names the server."""
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
    """HEAD is answered as GET without a body; an unknown method gets 405 with the allowed ones."""
    async with ask("HEAD", "/livez") as answer:
        assert (answer.status, await answer.read()) == (200, b"")
        assert int(answer.headers["Content-Length"]) > 0
    async with ask("DELETE", "/readyz") as answer:
        assert answer.status == 405
        assert {name.strip() for name in answer.headers["Allow"].split(",")} == {"GET", "HEAD"}


async def test_a_body_has_an_end(ask: Asking) -> None:
    """A body of the maximum size is accepted; a larger one gets 413, with a declared length or without."""

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
    """An unknown path gets 404, never a redirect to the host that the request names."""
    async with ask("GET", "/livez/", headers={"host": "evil.example"}, allow_redirects=False) as answer:
        assert (answer.status, answer.headers.get("Location")) == (404, None)


# Laws of :mod:`poller.web.app`: an address in use is retried and logged once.


def site() -> object:
    return application(*probe_routes(Readiness(StoreMonitor("warn", clock=StubClock(now=now, monotonic=lambda: 0.0)))))


async def until_served(url: str) -> None:
    async with aiohttp.ClientSession() as http:

        async def look() -> bool:
            async with http.get(url) as answer:
                assert answer.status == 200
            return True

        await until(look, "an answer", despite=(aiohttp.ClientConnectionError,))


async def test_the_second_takes_over_when_the_first_goes() -> None:
    """While the address is in use one warning with the remedy is logged; once it is free the service listens."""
    until, hours = asyncio.Event(), Hours()
    port = free_port()  # nobody else takes it in between
    with listener("127.0.0.1", port) as first, capture_logs() as logs:
        serving = asyncio.create_task(
            serve(site(), ListenAddress("127.0.0.1", port), until=until, clock=StubClock(wait=hours.pause))
        )
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
    """An address of another machine is a configuration error."""
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1"):
        await serve(site(), ListenAddress("192.0.2.1", 80), until=asyncio.Event(), clock=Clock())


# Law: a running daemon carries out commands sent over HTTP, and its end also ends the answers of event readers.

SOON = 8.0  # seconds; a supervisor kills after ten
FEED = "acme/contractTypes"


def configuration(directory: Path, *, source: str, store: str, bind: str) -> Path:
    token = directory / "admin"
    token.write_text(TOKEN, "utf-8")
    token.chmod(0o600)
    file = directory / "poller.toml"
    file.write_text(
        f'redis = {{ url = "{store}" }}\nhttp = {{ bind = "{bind}", admin_token_file = "{token}" }}\n'
        f'[[sources]]\nname = "acme"\nbase_url = "{source}"\nauth = {{ token_env = "TOKEN" }}\n'
        '[[sources.feeds]]\nresource = "contractTypes"\ninterval = "200ms"\n',
        "utf-8",
    )
    return file


async def test_a_running_daemon(tmp_path: Path, store_url: str) -> None:
    """A daemon streams events, delivers to a new subscription, carries out a command, and ends its streams."""
    history, rng = History(), Random(1)
    seed(history, rng, records=20, at=datetime.now(UTC))
    bind = f"127.0.0.1:{free_port()}"
    stop = asyncio.Event()
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with (
        serving(history, rng=rng, changes_per_second=0) as source,
        receiving() as sink,
        aiohttp.ClientSession(f"http://{bind}", headers=headers) as http,
    ):
        settings = load(configuration(tmp_path, source=source, store=store_url, bind=bind), {})
        with capture_logs() as logs:
            daemon = asyncio.create_task(run(settings, {"TOKEN": "sandbox"}, stop=stop, clock=Clock()))

            async def followed() -> aiohttp.ClientResponse | None:
                answer = await http.get("/events?from=earliest")
                return answer if answer.status == 200 else None

            answer = await until(followed, "the daemon", despite=(aiohttp.ClientConnectionError,))
            messages = following(answer, Parser())
            async with patience("an event"):
                event = json.loads((await anext(messages)).data)
            assert event["data"]["cause"] == "baseline"

            wanted = {"sink": sink.url, "config": {"start": "earliest", "allow_hosts": ["127.0.0.1"]}}
            async with http.post("/subscriptions", json=wanted) as made:
                assert made.status == 201
            await sink.received(1)

            async def ordered() -> bool:
                async with http.post(f"/feeds/{FEED}/resync") as order:
                    return order.status in {200, 202} and (await order.json())["outcome"] in {"begun", "done"}

            await until(ordered, "the command to be carried out")
            stop.set()
            async with patience("the end of the events"):
                async for _ in messages:
                    pass
            await within(daemon, SOON)
    assert not [line for line in logs if line["log_level"] in {"error", "critical"}]
