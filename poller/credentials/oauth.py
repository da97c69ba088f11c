"""Tokens from an OAuth 2 authorization server, by the client credentials grant (RFC 6749, 4.4).

Law: the client's secret is read from its file for each new token, goes to the token endpoint and nowhere else, and is
in no message in any spelling. The client proves itself by HTTP Basic, which every server has to take (2.3.1); where one
answers that with ``invalid_client``, once by parameters of the form, and what worked is tried first from then on.

The endpoint is reached as the source is: its certificates, its proxy, its time limit. The source's extra
headers stay with it.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote, quote_plus, urlencode

import msgspec

from poller.credentials.issued import Issued
from poller.credentials.secret_file import SecretFile
from poller.credentials.token_answer import Answer, issued
from poller.errors import CredentialUnusable, SourceUnavailable
from poller.http.transport import FAILURES, Transport, http_client, reason_of, tls_of

_LARGEST: Final = 64 * 1024  # bytes of an answer
_Proof = Literal["basic", "form"]


class Client(msgspec.Struct, frozen=True):
    """Who asks where for what."""

    token_url: str
    client_id: str
    client_secret_file: Path
    scope: str | None = None
    audience: str | None = None


class ClientCredentials:
    """An issuer: each token is one exchange with the token endpoint, at most two where the first proof is not taken."""

    def __init__(self, client: Client, *, transport: Transport, within: timedelta) -> None:
        """Take what to ask for, the source's transport, and how long one whole exchange may take.

        Raises:
            ConfigurationError: a certificate file cannot be used.
        """
        self.origin = f"the token endpoint {client.token_url.partition('?')[0]}"
        self._client = client
        self._secret = SecretFile(client.client_secret_file, "client secret")
        self._transport = transport
        self._tls = tls_of(transport)
        self._within = within
        self._proof: _Proof = "basic"

    async def issue(self) -> Issued:
        """A new token.

        Raises:
            CredentialUnusable: the secret cannot be read, or the server refuses or answers nonsense.
            SourceUnavailable: no answer, or one that may be better later.
        """
        secret, proof = self._secret.text(), self._proof
        answer = await self._ask(proof, secret)
        if answer.refuses_client and proof == "basic":
            proof = "form"
            answer = await self._ask(proof, secret)
        if answer.refuses_client:
            self._proof = "basic"  # what used to work does no more: begin again next time
        made = issued(answer, self.origin)
        self._proof = proof
        return made

    async def _ask(self, proof: _Proof, secret: str) -> Answer:
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
        return Answer(status, body, secrets)

    async def _post(self, form: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        client = http_client(self._transport, self._tls, connections=1)
        async with client as http, http.stream("POST", self._client.token_url, content=form, headers=headers) as answer:
            body = b""
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > _LARGEST:
                    raise CredentialUnusable(f"{self.origin} has answered with more than {_LARGEST} bytes")
            return answer.status_code, body


def _spellings(secret: str) -> tuple[str, ...]:
    encoded = (quote_plus(secret), quote(secret, safe=""), quote(secret))
    return (*encoded, *(re.sub("%..", lambda found: found[0].lower(), text) for text in encoded))
