"""One exchange with the API: a path and parameters in, a body out, or an error that says whose fault it was.

Everything about an exchange has a bound: its whole duration, body included; the size of the decoded body; how many run
at once; how many start in a second. Transient failures are tried again a few times with growing, jittered pauses; the
feed's next interval is the patience beyond that.

A 401 may only mean that the token has had its time: the credential is asked for another one, and the request repeated
once. How the connection comes about is :mod:`poller.source.transport`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final, Self

import httpx
import msgspec
from aiolimiter import AsyncLimiter

from poller.errors import SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from poller.hiding import hidden, one_line
from poller.source.credentials import Credential, NoCredential
from poller.source.paging import Params
from poller.source.transport import FAILURES, Transport, http_client, reason_of, tls_of

ATTEMPTS: Final = 3
_FIRST_PAUSE: Final = 0.25  # seconds before the second attempt; doubles
_TRANSIENT: Final = frozenset({408, 425, 429})
_SERVER_ERROR: Final = 500


class Limits(msgspec.Struct, frozen=True):
    """The bounds of a source's exchanges. ``rate`` is requests a second, None for no limit; sizes are bytes."""

    timeout: timedelta = timedelta(seconds=30)
    max_page_bytes: int = 64 * 1024 * 1024
    rate: float | None = None
    concurrency: int = 4


class ApiClient:
    """The client of one source, shared by its feeds. An async context manager: enter it before the first call."""

    def __init__(
        self,
        base_url: str,
        *,
        credential: Credential | None = None,
        limits: Limits | None = None,
        transport: Transport | None = None,
        jitter: Callable[[], float] = lambda: 1.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take what the client works with.

        Args:
            base_url: without a trailing slash; paths are appended to it.
            credential: where the bearer token comes from.
            limits: see there.
            transport: see there.
            jitter: a fresh factor for each pause, between 0.5 and 1.5 say.
            sleep: waits for so many seconds.

        Raises:
            ConfigurationError: a certificate file cannot be used.
        """
        self._base_url = base_url
        self._credential = credential or NoCredential()
        self._limits = limits or Limits()
        self._transport = transport or Transport()
        self._tls = tls_of(self._transport)
        self._jitter = jitter
        self._sleep = sleep
        self._slots = asyncio.Semaphore(self._limits.concurrency)
        self._rate = AsyncLimiter(1, 1 / self._limits.rate) if self._limits.rate else None
        self._open = AsyncExitStack()
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        """Open the pool; connections are made when they are needed."""
        client = http_client(
            self._transport, self._tls, connections=self._limits.concurrency, headers=self._transport.headers
        )
        self._http = await self._open.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        self._http = None
        await self._open.aclose()

    async def get(self, path: str, params: Params = ()) -> bytes:
        """The body of a 200.

        Raises:
            SourceUnavailable: no usable answer in :data:`ATTEMPTS` attempts; later there may be one.
            SourceRefused: a status that will not change by asking again.
            SourceNonsense: the body is larger than ``max_page_bytes``.
            CredentialUnusable: there is no token to send.
        """
        attempt, pause = 1, _FIRST_PAUSE
        while True:
            try:
                return await self._attempt(path, params)
            except SourceUnavailable as error:
                if attempt == ATTEMPTS:
                    raise SourceUnavailable(f"{error} ({ATTEMPTS} attempts)") from None
            await self._sleep(pause * self._jitter())
            attempt, pause = attempt + 1, pause * 2

    async def _attempt(self, path: str, params: Params) -> bytes:
        token = await self._credential.token()
        status, body = await self._bounded(path, params, token)
        renewed = status == httpx.codes.UNAUTHORIZED and token is not None and await self._credential.renew(token)
        if renewed:
            token = await self._credential.token()
            status, body = await self._bounded(path, params, token)
        if status == httpx.codes.OK:
            return body
        offered = f"{'a fresh token' if renewed else 'the token'} of " if token else ""
        raise self._refusal(path, status, one_line(hidden(body.decode("utf-8", "replace"), token)), offered)

    async def _bounded(self, path: str, params: Params, token: str | None) -> tuple[int, bytes]:
        async with self._slots:
            if self._rate:
                await self._rate.acquire()
            try:
                async with asyncio.timeout(self._limits.timeout.total_seconds()):
                    return await self._exchange(path, params, token)
            except TimeoutError:
                seconds = self._limits.timeout.total_seconds()
                raise SourceUnavailable(f"GET {path}: no complete answer within {seconds:g} s") from None
            except FAILURES as error:
                raise SourceUnavailable(f"GET {path}: {reason_of(error, token)}") from None

    async def _exchange(self, path: str, params: Params, token: str | None) -> tuple[int, bytes]:
        if self._http is None:
            raise RuntimeError("the client is not open")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = self._base_url + path
        async with self._http.stream("GET", url, params=params or None, headers=headers) as response:
            chunks, size = [], 0
            async for chunk in response.aiter_bytes():
                size += len(chunk)
                if size > self._limits.max_page_bytes:
                    raise SourceNonsense(
                        f"GET {path}: the answer is larger than {self._limits.max_page_bytes} bytes (max_page_bytes)"
                    )
                chunks.append(chunk)
            return response.status_code, b"".join(chunks)

    def _refusal(self, path: str, status: int, beginning: str, offered: str) -> SourceError:
        text = f"GET {path}: the API answered {status}" + (f": {beginning}" if beginning else "")
        if status in _TRANSIENT or status >= _SERVER_ERROR:
            return SourceUnavailable(text)
        if status == httpx.codes.UNAUTHORIZED:
            return SourceRefused(f"{text}; it does not accept {offered}{self._credential.origin}", status=status)
        return SourceRefused(text, status=status)
