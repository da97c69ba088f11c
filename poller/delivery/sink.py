"""One attempt at a sink: a request of given headers and body, and how it ended.

The law: an attempt has one bound in time, from the name's look-up to the last byte, and one in size; it goes to no
other place than the sink's URL says (no redirect, no proxy, no cookie, no address that the guard has not seen); what
the network does ends in an :class:`~poller.delivery.outcome.Outcome` and never in an exception.

A status counts as soon as its line has arrived. What becomes of the rest of the answer, cut, reset, endless, no HTTP
at all, or dripping until the time is over, changes nothing: a sink that says 2xx has taken the event, and to send it
again because its farewell was rude would only double it. The rest is read to its end or to :data:`READ` bytes, so that
the connection can be used again, and dropped but for its beginning; it is never unpacked.

A kept connection that the sink closes before it answers is replaced by a new one within the attempt, once: a sink
closes idle connections whenever it likes, and that says nothing of the event. See :mod:`poller.delivery.connection`.

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
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Self

import aiohttp
from yarl import URL

from poller import __version__
from poller.config.urls import path_secrets
from poller.credentials.bearer import Credential, NoCredential
from poller.credentials.brought import Authorization
from poller.delivery.connection import Received, SinkConnector, current
from poller.delivery.exchange import Exchange, SinkResponse
from poller.delivery.failing import FAILURES, failure_of
from poller.delivery.guard import Guard, Lookup
from poller.delivery.outcome import Failure, Outcome
from poller.errors import AddressRefused
from poller.http.addresses import Allowance
from poller.http.hosts import forbidden
from poller.telemetry import tracing
from poller.telemetry.http_words import request_words

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
        allowed: Allowance | None = None,
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
        allowed = allowed or Allowance()
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
