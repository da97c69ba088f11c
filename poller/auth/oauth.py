"""Tokens from an OAuth 2 authorization server, by the client credentials grant.

RFC 6749, sections 4.4, 5.1 and 5.2; RFC 6750.

**Invariants**

* The client secret is read from its file for each new token and sent only to the token endpoint. No message contains
  it, in any spelling; no error contains a part of a token.
* The client authenticates by HTTP Basic, which every server must accept (2.3.1); after ``invalid_client``, once by form
  parameters. The method that worked is tried first from then on.
* A response has a size limit, before and after decompression, like those of the API.
* The endpoint is reached with the source's certificates, proxy and time limit, but without its extra headers.
* A missing ``token_type`` and a lifetime as text are accepted. Other types of tokens are refused, and so is an
  ``error`` with status 200.
* A missing or invalid lifetime counts as five minutes; a token that expires earlier is noticed by its first 401. No
  lifetime counts as longer than a day. A token is renewed 60 s before its end, or after 80 % of its lifetime if that is
  later.
"""

from __future__ import annotations

import asyncio
import math
import re
from base64 import b64encode
from codecs import BOM_UTF8
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote, quote_plus, urlencode

import httpx
import msgspec

from poller.auth.base import Credential, CredentialParts, Issued, IssuedToken, Issuer, SecretFile, checked
from poller.config.http import OAuth2Settings
from poller.errors import CredentialUnusable, SourceError, SourceNonsense, SourceUnavailable
from poller.http.transport import FAILURES, BodyDecoder, CertificateFiles, Transport, http_client, reason_of
from poller.text import hidden, one_line

UNKNOWN_LIFETIME: Final = timedelta(minutes=5)
LONGEST: Final = timedelta(days=1)
_MARGIN: Final = timedelta(seconds=60)
_SHARE: Final = 0.8

_OK: Final = 200
_SERVER_ERROR: Final = 500
_REDIRECTIONS: Final = range(300, 400)
_CLIENT_REFUSED: Final = frozenset({400, 401})
_TRANSIENT: Final = frozenset({408, 425, 429})
_TRANSIENT_ERRORS: Final = frozenset({"temporarily_unavailable", "server_error", "slow_down"})


class TokenResponse(msgspec.Struct, frozen=True):
    """The response of a token endpoint. ``secrets``: those of the request, in every spelling that may be echoed."""

    status: int
    body: bytes
    secrets: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, Any]:
        """The members of the body; empty: it is no JSON object."""
        try:
            found = msgspec.json.decode(self.body.removeprefix(BOM_UTF8))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def refuses_client(self) -> bool:
        """Whether the server rejects the client or its authentication method."""
        return self.status in _CLIENT_REFUSED and self.fields.get("error") == "invalid_client"


def issued(answer: TokenResponse, origin: str) -> Issued:
    """The token of a response.

    Raises:
        CredentialUnusable: the response has no usable token.
        SourceUnavailable: the response has none, but a later one may.
    """
    fields = answer.fields
    error = fields.get("error")
    if answer.status != _OK or error:
        raise _refusal(answer, error, origin)
    token, kind = fields.get("access_token"), fields.get("token_type")
    if not isinstance(token, str):
        raise CredentialUnusable(f"{origin} has answered 200 without an access_token")
    if kind is not None and str(kind).lower() != "bearer":
        shown = one_line(hidden(str(kind), token, *answer.secrets))
        raise CredentialUnusable(f'{origin} issues tokens of type "{shown}"; only bearer tokens can be used')
    lifetime = lifetime_of(fields.get("expires_in"))
    return Issued(checked(token, f"the access_token of {origin}"), renewal(lifetime), lifetime)


def lifetime_of(expires_in: object) -> timedelta:
    """The lifetime of a token with this ``expires_in``."""
    try:
        seconds = math.nan if isinstance(expires_in, bool) else float(expires_in)  # type: ignore[arg-type] # it may be
    except (TypeError, ValueError):
        seconds = math.nan
    except OverflowError:
        return LONGEST
    if not math.isfinite(seconds) or seconds <= 0:
        return UNKNOWN_LIFETIME
    return timedelta(seconds=min(seconds, LONGEST.total_seconds()))


def renewal(lifetime: timedelta) -> timedelta:
    """The time after its request when a token of this lifetime is renewed."""
    return max(lifetime * _SHARE, lifetime - _MARGIN)


