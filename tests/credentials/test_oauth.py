"""Laws of :mod:`poller.credentials.oauth`, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from base64 import b64decode, b64encode
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote_plus

import pytest

from poller.credentials.issued import IssuedToken
from poller.credentials.oauth import Client, ClientCredentials
from poller.errors import CredentialUnusable, SourceError, SourceUnavailable
from poller.http.transport import Transport
from tests.source.api import Request, http, serving
from tests.source.clients import keep

SECRET = "s3cret/+ &%:é=\U0001f600"  # noqa: S105 -- of no use anywhere
BASIC = b64encode(f"client%3A1+%C3%A9:{quote_plus(SECRET)}".encode()).decode()
REFUSED = http(401, b'{"error":"invalid_client","error_description":"who?"}', "WWW-Authenticate: Basic")


def token(text: str = "t1", **fields: Any) -> bytes:
    return http(200, json.dumps({"access_token": text, "token_type": "Bearer", "expires_in": 3600} | fields).encode())


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    return keep(tmp_path / "secret", SECRET + "\n")


def issuer(
    url: str, secret_file: Path, *, transport: Transport | None = None, within: float = 20, **asked: str
) -> ClientCredentials:
    client = Client(url + "/token", "client:1 é", secret_file, **asked)
    return ClientCredentials(client, transport=transport or Transport(), within=timedelta(seconds=within))


async def failure_of(of: ClientCredentials) -> SourceError:
    """The error, with what holds for each: one line, the endpoint named, and no part of the secret in any spelling."""
    with pytest.raises(SourceError) as failed:
        await of.issue()
    text = str(failed.value)
    assert text.isprintable()
    assert len(text) < 500
    assert "s3cret" not in text
    assert BASIC[:16] not in text
    assert failed.value.__cause__ is None
    return failed.value


async def test_a_token_is_asked_for_as_the_rfc_says(secret_file: Path) -> None:
    """A POSTed form, the client proven by Basic with both parts encoded as in a form (RFC 6749, 2.3.1)."""
    async with serving(token()) as server:
        wanted = issuer(server.url, secret_file, scope="read:all x", audience="https://api.example.org/&")
        assert (await wanted.issue()).value == "t1"
        asked = server.requests[0]
        assert (asked.method, asked.target) == ("POST", "/token")
        assert asked.headers["content-type"] == "application/x-www-form-urlencoded"
        assert asked.headers["accept"] == "application/json"
        assert asked.form == {
            "grant_type": "client_credentials",
            "scope": "read:all x",
            "audience": "https://api.example.org/&",
        }
        scheme, _, proof = asked.headers["authorization"].partition(" ")
        assert scheme == "Basic"
        client_id, _, secret = b64decode(proof).decode("ascii").partition(":")
        assert (unquote_plus(client_id), unquote_plus(secret)) == ("client:1 é", SECRET)


async def test_the_form_is_tried_where_basic_is_not_taken_and_remembered(secret_file: Path) -> None:
    """Once; what worked comes first the next time. Nothing is sent both ways at once."""
    answers = [REFUSED, http(503), REFUSED, token("t1"), http(503), token("t2"), REFUSED, token("t3")]
    async with serving(answers) as server:
        wanted = issuer(server.url, secret_file)
        assert isinstance(await failure_of(wanted), SourceUnavailable)  # not known yet whether the form works
        assert (await wanted.issue()).value == "t1"
        assert isinstance(await failure_of(wanted), SourceUnavailable)  # an outage says nothing about the form
        assert (await wanted.issue()).value == "t2"
        assert isinstance(await failure_of(wanted), CredentialUnusable)  # and forgotten where it works no more
        assert (await wanted.issue()).value == "t3"
        ways = ["basic" if "authorization" in request.headers else "form" for request in server.requests]
        assert ways == ["basic", "form", "basic", "form", "form", "form", "form", "basic"]
        assert ["client_secret" in request.form for request in server.requests] == [way == "form" for way in ways]
        assert server.requests[1].form["client_secret"] == SECRET
        assert server.requests[1].form["client_id"] == "client:1 é"


@pytest.mark.parametrize(
    ("answer", "asked"),
    [(REFUSED, 2), (http(401, b'{"error":"access_denied"}'), 1), (http(403, b"no"), 1), (http(302, b""), 1)],
)
async def test_a_refusal_is_final(answer: bytes, asked: int, secret_file: Path) -> None:
    """Only ``invalid_client`` is tried the other way, once."""
    async with serving(answer) as server:
        refused = await failure_of(issuer(server.url, secret_file))
        assert isinstance(refused, CredentialUnusable)
        assert f"the token endpoint {server.url}/token has answered" in str(refused)
        assert len(server.requests) == asked


async def test_what_the_endpoint_echoes_is_hidden(secret_file: Path) -> None:
    """The secret plain, encoded and in the Basic header, and tokens, wherever the message is cut."""
    paddings = iter(range(100, 200, 7))

    async def echo(request: Request, _: Any) -> bytes:
        sent = " ".join((request.headers.get("authorization", ""), request.body.decode(), SECRET))
        told = {"error": "y" * next(paddings, 150), "error_description": f"s3cret-token {sent}"}
        told |= {"error": "invalid_client"} if len(server.requests) == 1 else {}
        return http(401, json.dumps({**told, "access_token": "s3cret-token"}, ensure_ascii=False).encode())

    async with serving(echo) as server:
        wanted = issuer(server.url, secret_file)
        for _ in range(14):
            await failure_of(wanted)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0\r\n", http(200, b"{}", length=9), http(503, b"later"), http(429)])
async def test_an_endpoint_that_is_away_may_be_back_later(answer: bytes, secret_file: Path) -> None:
    """No answer, a broken one, an outage."""
    async with serving(answer) as server:
        assert isinstance(await failure_of(issuer(server.url, secret_file)), SourceUnavailable)


async def test_nobody_there_is_unavailable(secret_file: Path) -> None:
    """A refused connection, named with the endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    failed = await failure_of(issuer(f"http://127.0.0.1:{port}", secret_file))
    assert isinstance(failed, SourceUnavailable)
    assert f"http://127.0.0.1:{port}/token" in str(failed)


