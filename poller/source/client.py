"""One exchange with the API: a path and parameters in, a body out, or an error that says whose fault it was.

Everything about an exchange has a bound: its whole duration, body included; the size of the decoded body; how many run
at once; how many start in a second. Transient failures are tried again a few times with growing, jittered pauses; the
feed's next interval is the patience beyond that.

httpx speaks through aiohttp's transport, because its own pool collapses under concurrency. Nothing is taken from the
process' environment (proxies, netrc), no cookie is kept, no redirect followed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Final, Self

import aiohttp
import httpx
import msgspec
from aiolimiter import AsyncLimiter
from httpx_aiohttp import AiohttpTransport

from poller import __version__
from poller.errors import ConfigurationError, SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from poller.source.credentials import Credential, NoCredential, hidden
from poller.source.paging import Params

ATTEMPTS: Final = 3
_FIRST_PAUSE: Final = 0.25  # seconds before the second attempt; doubles
_SHOWN: Final = 200  # characters of an error's body that a message repeats
_TRANSIENT: Final = frozenset({408, 425, 429})
_SERVER_ERROR: Final = 500


class Limits(msgspec.Struct, frozen=True):
    """The bounds of a source's exchanges. ``rate`` is requests a second, None for no limit; sizes are bytes."""

    timeout: timedelta = timedelta(seconds=30)
    max_page_bytes: int = 64 * 1024 * 1024
    rate: float | None = None
    concurrency: int = 4


class Transport(msgspec.Struct, frozen=True):
    """How a source is reached beyond its URL: certificate authorities, client certificate, proxy, extra headers."""

    ca_file: Path | None = None
    client_cert_file: Path | None = None
    client_key_file: Path | None = None
    proxy: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


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
        self._tls = _tls(self._transport)
        self._jitter = jitter
        self._sleep = sleep
        self._slots = asyncio.Semaphore(self._limits.concurrency)
        self._rate = AsyncLimiter(1, 1 / self._limits.rate) if self._limits.rate else None
        self._open = AsyncExitStack()
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        """Open the pool; connections are made when they are needed."""
        proxy = httpx.Proxy(self._transport.proxy) if self._transport.proxy else None
        headers = [("Accept", "application/json"), ("User-Agent", f"poller/{__version__}"), *self._transport.headers]
        client = httpx.AsyncClient(
            transport=AiohttpTransport(client=self._session, verify=self._tls, trust_env=False, proxy=proxy),
            headers=headers,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            timeout=None,  # noqa: S113 -- the whole exchange has one deadline, see _exchange
            trust_env=False,
        )
        self._http = await self._open.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        self._http = None
        await self._open.aclose()

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=self._limits.concurrency, ssl=self._tls, ttl_dns_cache=60)
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)

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
        async with self._slots:
            if self._rate:
                await self._rate.acquire()
            try:
                async with asyncio.timeout(self._limits.timeout.total_seconds()):
                    status, body = await self._exchange(path, params, token)
            except TimeoutError:
                seconds = self._limits.timeout.total_seconds()
                raise SourceUnavailable(f"GET {path}: no complete answer within {seconds:g} s") from None
            except (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError) as error:
                reason = hidden(" ".join(str(error).split()), token) or type(error).__name__
                raise SourceUnavailable(f"GET {path}: {reason}") from None
        if status == httpx.codes.OK:
            return body
        raise self._refusal(path, status, _beginning(body, token))

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

    def _refusal(self, path: str, status: int, beginning: str) -> SourceError:
        text = f"GET {path}: the API answered {status}" + (f": {beginning}" if beginning else "")
        if status in _TRANSIENT or status >= _SERVER_ERROR:
            return SourceUnavailable(text)
        if status == httpx.codes.UNAUTHORIZED:
            return SourceRefused(f"{text}; it does not accept {self._credential.origin}", status=status)
        return SourceRefused(text, status=status)


def _beginning(body: bytes, token: str | None) -> str:
    # Hidden before anything is cut: half a token would not be recognised any more.
    text = " ".join(hidden(body.decode("utf-8", "replace"), token)[: 4 * _SHOWN].split())
    return "".join(filter(str.isprintable, text if len(text) <= _SHOWN else text[:_SHOWN] + "…"))


def _tls(transport: Transport) -> ssl.SSLContext:
    context = ssl.create_default_context()
    try:
        if transport.ca_file:
            context = ssl.create_default_context(cafile=transport.ca_file)
        if transport.client_cert_file:
            context.load_cert_chain(transport.client_cert_file, transport.client_key_file)
    except (OSError, ssl.SSLError) as error:
        wanted = ", ".join(str(path) for path in (transport.ca_file, transport.client_cert_file) if path)
        raise ConfigurationError(f"the certificates of a source cannot be used ({wanted}): {error.strerror}") from None
    return context
