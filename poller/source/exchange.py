"""One exchange with the API: a GET, and how it ended.

The law: it has a bound in time, body included, and in size, decoded; what the network does ends in a value and not in
an exception; nobody but the caller decides that it is made again.

httpx speaks through aiohttp's transport, because its own pool collapses under concurrency. Nothing is taken from the
process' environment (proxies, netrc), no cookie is kept, no redirect followed.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from datetime import timedelta
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Final, Self

import aiohttp
import httpx
import msgspec
from httpx_aiohttp import AiohttpTransport

from poller import __version__
from poller.errors import ConfigurationError
from poller.source.credentials import hidden
from poller.source.paging import Params
from poller.source.retrying import Outcome
from poller.source.validators import Validators, validators_of

_SHOWN: Final = 200  # characters of an error's body that a message repeats


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


class Reply(msgspec.Struct, frozen=True):
    """How an exchange ended.

    Attributes:
        outcome: as far as manners are concerned.
        text: one line that says what came, fit for an error; it holds no token.
        body: the whole of it, decoded; empty where none came or ``too_large``.
        too_large: whether the body was larger than allowed.
        validators: what the answer says of its version.
    """

    outcome: Outcome
    text: str
    body: bytes = b""
    too_large: bool = False
    validators: Validators = Validators()


class Exchange:
    """The connections to one API. An async context manager: enter it before the first call."""

    def __init__(self, base_url: str, limits: Limits, transport: Transport) -> None:
        """Take where to ask; ``base_url`` is without a trailing slash.

        Raises:
            ConfigurationError: a certificate file cannot be used.
        """
        self._base_url = base_url
        self._limits = limits
        self._transport = transport
        self._tls = _tls(transport)
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
            timeout=None,  # noqa: S113 -- the whole exchange has one deadline, see get
            trust_env=False,
        )
        self._http = await self._open.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        self._http = None
        await self._open.aclose()

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._limits.concurrency, ssl=self._tls, ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            middlewares=(_not_repeated,),
        )

    async def get(self, path: str, params: Params, condition: dict[str, str], token: str | None) -> Reply:
        """Ask once.

        Args:
            path: is appended to the base URL.
            params: the query.
            condition: headers that make the request a conditional one.
            token: the bearer token.
        """
        seconds = self._limits.timeout.total_seconds()
        headers = condition | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            async with asyncio.timeout(seconds):
                return await self._get(path, params, headers, token)
        except TimeoutError:
            return Reply(Outcome(), f"GET {path}: no complete answer within {seconds:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError) as error:
            reason = hidden(" ".join(str(error).split()), token) or type(error).__name__
            return Reply(Outcome(closed=isinstance(error.__cause__, _ClosedUnanswered)), f"GET {path}: {reason}")

    async def _get(self, path: str, params: Params, headers: dict[str, str], token: str | None) -> Reply:
        if self._http is None:
            raise RuntimeError("the client is not open")
        async with self._http.stream("GET", self._base_url + path, params=params or None, headers=headers) as response:
            status, sent = response.status_code, response.headers
            outcome = Outcome(status, retry_after=sent.get("retry-after"), date=sent.get("date"))
            body = await self._body(response)
        if body is None:
            most = self._limits.max_page_bytes
            return Reply(
                outcome, f"GET {path}: the answer is larger than {most} bytes (max_page_bytes)", too_large=True
            )
        beginning = "" if status == httpx.codes.OK else _beginning(body, token)
        text = f"GET {path}: the API answered {status}" + (f": {beginning}" if beginning else "")
        return Reply(outcome, text, body, validators=validators_of(sent))

    async def _body(self, response: httpx.Response) -> bytes | None:
        """The body; None where it is too large."""
        chunks, size = [], 0
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > self._limits.max_page_bytes:
                return None
            chunks.append(chunk)
        return b"".join(chunks)


class _ClosedUnanswered(aiohttp.ClientConnectionError):
    """The connection was closed before there was an answer."""


async def _not_repeated(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from making a GET again by itself.

    It does so once where the connection was closed before an answer, and asks neither the rate nor the gate. It knows
    such a failure by its class, so this gives it another one; the repetition is the policy's, at once but in its turn.
    """
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise  # there was no connection to be closed, and this one is not made again
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _ClosedUnanswered(str(error)) from error


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
