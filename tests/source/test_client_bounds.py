"""Laws of :mod:`poller.source.client`, over real sockets: limits of an exchange, and secrets that stay hidden."""

from __future__ import annotations

import asyncio
import gc
import gzip
import os
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs
from trustme import CA

from poller.errors import SourceNonsense, SourceUnavailable
from poller.http.transport import Transport
from poller.limits import ConnectionBudget
from poller.source.client import ATTEMPTS, ClientLimits
from tests.harness.waiting import strain
from tests.source.api import Flying, Request, http, serving
from tests.source.clients import TOKEN, Time, client_of, failure_of


@pytest.mark.parametrize("where", ["before the head", "in the head", "in the body"])
async def test_a_server_that_drips_is_given_up_in_time(where: str) -> None:
    """The timeout covers the whole exchange: bytes that keep arriving do not prolong it."""
    loop = asyncio.get_running_loop()

    async def drip(_: Request, writer: asyncio.StreamWriter) -> None:
        head = {"before the head": b"", "in the head": b"HTTP/1.1 200 OK\r\nX: "}.get(where, http(200, length=10**6))

        def drop() -> None:
            if not writer.is_closing() and where != "before the head":
                writer.write(b"y")
                loop.call_later(0.01, drop)

        writer.write(head)
        drop()
        await asyncio.Event().wait()

    async with serving(drip) as api, client_of(api.url, limits=ClientLimits(timeout=timedelta(seconds=0.4))) as client:
        started = loop.time()
        failed = await failure_of(client)
        assert isinstance(failed, SourceUnavailable)
        assert "no complete answer within 0.4 s" in str(failed)
        assert 1.2 <= loop.time() - started < 6 * strain()
        assert len(api.requests) == ATTEMPTS


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip bomb"])
async def test_a_body_beyond_the_limit_is_refused(packed: bool) -> None:
    """A decoded body above ``max_page_bytes`` is refused without a retry; one of exactly the limit is read."""
    limits = ClientLimits(max_page_bytes=100_000)

    def answer(size: int) -> bytes:
        body = b"0" * size
        return http(200, gzip.compress(body), "Content-Encoding: gzip") if packed else http(200, body)

    async with serving([answer(100_000), answer(100_001), answer(20_000_000)]) as api:
        async with client_of(api.url, limits=limits) as client:
            assert len(await client.get("/x")) == 100_000
            for _ in range(2):
                failed = await failure_of(client)
                assert isinstance(failed, SourceNonsense)
                assert "max_page_bytes" in str(failed)
        assert len(api.requests) == 3


async def test_no_cookie_is_kept() -> None:
    """Cookies of an answer are not sent."""
    async with serving(http(200, b"", "Set-Cookie: a=b; Path=/")) as api, client_of(api.url) as client:
        for _ in range(2):
            await client.get("/x")
        assert ["cookie" in request.headers for request in api.requests] == [False, False]


async def test_nothing_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither proxies nor netrc of the environment are used."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with serving(http(502)) as proxy, serving(http(200, b"direct")) as api:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with client_of(api.url, credential=None) as client:
            assert await client.get("/x") == b"direct"
        assert "authorization" not in api.requests[0].headers
        assert proxy.requests == []


async def test_the_configured_proxy_is_used() -> None:
    """A source's own proxy gets the request, with the whole URL as the target."""
    async with serving(http(200, b"by proxy")) as proxy:
        async with client_of("http://api.invalid", transport=Transport(proxy=proxy.url)) as client:
            assert await client.get("/x") == b"by proxy"
        assert proxy.requests[0].target == "http://api.invalid/x"


async def test_no_more_requests_than_allowed_are_in_flight() -> None:
    """Requests in flight never exceed the limit."""
    flying = Flying(2)
    async with serving(flying.answer) as api, client_of(api.url, limits=ClientLimits(concurrency=2)) as client:
        await asyncio.gather(*(client.get("/x") for _ in range(8)))
    assert flying.most == 2


