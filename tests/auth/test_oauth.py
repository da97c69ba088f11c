"""Laws of :mod:`poller.auth.oauth`, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from base64 import b64decode, b64encode
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.auth.base import IssuedToken
from poller.auth.oauth import (
    LONGEST,
    UNKNOWN_LIFETIME,
    ClientCredentials,
    OAuthClient,
    TokenResponse,
    issued,
    lifetime_of,
    renewal,
)
from poller.clock import Clock
from poller.errors import CredentialUnusable, SourceError, SourceUnavailable
from poller.http.transport import Transport
from tests.servers import free_port
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
    client = OAuthClient(url + "/token", "client:1 é", secret_file, **asked)
    return ClientCredentials(client, transport=transport or Transport(), within=timedelta(seconds=within))


async def failure_of(of: ClientCredentials) -> SourceError:
    """The error, after checks that hold for every error: one line, and no part of the secret in any spelling."""
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
    """The request is a POSTed form with Basic authentication, both parts form-encoded (RFC 6749, 2.3.1)."""
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
    """If Basic is refused, the form is tried once and comes first next time; both are never sent together."""
    answers = [REFUSED, http(503), REFUSED, token("t1"), http(503), token("t2"), REFUSED, token("t3")]
    async with serving(answers) as server:
        wanted = issuer(server.url, secret_file)
        assert isinstance(await failure_of(wanted), SourceUnavailable)  # it is not known yet whether the form works
        assert (await wanted.issue()).value == "t1"
        assert isinstance(await failure_of(wanted), SourceUnavailable)  # an outage says nothing about the form
        assert (await wanted.issue()).value == "t2"
        assert isinstance(await failure_of(wanted), CredentialUnusable)  # and the form is forgotten once it is refused
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
    """Only ``invalid_client`` is tried the other way, and only once."""
    async with serving(answer) as server:
        refused = await failure_of(issuer(server.url, secret_file))
        assert isinstance(refused, CredentialUnusable)
        assert f"the token endpoint {server.url}/token has answered" in str(refused)
        assert len(server.requests) == asked


async def test_what_the_endpoint_echoes_is_hidden(secret_file: Path) -> None:
    """An echoed secret or token is hidden in any spelling, wherever the message is cut."""
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
    """No answer, a broken answer and an outage count as unavailable."""
    async with serving(answer) as server:
        assert isinstance(await failure_of(issuer(server.url, secret_file)), SourceUnavailable)


async def test_nobody_there_is_unavailable(secret_file: Path) -> None:
    """A refused connection counts as unavailable, and the error names the endpoint."""
    port = free_port()
    failed = await failure_of(issuer(f"http://127.0.0.1:{port}", secret_file))
    assert isinstance(failed, SourceUnavailable)
    assert f"http://127.0.0.1:{port}/token" in str(failed)


async def test_an_endpoint_that_drips_is_given_up_in_time(secret_file: Path) -> None:
    """The time limit covers the whole exchange, so a dripping answer is given up."""

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
    """An answer that is too large for a token is refused."""
    async with serving(token("y" * 70_000)) as server:
        assert "more than 65536 bytes" in str(await failure_of(issuer(server.url, secret_file)))


@pytest.mark.parametrize(
    ("coding", "rounds", "says"),
    [("gzip", 1, "more than 65536 bytes"), ("gzip, gzip", 2, "only gzip was asked for")],
)
async def test_an_answer_is_bounded_before_it_is_in_memory(
    coding: str, rounds: int, says: str, secret_file: Path
) -> None:
    """A compressed answer is bounded before it is in memory; a coding that was not requested is refused."""
    body = bytes(64 * 1024 * 1024)
    for _ in range(rounds):
        body = gzip.compress(body)
    tracemalloc.start()
    try:
        async with serving(http(200, body, f"Content-Encoding: {coding}")) as server:
            tracemalloc.reset_peak()
            assert says in str(await failure_of(issuer(server.url, secret_file)))
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024


async def test_a_packed_answer_is_read(secret_file: Path) -> None:
    """A token may come in gzip; an answer that is cut off is an error."""
    packed = gzip.compress(json.dumps({"access_token": "t1"}).encode())
    async with serving(http(200, packed, "Content-Encoding: gzip")) as server:
        assert (await issuer(server.url, secret_file).issue()).value == "t1"
    async with serving(http(200, packed[:-9], "Content-Encoding: gzip")) as server:
        assert "cut off within its gzip encoding" in str(await failure_of(issuer(server.url, secret_file)))


async def test_a_replaced_secret_is_used_for_the_next_token(secret_file: Path) -> None:
    """The secret is read for each token; a file open to others is refused before any request."""
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
    """The query of the token endpoint is sent, and not shown in errors."""
    async with serving(http(400, b"no")) as server:
        client = OAuthClient(f"{server.url}/token?tenant=s3cret", "c", secret_file)
        await failure_of(ClientCredentials(client, transport=Transport(), within=timedelta(seconds=20)))
        assert server.requests[0].params == [("tenant", "s3cret")]


async def test_the_sources_proxy_is_used_and_its_headers_are_not(secret_file: Path) -> None:
    """The endpoint is reached through the source's proxy and without the source's extra headers."""
    async with serving(token()) as proxy:
        transport = Transport(proxy=proxy.url, headers=(("X-Tenant", "t"),))
        assert (await issuer("http://auth.invalid", secret_file, transport=transport).issue()).value == "t1"
        assert proxy.requests[0].target == "http://auth.invalid/token"
        assert "x-tenant" not in proxy.requests[0].headers


async def test_concurrent_requests_ask_for_one_token(secret_file: Path) -> None:
    """Twenty concurrent requests lead to one request of the token endpoint."""
    async with serving(token()) as server:
        credential = IssuedToken(issuer(server.url, secret_file), clock=Clock())
        assert await asyncio.gather(*(credential.token() for _ in range(20))) == ["t1"] * 20
        assert len(server.requests) == 1


# Laws of :mod:`poller.auth.oauth`.

ORIGIN = "the token endpoint"
TOKEN = "s3cret-token"  # noqa: S105 -- of no use anywhere
GOOD = {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}


def refusal(status: int, body: bytes | dict[str, Any], *secrets: str) -> SourceError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(SourceError) as refused:
        issued(TokenResponse(status, content, secrets), ORIGIN)
    text = str(refused.value)
    assert text.startswith(("the token endpoint", "the access_token of the token endpoint"))
    assert text.isprintable()
    assert len(text) < 400
    assert "s3cret" not in text
    return refused.value


@pytest.mark.parametrize(
    ("expires_in", "seconds"),
    [
        (3600, 3600),
        ("3600", 3600),
        (3599.5, 3599.5),
        (" 60 ", 60),
        (1, 1),
        (0.5, 0.5),
        (10**9, 86400),
        (1e9, 86400),
        (10**400, 86400),
        (0, 300),
        (-1, 300),
        ("-1", 300),
        (None, 300),
        ("soon", 300),
        ("", 300),
        ("nan", 300),
        ("inf", 300),
        (True, 300),
        ([3600], 300),
        ({}, 300),
    ],
)
def test_every_lifetime_counts_for_something(expires_in: object, seconds: float) -> None:
    """An invalid lifetime counts as unknown and an endless one as a day; none causes a token for each request."""
    assert lifetime_of(expires_in) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("lifetime", "after"), [(3600, 3540), (300, 240), (100, 80), (10, 8), (1, 0.8)])
def test_a_token_is_renewed_a_little_before_its_end(lifetime: float, after: float) -> None:
    """A token is renewed a minute before its end, a short-lived one when a fifth of its time is left."""
    assert renewal(timedelta(seconds=lifetime)) == timedelta(seconds=after)


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers())))
def test_no_lifetime_breaks_anything(expires_in: object) -> None:
    """Any lifetime is within bounds, and the renewal is within the lifetime."""
    lifetime = lifetime_of(expires_in)
    assert timedelta(0) <= renewal(lifetime) <= lifetime <= LONGEST


@pytest.mark.parametrize("kind", ["Bearer", "bearer", "BEARER", None])
def test_a_bearer_token_is_used(kind: str | None) -> None:
    """The token type may be spelled in any case or be missing."""
    assert issued(TokenResponse(200, json.dumps({**GOOD, "token_type": kind}).encode()), ORIGIN).value == TOKEN


def test_a_lifetime_that_is_left_out_is_unknown() -> None:
    """A missing lifetime counts as unknown, like null."""
    del (answer := dict(GOOD))["expires_in"]
    assert issued(TokenResponse(200, json.dumps(answer).encode()), ORIGIN).valid_for == UNKNOWN_LIFETIME


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({**GOOD, "token_type": "mac"}, 'tokens of type "mac"'),
        ({**GOOD, "token_type": f"x {TOKEN}"}, 'tokens of type "x [redacted]"'),
        ({**GOOD, "token_type": 1}, 'tokens of type "1"'),
        ({"error": "invalid_scope", **GOOD}, "200: invalid_scope"),
        ({"error": {"code": 7}}, "200: {'code': 7}"),
        ({**GOOD, "access_token": ""}, "holds no token"),
        ({**GOOD, "access_token": "two s3cret"}, "does not hold a token"),
        ({**GOOD, "access_token": "s3cret\r\nX: y"}, "does not hold a token"),
        ({**GOOD, "access_token": None}, "200 without an access_token"),
        ({**GOOD, "access_token": 7}, "200 without an access_token"),
        ({}, "200 without an access_token"),
        (b"", "200 without an access_token"),
        (b"<html>s3cret", "200 without an access_token"),
        (b"[1]", "200 without an access_token"),
        (b"[" * 60_000, "200 without an access_token"),
        (b"\xff\xfe", "200 without an access_token"),
        (b'{"access_token": "s3cret', "200 without an access_token"),
    ],
)
def test_a_200_without_a_token_that_can_be_used_is_refused(body: bytes | dict[str, Any], says: str) -> None:
    """A 200 with another token type, an error, no token or no JSON is a refusal that an operator must see."""
    refused = refusal(200, body)
    assert isinstance(refused, CredentialUnusable)
    assert says in str(refused)


@pytest.mark.parametrize("status", [201, 204, 301, 302, 307, 400, 401, 403, 404, 405, 415])
def test_a_refusal_says_the_servers_reason(status: int) -> None:
    """A refusal is reported with the server's status, error and description, shortened and without the request."""
    told = {"error": "unauthorized_client", "error_description": f"{'s3cret-1'} may not\n" + "y" * 500}
    refused = refusal(status, told, "s3cret-1")
    assert isinstance(refused, CredentialUnusable)
    assert f"has answered {status}: unauthorized_client: [redacted] may not yy" in str(refused)
    assert ("redirects are not followed" in str(refused)) == (300 <= status < 400)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_an_outage_may_be_over_later(status: int) -> None:
    """The statuses of an outage are those of the API; a body that is no OAuth error is not shown."""
    refused = refusal(status, b'<h1>s3cret is down</h1>{"access_token":"s3cret')
    assert isinstance(refused, SourceUnavailable)
    assert str(refused) == f"the token endpoint has answered {status}"


@pytest.mark.parametrize("status", [200, 400])
def test_errors_that_say_so_may_be_over_later(status: int) -> None:
    """An error ``temporarily_unavailable`` in the body is an outage, whatever the status."""
    assert isinstance(refusal(status, {"error": "temporarily_unavailable"}), SourceUnavailable)


@pytest.mark.parametrize(
    ("status", "body", "refuses"),
    [
        (401, b'{"error":"invalid_client"}', True),
        (400, b'{"error":"invalid_client"}', True),
        (403, b'{"error":"invalid_client"}', False),
        (401, b'{"error":"access_denied"}', False),
        (401, b"", False),
    ],
)
def test_only_invalid_client_means_that_the_proof_was_not_taken(status: int, body: bytes, refuses: bool) -> None:
    """Only invalid_client with 400 or 401 leads to the other way of authentication."""
    assert TokenResponse(status, body).refuses_client is refuses
