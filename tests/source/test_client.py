"""Laws of :mod:`poller.source.client`, over real sockets: what is sent, and what each answer leads to."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from poller.credentials.bearer import FileToken
from poller.errors import ConfigurationError, CredentialUnusable, SourceRefused, SourceUnavailable
from poller.http.transport import Transport
from poller.source.client import ATTEMPTS, ApiClient
from tests.source.api import http, serving
from tests.source.clients import TOKEN, Time, client_of, failure_of, keep


async def test_a_request_is_what_the_reference_asks_for() -> None:
    """GET below the base URL, with the bearer token, JSON accepted, the source's headers, and who is asking."""
    async with (
        serving(http(200, b'{"results":[]}')) as api,
        client_of(api.url + "/v1", transport=Transport(headers=(("X-Tenant", "t"),))) as client,
    ):
        assert await client.get("/contractTypes") == b'{"results":[]}'
        assert api.requests[0].target == "/v1/contractTypes"
        headers = api.requests[0].headers
        assert headers["authorization"] == f"Bearer {TOKEN}"
        assert headers["accept"] == "application/json"
        assert headers["user-agent"].startswith("poller/")
        assert headers["x-tenant"] == "t"


async def test_parameters_survive_the_wire() -> None:
    """Tokens are opaque: whatever is in them, the server reads exactly that, in order, repeated names too."""
    chance = Random(11)
    alphabet = "aZ09+/=&?#% %2B%20;,:@!$'()*[]{}|\\^`~\"<>é\u4e2d\U0001f600\u00a0"
    nasty = ["a+b/c==", "&x=1", " ", "%2B", "%", "#", "é", "a b", "%zz", "+", "[]", "..", "\U0001f600", ""]
    tokens = nasty + ["".join(chance.choices(alphabet, k=12)) for _ in range(40)]
    async with serving(http(200)) as api, client_of(api.url) as client:
        for token in tokens:
            params = (("fields[]", "id"), ("fields[]", token), ("pageToken", token))
            await client.get("/x", params)
            assert api.requests[-1].params == list(params)
            assert api.requests[-1].path == "/x"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 412, 422, 204, 301, 302, 307])
async def test_a_refusal_is_final_and_says_its_status(status: int) -> None:
    """What asking again does not change is asked once; the message has the status and the body's beginning."""
    body = b"no \n\x00such\tthing " + b"y" * 1000 if status != 204 else b""
    async with serving(http(status, body, "Location: /elsewhere")) as api, client_of(api.url) as client:
        refused = await failure_of(client)
        assert isinstance(refused, SourceRefused)
        assert refused.status == status
        assert f"GET /x: the API answered {status}" in str(refused)
        assert ("no such thing" in str(refused)) == bool(body)
        assert ("the environment variable TOKEN" in str(refused)) == (status == 401)
        assert [request.path for request in api.requests] == ["/x"]


@pytest.mark.parametrize("status", [408, 425, 500, 502, 503, 504])
async def test_a_transient_failure_is_tried_again_with_growing_pauses(status: int) -> None:
    """So many attempts, then the round has to wait; each pause is twice the one before, times the jitter."""
    time = Time()
    async with serving(http(status, b"later")) as api, client_of(api.url, time, jitter=lambda: 1.5) as client:
        failed = await failure_of(client)
        assert isinstance(failed, SourceUnavailable)
        assert f"the API answered {status}: later ({ATTEMPTS} attempts)" in str(failed)
        assert len(api.requests) == ATTEMPTS == 3
        assert time.slept == [0.375, 0.75]


async def test_an_attempt_that_succeeds_ends_the_trying() -> None:
    """After two failures of different kinds the third attempt's body is the answer."""
    async with serving([http(503), http(200, b"cut", length=9), http(200, b"ok")]) as api, client_of(api.url) as client:
        assert await client.get("/x") == b"ok"
        assert len(api.requests) == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        f"HTTP/1.1 {TOKEN} OK\r\n\r\n".encode(),
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        http(200, b"short", length=100),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        http(200, b"not gzip", "Content-Encoding: gzip"),
        http(200, b"x", f"X-Echo: {TOKEN}\x00"),
    ],
    ids=["closed", "head cut", "no status", "not http", "body cut", "chunks cut", "chunks broken", "gzip", "header"],
)
async def test_an_answer_that_is_cut_or_broken_is_no_answer(answer: bytes) -> None:
    """Never a part of a body for a whole one: all of these are failures that may be better later."""
    async with serving(answer) as api, client_of(api.url) as client:
        assert isinstance(await failure_of(client), SourceUnavailable)
        assert len(api.requests) == ATTEMPTS


async def test_nobody_there_is_unavailable() -> None:
    """A refused connection and a name that cannot be are errors of one line, not tracebacks."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with client_of(f"http://127.0.0.1:{port}") as client:
        failed = await failure_of(client)
        assert isinstance(failed, SourceUnavailable)
        assert f"({ATTEMPTS} attempts)" in str(failed)


async def test_a_replaced_token_is_used_at_the_next_request(tmp_path: Path) -> None:
    """A token file is looked at for each request."""
    path, fresh = tmp_path / "token", tmp_path / "fresh"
    keep(path, "one\n")
    keep(fresh, "two\n")
    async with serving(http(200)) as api, client_of(api.url, credential=FileToken(path)) as client:
        await client.get("/x")
        fresh.replace(path)
        await client.get("/x")
        assert [request.headers["authorization"] for request in api.requests] == ["Bearer one", "Bearer two"]


async def test_without_a_usable_token_nothing_is_sent(tmp_path: Path) -> None:
    """A missing file is an error that names it; the API is not asked."""
    async with serving(http(200)) as api, client_of(api.url, credential=FileToken(tmp_path / "none")) as client:
        assert isinstance(await failure_of(client), CredentialUnusable)
        assert api.requests == []


async def test_a_client_works_while_it_is_open() -> None:
    """Before it is opened and after it is closed, asking is a mistake in the program."""
    async with serving(http(200)) as api:
        client = ApiClient(api.url)
        with pytest.raises(RuntimeError, match="not open"):
            await client.get("/x")
        async with client:
            assert await client.get("/x") == b""
        with pytest.raises(RuntimeError, match="not open"):
            await client.get("/x")


@pytest.mark.parametrize("content", [None, "not a certificate"])
@pytest.mark.parametrize("of", [lambda path: Transport(ca_file=path), lambda path: Transport(client_cert_file=path)])
def test_certificates_that_cannot_be_used_are_named(
    of: Callable[[Path], Transport], content: str | None, tmp_path: Path
) -> None:
    """Missing or of another kind: the operator's mistake, found before the first request."""
    path = tmp_path / "file.pem"
    if content:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"file\.pem") as refused:
        ApiClient("https://api.invalid", transport=of(path))
    assert "None" not in str(refused.value)