async def test_sources_share_the_connections_of_a_process() -> None:
    """Each source has an even share of the connections, at most its own limit, and all of it again when others end."""
    budget, first, second, alone = ConnectionBudget(6, "sources"), Flying(3), Flying(2), Flying(4)
    present = first

    async def answer(*_: object) -> bytes:
        return await present.answer()

    async with (
        serving(answer) as api,
        serving(second.answer) as small,
        client_of(api.url, limits=ClientLimits(concurrency=4)) as client,
        client_of(small.url, limits=ClientLimits(concurrency=2)) as other,
    ):
        with capture_logs() as said, budget.shared_by(client):
            with budget.shared_by(other):
                await asyncio.gather(*(one.get("/x") for one in (client, other) for _ in range(6)))
            present = alone
            await asyncio.gather(*(client.get("/x") for _ in range(8)))
    assert (first.most, second.most, alone.most) == (3, 2, 4)
    assert [(line["event"], line["sources"], line["connections_each"]) for line in said] == [("few descriptors", 2, 3)]


async def test_requests_start_no_faster_than_the_rate() -> None:
    """The n-th request starts no earlier than n-1 intervals after the first, retries included."""
    answers = [http(503), *[http(200)] * 6]
    async with serving(answers) as api, client_of(api.url, limits=ClientLimits(rate=10, concurrency=8)) as client:
        await asyncio.gather(*(client.get("/x") for _ in range(6)))
        starts = [request.at for request in api.requests]
    assert len(starts) == 7
    assert starts[-1] - starts[0] >= 6 / 10 - 0.09  # less than a turn


@pytest.mark.parametrize("status", [400, 401, 403, 503])
async def test_a_token_that_is_echoed_is_hidden(status: int) -> None:
    """An error shows no part of a token that the API echoes, even if the message is cut."""
    paddings = [*range(150, 206, 4), *range(760, 806, 4)]
    bodies = [b"y" * (padding // 2) + b" " * (padding - padding // 2) + TOKEN.encode() for padding in paddings]
    bodies += [b"y" * padding + b" Bearer " + TOKEN.encode() for padding in paddings]
    time = Time()

    async def answer(request: Request, _: asyncio.StreamWriter) -> bytes:
        return http(status, bodies[int(request.path[1:])])

    async with serving(answer) as api, client_of(api.url, time) as client:
        for index in range(len(bodies)):
            assert f"answered {status}" in str(await failure_of(client, f"/{index}"))
            time.pass_by(100)  # else the open circuit would send no further request


async def test_a_configured_header_that_is_echoed_is_hidden() -> None:
    """An error hides the echoed value of a source's header, which may be a key; short values are shown."""
    key = TOKEN[::-1]
    transport = Transport(headers=(("X-Api-Key", key), ("X-Tenant", "hr")))
    for body in (b"bad key " + key.encode() + b" of hr", b"z" * 190 + key.encode()):
        async with serving([http(400, body)]) as api, client_of(api.url, transport=transport) as client:
            said = str(await failure_of(client))
            assert api.requests[0].headers["x-api-key"] == key
        assert "answered 400" in said
        assert key[:4] not in said
        assert ("of hr" in said) == (b"of hr" in body)


async def test_a_cancelled_request_frees_its_place() -> None:
    """A cancelled request frees its slot."""
    asked = asyncio.Event()

    async def answer(request: Request, _: asyncio.StreamWriter) -> bytes:
        if request.path == "/hangs":
            asked.set()
            await asyncio.Event().wait()
        return http(200, b"ok")

    async with serving(answer) as api, client_of(api.url, limits=ClientLimits(concurrency=1)) as client:
        hanging = asyncio.create_task(client.get("/hangs"))
        await asked.wait()
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        assert hanging.cancelled()
        assert await client.get("/x") == b"ok"


async def test_clients_with_replaced_certificates_do_not_add_up(tmp_path: Path) -> None:
    """However often the certificates are replaced, the client before the present one is the only other open one."""
    file = tmp_path / "ca.pem"
    CA().cert_pem.write_to_path(str(file))

    def opened() -> int:
        return sum(type(one) is httpx.AsyncClient and not one.is_closed for one in gc.get_objects())

    before = opened()
    async with serving(http(200, b"ok")) as api, client_of(api.url, transport=Transport(ca_file=file)) as client:
        for second in range(5):
            os.utime(file, (second, second))
            assert await client.get("/x") == b"ok"
        assert opened() <= before + 2
    assert opened() <= before
