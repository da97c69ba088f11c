"""How a source or a token endpoint is reached beyond its URL: certificates, proxy, extra headers.

httpx speaks through aiohttp's transport, because its own pool collapses under concurrency. Nothing is taken from the
process' environment (proxies, netrc), no cookie is kept, no redirect followed. There is no timeout here: whoever asks
bounds the whole exchange.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Sequence
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path

import aiohttp
import httpx
import msgspec
from httpx_aiohttp import AiohttpTransport

from poller import __version__
from poller.errors import ConfigurationError
from poller.hiding import hidden

FAILURES = (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError)
"""What an exchange may raise where no answer, or a broken one, came; :func:`reason_of` words it."""


class Transport(msgspec.Struct, frozen=True):
    """How a source is reached beyond its URL: certificate authorities, client certificate, proxy, extra headers."""

    ca_file: Path | None = None
    client_cert_file: Path | None = None
    client_key_file: Path | None = None
    proxy: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


def tls_of(transport: Transport) -> ssl.SSLContext:
    """The certificates, loaded. To be used and not changed: who has no files of its own gets the same one.

    Raises:
        ConfigurationError: a file cannot be used.
    """
    if not (transport.ca_file or transport.client_cert_file):
        return _system_tls()
    try:
        context = ssl.create_default_context(cafile=transport.ca_file)
        if transport.client_cert_file:
            context.load_cert_chain(transport.client_cert_file, transport.client_key_file)
    except (OSError, ssl.SSLError) as error:
        wanted = ", ".join(str(path) for path in (transport.ca_file, transport.client_cert_file) if path)
        raise ConfigurationError(f"the certificates of a source cannot be used ({wanted}): {error.strerror}") from None
    return context


@cache
def _system_tls() -> ssl.SSLContext:
    """The system's authorities: 20 ms and most of a megabyte each time that they are read, for each of many sources."""
    return ssl.create_default_context()


def http_client(
    transport: Transport, tls: ssl.SSLContext, *, connections: int, headers: Sequence[tuple[str, str]] = ()
) -> httpx.AsyncClient:
    """A client that is not open yet, for so many connections; it makes them when they are needed.

    ``headers`` go with each request; those of ``transport`` are the API's alone, so its client passes them here.
    """

    def session() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=connections, ssl=tls, ttl_dns_cache=60)
        return aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, middlewares=(_not_repeated,)
        )

    proxy = httpx.Proxy(transport.proxy) if transport.proxy else None
    return httpx.AsyncClient(
        transport=AiohttpTransport(client=session, verify=tls, trust_env=False, proxy=proxy),
        headers=[
            ("Accept", "application/json"),
            ("Accept-Encoding", "gzip"),
            ("User-Agent", f"poller/{__version__}"),
            *headers,
        ],
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        timeout=None,  # noqa: S113 -- see above
        trust_env=False,
    )


def reason_of(error: BaseException, *secrets: str | None) -> str:
    """Why an exchange failed, in one line without these secrets."""
    chain = list(_chain(error))
    for cause in chain:
        if isinstance(cause, aiohttp.ClientError):
            continue  # some call themselves SSL errors, without what makes one
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the server's certificate is not accepted: {cause.verify_message} (ca_file says whom to trust)"
        if isinstance(cause, ssl.SSLError) and cause.reason:
            sign = " (client_cert_file says who we are)" if "ALERT" in cause.reason else ""
            return f"TLS cannot be agreed on: {cause.reason.replace('_', ' ').lower()}{sign}"
    for cause in chain:
        if isinstance(cause, aiohttp.ClientConnectorError):
            why = os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror
            return f"cannot connect to {cause.host}:{cause.port}: {why or 'the connection was closed'}"
    return hidden(" ".join(str(error).split()), *secrets) or type(error).__name__


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class ClosedUnanswered(aiohttp.ClientConnectionError):
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
        raise ClosedUnanswered(str(error)) from error