async def test_an_endpoint_that_drips_is_given_up_in_time(secret_file: Path) -> None:
    """The limit is that of the whole exchange."""

    async def drip(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(http(200, length=10**6))

        def drop() -> None:
            if not writer.is_closing():
                writer.write(b"y")
                asyncio.get_running_loop().call_later(0.01, drop)

        drop()
        await asyncio.Event().wait()

    async with serving(drip) as server:
        failed = await failure_of(issuer(server.url, secret_file, within=0.15))
        assert isinstance(failed, SourceUnavailable)
        assert "no complete answer within 0.15 s" in str(failed)


async def test_an_endless_answer_is_cut_off(secret_file: Path) -> None:
    """A token fits into much less."""
    async with serving(token("y" * 70_000)) as server:
        assert "more than 65536 bytes" in str(await failure_of(issuer(server.url, secret_file)))


async def test_a_replaced_secret_is_used_for_the_next_token(secret_file: Path) -> None:
    """It is read for each token; a file open to others is refused before anything is sent."""
    async with serving(token()) as server:
        wanted = issuer(server.url, secret_file)
        await wanted.issue()
        keep(secret_file, "two")
        await wanted.issue()
        assert b64decode(server.requests[1].headers["authorization"].split()[1]).endswith(b":two")
        keep(secret_file, "three", mode=0o644)
        failed = await failure_of(wanted)
        assert isinstance(failed, CredentialUnusable)
        assert "the client secret cannot be read" in str(failed)
        assert "chmod 600" in str(failed)
        assert len(server.requests) == 2


async def test_the_query_of_the_endpoint_is_sent_and_not_shown(secret_file: Path) -> None:
    """Some servers want one; it may hold what is nobody's business."""
    async with serving(http(400, b"no")) as server:
        client = Client(f"{server.url}/token?tenant=s3cret", "c", secret_file)
        await failure_of(ClientCredentials(client, transport=Transport(), within=timedelta(seconds=20)))
        assert server.requests[0].params == [("tenant", "s3cret")]


async def test_the_sources_proxy_is_used_and_its_headers_are_not(secret_file: Path) -> None:
    """The endpoint is reached as the API is; the API's extra headers are not for it."""
    async with serving(token()) as proxy:
        transport = Transport(proxy=proxy.url, headers=(("X-Tenant", "t"),))
        assert (await issuer("http://auth.invalid", secret_file, transport=transport).issue()).value == "t1"
        assert proxy.requests[0].target == "http://auth.invalid/token"
        assert "x-tenant" not in proxy.requests[0].headers


async def test_concurrent_requests_ask_for_one_token(secret_file: Path) -> None:
    """Twenty at once, over a real endpoint."""
    async with serving(token()) as server:
        credential = IssuedToken(issuer(server.url, secret_file))
        assert await asyncio.gather(*(credential.token() for _ in range(20))) == ["t1"] * 20
        assert len(server.requests) == 1
