"""One attempt at a sink: a request of given headers and body, and how it ended.

The law: an attempt has one bound in time, from the name's look-up to the last byte, and one in size; it goes to no
other place than the sink's URL says (no redirect, no proxy, no cookie, no address that the guard has not seen); what
the network does ends in an :class:`~poller.delivery.outcome.Outcome` and never in an exception.

A status counts as soon as its line has arrived. What becomes of the rest of the answer, cut, reset, endless, no HTTP
at all, or dripping until the time is over, changes nothing: a sink that says 2xx has taken the event, and to send it
again because its farewell was rude would only double it. The rest is read to its end or to :data:`READ` bytes, so that
the connection can be used again, and dropped but for its beginning; it is never unpacked.

A kept connection that the sink closes before it answers is replaced by a new one within the attempt, once: a sink
closes idle connections whenever it likes, and that says nothing of the event. See
:mod:`poller.delivery.sinks.connection`.

Each sink has connections of its own and shares no limit with another, so one that hangs holds up nobody else. It is
spoken to by aiohttp's client directly: with httpx around the same client a small POST takes three to four times the
processor's time (measured with 32 in flight), for nothing that is wanted here.

Repeating, signing and the rate are others' business.
"""

from __future__ import annotations

import asyncio
import io
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Self

import aiohttp
import msgspec
from yarl import URL

from poller import __version__
from poller.auth.base import Credential, NoCredential
from poller.auth.sink_credential import Authorization
from poller.config.http import path_secrets
from poller.delivery.outcome import FAILURES, MAY_WANT_A_CERTIFICATE, Failure, NotHttp, Outcome, failure_of
from poller.delivery.sinks.connection import Guard, Lookup, Received, SinkConnector, current
from poller.errors import AddressRefused
from poller.http.ssrf import AddressPolicy, forbidden
from poller.telemetry import tracing
from poller.telemetry.tracing import request_words
from poller.text import hidden, one_line, without_credentials

READ: Final = 64 * 1024
"""Bytes of an answer's body that are read; then the connection is closed."""

