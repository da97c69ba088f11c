"""Laws of :mod:`poller.source.client`, over real sockets: what follows a 401 during a round."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from poller.auth.base import AppliedCredential, EnvironmentToken, FileToken, Issued, IssuedToken, Issuer
from poller.clock import Clock
from poller.errors import CredentialUnusable, SourceRefused, SourceUnavailable
from poller.source.client import ApiClient
from tests.harness.waiting import turns
from tests.source.api import Answer, Request, http, serving
from tests.source.clients import client_of, failure_of, keep

HOUR = timedelta(hours=1)


class Numbered(Issuer):
    """Issues t1, t2, …; with an error given, raises it from the second token on."""

    origin = "a test"

    def __init__(self, error: Exception | None = None) -> None:
        self.made = 0
        self._error = error

    async def issue(self) -> Issued:
        self.made += 1
        await turns()
        if self._error and self.made > 1:
            raise self._error
        return Issued(f"t{self.made}", HOUR, HOUR)


def accepting(*tokens: str) -> Answer:
    async def answer(request: Request, _: Any) -> bytes:
        return http(200, b"ok") if request.headers["authorization"].split()[1] in tokens else http(401, b"expired")

    return answer


async def test_a_refused_token_is_renewed_and_the_request_repeated() -> None:
    """After a 401 the request is repeated once with a new token, unseen by the caller."""
    issuer = Numbered()
    async with (
        serving(accepting("t2")) as api,
        client_of(api.url, credential=IssuedToken(issuer, clock=Clock())) as client,
    ):
        assert await client.get("/x", (("a", "b"),)) == b"ok"
        assert await client.get("/x") == b"ok"
        assert [request.target for request in api.requests] == ["/x?a=b", "/x?a=b", "/x"]
        assert issuer.made == 2


async def test_concurrent_refusals_cause_one_renewal() -> None:
    """Concurrent refusals cause one renewal, and each request is repeated once."""
    issuer = Numbered()
    together = asyncio.Barrier(4)

    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes | None:
        if request.headers["authorization"] == "Bearer t1":
            await together.wait()
        return await accepting("t2")(request, writer)

    async with serving(answer) as api, client_of(api.url, credential=IssuedToken(issuer, clock=Clock())) as client:
        assert await asyncio.gather(*(client.get("/x") for _ in range(4))) == [b"ok"] * 4
        assert len(api.requests) == 8
    assert issuer.made == 2


async def test_a_refused_fresh_token_is_a_refusal_that_says_so() -> None:
    """If a fresh token is refused too, the request fails after two attempts and says so."""
    issuer = Numbered()
    async with serving(accepting()) as api, client_of(api.url, credential=IssuedToken(issuer, clock=Clock())) as client:
        refused = await failure_of(client)
        assert isinstance(refused, SourceRefused)
        assert refused.status == 401
        assert "does not accept a fresh token of a test" in str(refused)
        assert len(api.requests) == issuer.made == 2


async def test_a_refused_file_is_only_tried_again_where_it_changed(tmp_path: Path) -> None:
    """A refused token of a file is not sent again while the file is unchanged."""
    path = keep(tmp_path / "token", "t1")
    async with serving(accepting("t2")) as api, client_of(api.url, credential=FileToken(path)) as client:
        refused = await failure_of(client)
        assert isinstance(refused, SourceRefused)
        assert f"does not accept the token of the file {path}" in str(refused)
        assert len(api.requests) == 1


async def test_a_file_that_is_replaced_in_mid_round_is_used(tmp_path: Path) -> None:
    """If the token file is replaced during the request, the request is repeated with the new token."""
    path = keep(tmp_path / "token", "t1")

    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes | None:
        keep(path, "t2")
        return await accepting("t2")(request, writer)

    async with serving(answer) as api, client_of(api.url, credential=FileToken(path)) as client:
        assert await client.get("/x") == b"ok"
        assert len(api.requests) == 2


async def test_without_a_credential_nothing_is_renewed() -> None:
    """Without a credential a 401 is not retried, and the error says that none was sent."""
    async with serving(http(401)) as api, client_of(api.url, credential=None) as client:
        assert "does not accept a request without a credential" in str(await failure_of(client))
        assert len(api.requests) == 1


@pytest.mark.parametrize("error", [CredentialUnusable("revoked"), SourceUnavailable("away")])
async def test_a_renewal_that_fails_is_what_is_told(error: Exception) -> None:
    """If a renewal fails, its error is the request's, and the next round asks again."""
    issuer = Numbered(error)
    async with serving(accepting()) as api, client_of(api.url, credential=IssuedToken(issuer, clock=Clock())) as client:
        assert isinstance(await failure_of(client), type(error))
        assert issuer.made == 2
        assert len(api.requests) == 1


async def test_the_new_token_is_hidden_too() -> None:
    """A renewed token that the API echoes is hidden in the message."""

    async def echo(request: Request, _: Any) -> bytes:
        return http(401, f"bad {request.headers['authorization']}".encode())

    async with (
        serving(echo) as api,
        ApiClient(api.url, credential=IssuedToken(Numbered(), clock=Clock()), clock=Clock()) as client,
    ):
        assert "bad Bearer [redacted]" in str(await failure_of(client))


class QueryKey(EnvironmentToken):
    """A key that goes into the query, as some APIs want it."""

    def apply(self, token: str | None) -> AppliedCredential:
        return AppliedCredential(params=(("api_key", token),), secrets=(token,)) if token else AppliedCredential()


async def test_a_credential_says_how_it_is_sent() -> None:
    """A credential may be sent in the query; an answer that repeats the URL does not show it."""
    key = "k3y/with+signs=&'and-more"

    async def echo(request: Request, _: object) -> bytes:
        return http(403, f"no right to {request.target} or {request.target.replace('k3y', '%6b%33y')}".encode())

    credential = QueryKey("KEY", {"KEY": key})
    async with serving(echo) as api, ApiClient(api.url, credential=credential, clock=Clock()) as client:
        said = str(await failure_of(client))
        (request,) = api.requests
    assert request.params[-1] == ("api_key", key)
    assert "authorization" not in request.headers
    assert "and-more" not in said
    assert said.count("api_key=[redacted]") == 2