def _refusal(answer: TokenResponse, error: object, origin: str) -> SourceError:
    # Only the fields for people: the rest may contain the secret in an unforeseen spelling.
    told = [str(part) for part in (error, answer.fields.get("error_description")) if part]
    said = one_line(hidden(": ".join(told), *_all_secrets(answer)))
    text = f"{origin} has answered {answer.status}" + (f": {said}" if said else "")
    if answer.status in _TRANSIENT or answer.status >= _SERVER_ERROR or str(error) in _TRANSIENT_ERRORS:
        return SourceUnavailable(text)
    if answer.status in _REDIRECTIONS:
        text += "; redirects are not followed"
    return CredentialUnusable(text)


def _all_secrets(answer: TokenResponse) -> tuple[str, ...]:
    tokens = (answer.fields.get(name) for name in ("access_token", "refresh_token", "id_token"))
    return (*answer.secrets, *(token for token in tokens if isinstance(token, str)))


_LARGEST: Final = 64 * 1024  # bytes of a response
_Proof = Literal["basic", "form"]


class OAuthClient(msgspec.Struct, frozen=True):
    """A registered OAuth client: token endpoint, id, secret file, scope and audience."""

    token_url: str
    client_id: str
    client_secret_file: Path
    scope: str | None = None
    audience: str | None = None


class ClientCredentials(Issuer):
    """An issuer that requests tokens by the client credentials grant."""

    def __init__(self, client: OAuthClient, *, transport: Transport, within: timedelta) -> None:
        """Request tokens for this client through the source's transport, within this time.

        Raises:
            ConfigurationError: a certificate file cannot be used.
        """
        self.origin = f"the token endpoint {client.token_url.partition('?')[0]}"
        self._client = client
        self._secret = SecretFile(client.client_secret_file, "client secret")
        self._transport = transport
        self._certificates = CertificateFiles(transport)
        self._within = within
        self._proof: _Proof = "basic"

    async def issue(self) -> Issued:
        """A new token.

        Raises:
            CredentialUnusable: the secret cannot be read, or the server refuses, or its response is invalid.
            SourceUnavailable: no response, or an error that may pass.
        """
        secret, proof = self._secret.text(), self._proof
        answer = await self._ask(proof, secret)
        if answer.refuses_client and proof == "basic":
            proof = "form"
            answer = await self._ask(proof, secret)
        if answer.refuses_client:
            self._proof = "basic"  # the method that worked fails now: start over next time
        made = issued(answer, self.origin)
        self._proof = proof
        return made

    def check(self) -> None:
        """Check that the file holds a client secret; the server is not contacted."""
        self._secret.text()

    async def _ask(self, proof: _Proof, secret: str) -> TokenResponse:
        wanted = {"scope": self._client.scope, "audience": self._client.audience}
        form = {"grant_type": "client_credentials", **{name: text for name, text in wanted.items() if text}}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        basic = b64encode(f"{quote_plus(self._client.client_id)}:{quote_plus(secret)}".encode()).decode()
        if proof == "basic":
            headers["Authorization"] = f"Basic {basic}"
        else:
            form |= {"client_id": self._client.client_id, "client_secret": secret}
        secrets = (secret, *_spellings(secret), basic)
        try:
            async with asyncio.timeout(self._within.total_seconds()):
                status, body = await self._post(urlencode(form).encode(), headers)
        except TimeoutError:
            seconds = self._within.total_seconds()
            raise SourceUnavailable(f"{self.origin}: no complete answer within {seconds:g} s") from None
        except FAILURES as error:
            raise SourceUnavailable(f"{self.origin}: {reason_of(error, *secrets)}") from None
        return TokenResponse(status, body, secrets)

    async def _post(self, form: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        client = http_client(self._transport, self._certificates.context(), connections=1)
        async with client as http, http.stream("POST", self._client.token_url, content=form, headers=headers) as answer:
            try:
                return answer.status_code, await self._body(answer)
            except SourceNonsense as error:
                raise CredentialUnusable(f"{self.origin}: {error}") from None

    async def _body(self, answer: httpx.Response) -> bytes:
        decoder, body = BodyDecoder(answer.headers.get("content-encoding", ""), most=_LARGEST), b""
        async for wire in answer.aiter_raw():
            body += decoder.decode(wire)
            if len(body) > _LARGEST:
                raise CredentialUnusable(f"{self.origin} has answered with more than {_LARGEST} bytes")
        decoder.close()
        return body


def _spellings(secret: str) -> tuple[str, ...]:
    encoded = (quote_plus(secret), quote(secret, safe=""), quote(secret))
    return (*encoded, *(re.sub("%..", lambda found: found[0].lower(), text) for text in encoded))


def make_credential(_: str, setting: OAuth2Settings, parts: CredentialParts) -> Credential:
    """The credential of ``oauth2``."""
    client = OAuthClient(
        setting.token_url, setting.client_id, setting.client_secret_file, setting.scope, setting.audience
    )
    return IssuedToken(ClientCredentials(client, transport=parts.transport, within=parts.within), clock=parts.clock)