SEND_AGAIN: Final = 1.0
"""Seconds within which a kept connection that ends without an answer is replaced, and the request sent over a new one.

A connection that ends later was not closed while it was idle; and the lease may have run out meanwhile.
"""

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_LARGE: Final = 512 * 1024  # bytes; aiohttp wants to be given more than that in pieces
_SECRET: Final = 8  # characters; shorter values of configured headers are no secrets
_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
_FIXED: Final = {"User-Agent": f"poller/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}

Headers = Sequence[tuple[str, str]]


class Sink:
    """The connections to one sink. An async context manager: enter it before the first attempt."""

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta,
        concurrency: int,
        headers: Headers = (),
        credential: Credential | None = None,
        authorization: Authorization | None = None,
        allowed: AddressPolicy | None = None,
        tls: ssl.SSLContext | None = None,
        lookup: Lookup | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Take where to send and how.

        Args:
            url: the sink, sent as it is written; its path and query are taken for secrets. One that may not be asked
                fails each attempt, before any look-up.
            timeout: for a whole attempt.
            concurrency: connections at most; an attempt beyond that waits, in its own time.
            headers: go with each request; their values are taken for secrets. A traceparent among them takes the
                place of that of the current span.
            credential: where the bearer token comes from; none is sent without.
            authorization: is sent in its place, and is the same for each request.
            allowed: addresses that are allowed beside public ones.
            tls: whom to trust; the system's authorities by default.
            lookup: how a name is looked up.
            clock: seconds that only go forward.
            now: the store's clock, UTC.
        """
        allowed = allowed or AddressPolicy()
        self._expected = forbidden(url, allowed)
        self._url = URL(url if self._expected is None else "", encoded=True)
        self._seconds = timeout.total_seconds()
        self._concurrency = concurrency
        self._headers = tuple(headers)
        self._traced_otherwise = any(name.lower() == "traceparent" for name, _ in headers)
        self._words = request_words("POST", str(self._url.origin())) if self._expected is None else {}
        self._secrets = (*path_secrets(url), *(value for _, value in headers if len(value) >= _SECRET))
        self._credential = credential or NoCredential()
        self._authorization = authorization
        if authorization:
            self._headers += (("Authorization", authorization.value),)
            self._secrets += authorization.secrets
            self._credential = NoCredential()
        self._now = now
        self._guard = Guard(allowed, lookup)
        self._tls = tls
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Get ready; connections are made when they are needed."""
        self._session = aiohttp.ClientSession(
            connector=SinkConnector(limit=self._concurrency, tls=self._tls, resolver=self._guard),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            timeout=_NO_TIMEOUT,
            headers=_FIXED,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        if self._session:
            await self._session.close()
        self._session = None

    async def post(self, headers: Headers, body: bytes) -> Outcome:
        """Send this once; a second time with another token where the first is answered 401 and there is one."""
        span = tracing.current()
        span.tell(self._words)
        carried = () if self._traced_otherwise else tuple(span.carried.items())
        return (await self._attempt("POST", (*headers, *carried), body)).outcome

    async def options(self, headers: Headers) -> SinkResponse:
        """Ask with OPTIONS, as the handshake does."""
        return await self._attempt("OPTIONS", headers, None)

    async def _attempt(self, method: str, headers: Headers, body: bytes | None) -> SinkResponse:
        began = self._clock()
        exchange = Exchange()
        try:
            async with asyncio.timeout(self._seconds):
                await self._settled(exchange, method, (*self._headers, *headers), body)
        except TimeoutError:
            exchange.failed = self._too_late(exchange)
        except FAILURES as error:
            if isinstance(error, aiohttp.ClientConnectionError):
                await asyncio.sleep(0)  # a loop may tell why a connection was lost after it refuses what is written
            exchange.failed = failure_of(error, exchange.received.lost)
        return exchange.answer(self._clock() - began, *self._secrets)

    def _too_late(self, exchange: Exchange) -> tuple[Failure, str]:
        if exchange.begun:
            return Failure.TIMEOUT, f"no answer within {self._seconds:g} s"
        return Failure.CREDENTIAL, f"{self._credential.origin} has given no token within {self._seconds:g} s"

    async def _settled(self, exchange: Exchange, method: str, headers: Headers, body: bytes | None) -> None:
        if self._expected:
            raise AddressRefused(f"expected {self._expected}")
        token = await self._credential.token()
        await self._send(exchange, method, headers, body, token)
        if self._authorization and exchange.status in (_UNAUTHORIZED, _FORBIDDEN):
            exchange.remark = self._authorization.remark(self._now())
        if exchange.status != _UNAUTHORIZED or token is None:
            return
        if await self._credential.renew(token):
            await self._send(exchange, method, headers, body, await self._credential.token())

    async def _send(
        self, exchange: Exchange, method: str, headers: Headers, body: bytes | None, token: str | None
    ) -> None:
        if token:
            headers = (*headers, ("Authorization", f"Bearer {token}"))
        exchange.begins(token)
        began = self._clock()
        try:
            response = await self._answered(exchange.received, method, headers, body)
        except aiohttp.ClientConnectionError:
            if not exchange.received.unanswered or self._clock() - began > SEND_AGAIN:
                raise
            exchange.received = Received(new_connection=True)
            response = await self._answered(exchange.received, method, headers, body)
        try:
            exchange.arrived(response)
            async for chunk in response.content.iter_any():
                exchange.body += chunk
                if len(exchange.body) >= READ:
                    break
        finally:
            response.close()  # a connection whose answer has ended has been given back already

    async def _answered(
        self, received: Received, method: str, headers: Headers, body: bytes | None
    ) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the sink is not open")
        content = io.BytesIO(body) if body is not None and len(body) > _LARGE else body
        outer = current.set(received)
        try:
            return await self._session.request(method, self._url, data=content, headers=headers, allow_redirects=False)
        finally:
            current.reset(outer)


# What is known of an exchange with a sink while it goes on, and the outcome that it becomes.
#
# The law: what was known when it broke off counts: a status that has arrived stands, and a failure is told only where
# none has. Nothing that was secret in the request is in the outcome, wherever the sink has put it.
#
# Nothing is sent or read here, and time is told by whoever does.

KEPT: Final = 1024
"""Bytes of an answer's body that are kept."""

_LEAST: Final = 100
_LONGEST: Final = 128  # characters of a header that is kept
_NONE: Final[Mapping[str, str]] = {}


class SinkResponse(msgspec.Struct, frozen=True):
    """An outcome, and the answer's headers, whose names know no case; none where there was no answer."""

    outcome: Outcome
    headers: Mapping[str, str] = _NONE


class Exchange:
    """What is known so far of an exchange that goes on."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.body = b""
        self.failed: tuple[Failure, str] | None = None
        self.remark = ""  # on a credential that the sink has not accepted
        self.received = Received()
        self._headers: Mapping[str, str] = _NONE
        self._tokens: tuple[str | None, ...] = ()

    @property
    def begun(self) -> bool:
        """Whether anything was sent, or was about to be."""
        return bool(self._tokens)

    def begins(self, token: str | None) -> None:
        """Forget what came so far: a request with this token is sent."""
        self.status, self.body, self.received = None, b"", Received()
        self._tokens = (*self._tokens, token)

    def arrived(self, response: aiohttp.ClientResponse) -> None:
        """The head of an answer."""
        if response.status < _LEAST:
            raise NotHttp(f"it has the status {response.status}")
        self.status, self._headers = response.status, response.headers

    def answer(self, seconds: float, *secrets: str) -> SinkResponse:
        """How it ended."""
        known = (*self._tokens, *secrets)
        if self.status is None and (head := self.received.head):  # the parser has refused what came after its status
            self.status, self._headers, self.body = head.status, head.headers, head.body
        if self.status is None:
            kind, text = self.failed or (Failure.NETWORK, "there was no answer")
            if other := self.received.other_protocol:
                kind, text = Failure.NOT_HTTP, other
            elif kind in (Failure.CLOSED, Failure.RESET) and self.received.is_new_tls:
                text += f", right after TLS was agreed on; {MAY_WANT_A_CERTIFICATE}"
            return SinkResponse(Outcome(failure=kind, seconds=seconds, text=one_line(hidden(text, *known))))
        outcome = Outcome(
            status=self.status,
            retry_after=_ascii(self._headers.get("Retry-After")),
            date=_ascii(self._headers.get("Date")),
            seconds=seconds,
            excerpt=_kept(self.body, *known),
            text=self._text(*known),
        )
        return SinkResponse(outcome, self._headers)

    def _text(self, *secrets: str | None) -> str:
        text = f"the sink answered {self.status}"
        if self.failed and self.failed[0] is Failure.CREDENTIAL:
            text += f"; another token cannot be had: {one_line(hidden(self.failed[1], *secrets))}"
        if self.remark:
            text += f"; {self.remark}"
        if self.status is not None and 200 <= self.status < 300:  # noqa: PLR2004 -- nobody asks why it went well
            return text
        said = one_line(without_credentials(hidden(self.body.decode("utf-8", "replace"), *secrets)))
        return text + (f": {said}" if said else "")


def _ascii(value: str | None) -> str | None:
    """A header's text as it can be kept; what a date or a number cannot hold is replaced."""
    return value and value[:_LONGEST].encode("ascii", "replace").decode()


def _kept(body: bytes, *secrets: str | None) -> bytes:
    for secret in filter(None, secrets):
        body = body.replace(secret.encode(), b"[redacted]")
    return body[:KEPT]
