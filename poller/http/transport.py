"""The HTTP client for sources and token endpoints: certificates, proxy, headers, decompression.

httpx uses aiohttp's transport, because its own pool is slow under concurrency.

**Invariants**

- Nothing is read from the environment (proxies, netrc), no cookie is stored, no redirect followed.
- The client has no timeout: the caller limits the whole exchange.
- A server cannot send more answers than it was asked for, see :class:`OneAnswerProtocol`.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, Final, cast

import httpx
import msgspec
import structlog

from poller import __version__
from poller.errors import ConfigurationError, SourceNonsense
from poller.http.ssrf import Lookup, system_lookup
from poller.text import hidden, shown_path


@contextmanager
def _no_authorities() -> Iterator[None]:
    """Keep OpenSSL from loading the system's certificate authorities."""
    before = {name: os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")}
    os.environ.update(dict.fromkeys(before, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# When it is imported, aiohttp makes two contexts with all authorities: a tenth of a start, and two megabytes. Here each
# connection has a context of its own, see `tls_of`; aiohttp's trust no server.
with _no_authorities():
    import aiohttp
    from aiohttp.abc import AbstractResolver, ResolveResult
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.http_exceptions import HttpProcessingError
    from httpx_aiohttp import AiohttpTransport

_NOT_PEM = "expected PEM: certificates, and for a client its key too"
_MISMATCH = "the key is not that of the certificate"
_ENCRYPTED = "the key is encrypted; expected one without a passphrase"

LONGEST_LINE: Final = 64 * 1024  # bytes of one response header; some servers send more than aiohttp's default of 8 190

_PLACE: Final = re.compile(r"\s*\(_ssl\.c:\d+\)'?|\[Errno -?\d+\]\s*")  # a place in Python's source, or an error number
_IN_TLS: Final = re.compile(r"\[SSL: (\w+)\]")
_FIRST: Final = re.compile(r"[:\n]")
_RECEIVED: Final = re.compile(r"received (\d+) of (\d+) bytes")

_PIECE: Final = 16 * 1024  # bytes that are parsed together
_MOST_INTERIM: Final = 100  # answers before the one that counts
_SWITCHING: Final = 101
_FINAL: Final = 200

KEPT_SECONDS: Final = 75.0
"""For how long an unused connection is kept: a feed that is polled every minute needs no new one, and no TLS handshake.

Servers that keep them for a shorter time close them, which costs nothing.
"""

_Stamp = tuple[int, int, int, int]

_log = structlog.get_logger("poller.http")

FAILURES = (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError)
"""The errors of an exchange without a complete response; :func:`reason_of` describes them."""


class Transport(msgspec.Struct, frozen=True):
    """The connection settings of a source: certificate authorities, client certificate, proxy, extra headers."""

    ca_file: Path | None = None
    client_cert_file: Path | None = None
    client_key_file: Path | None = None
    proxy: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


def tls_of(transport: Transport, of: str = "source") -> ssl.SSLContext:
    """The TLS context with these certificates. Do not change it: all transports without files share one.

    Args:
        transport: names the files.
        of: the owner of the files, for messages.

    Raises:
        ConfigurationError: a file cannot be used.
    """
    if not (transport.ca_file or transport.client_cert_file):
        return _system_tls()
    with _loading(of, transport.ca_file):
        context = ssl.create_default_context(cafile=transport.ca_file)
    if transport.client_cert_file:
        with _loading(of, transport.client_cert_file, transport.client_key_file):
            context.load_cert_chain(transport.client_cert_file, transport.client_key_file, password=_no_passphrase)
    return context


class CertificateFiles:
    """The certificate files of a source or a sink, read again when they change.

    **Invariants**

    - A new connection uses the present content of the files.
    - If the files cannot be used, the last good certificates stay in use; :attr:`problem` and the log say why.
    """

    def __init__(self, transport: Transport, of: str = "source") -> None:
        """Read the files.

        Args:
            transport: names the files.
            of: the owner of the files, for messages.

        Raises:
                ConfigurationError: a file cannot be used.
        """
        self.problem: str | None = None
        self._transport = transport
        self._of = of
        self._paths = [
            path for path in (transport.ca_file, transport.client_cert_file, transport.client_key_file) if path
        ]
        self._stamps = self._stamp()
        self._context = tls_of(transport, of) if self._paths else None

    @property
    def are_named(self) -> bool:
        """Whether there are any files."""
        return bool(self._paths)

    def context(self) -> ssl.SSLContext:
        """The TLS context for new connections; the same object until the files change."""
        if self._context is None:
            return _system_tls()
        stamps = self._stamp()
        if stamps != self._stamps:
            self._stamps = stamps
            self._read_again()
        return self._context

    def _read_again(self) -> None:
        try:
            self._context = tls_of(self._transport, self._of)
        except ConfigurationError as error:
            self.problem = f"{error}; the last good certificates stay in use"
            _log.warning("certificates not renewed", error=self.problem)
        else:
            self.problem = None
            _log.info("certificates renewed", files=[str(path) for path in self._paths])

    def _stamp(self) -> list[_Stamp | None]:
        return [_stamp_of(path) for path in self._paths]


def _stamp_of(path: Path) -> _Stamp | None:
    try:
        found = os.stat(path)  # noqa: PTH116 -- microseconds on a local file, for each request
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


@contextmanager
def _loading(of: str, *files: Path | None) -> Iterator[None]:
    """Translate errors of these files; OpenSSL's messages name places in its source."""
    try:
        yield
    except (OSError, ValueError) as error:  # an SSLError is an OSError; a ValueError comes from _no_passphrase
        why = str(error) if not isinstance(error, OSError) else error.strerror
        if isinstance(error, ssl.SSLError):
            why = _MISMATCH if error.reason == "KEY_VALUES_MISMATCH" else _NOT_PEM
        named = ", ".join(_named(path) for path in files if path)
        raise ConfigurationError(f"the certificates of a {of} cannot be used ({named}): {why}") from None


def _named(path: Path) -> str:
    try:
        path.stat()  # the error may be that of another file
    except OSError as error:
        return shown_path(path, error)
    return str(path)


def _no_passphrase() -> str:
    """Refuse an encrypted key, for which OpenSSL would ask on the terminal."""
    raise ValueError(_ENCRYPTED)


def shared_tls(*, uses_tls: bool) -> ssl.SSLContext:
    """The TLS context without certificate files; one without authorities where there is no TLS. Do not change it."""
    return _system_tls() if uses_tls else _no_tls()


@cache
def _system_tls() -> ssl.SSLContext:
    """The system's authorities, shared: loading them takes 20 ms and almost a megabyte."""
    return ssl.create_default_context()


@cache
def _no_tls() -> ssl.SSLContext:
    """For connections without TLS, in place of the system's authorities. No server is trusted by it."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class DirectClient:
    """Sends GETs through a transport of httpx: past its client's cookies, redirects and authentication.

    There are none of these, and they are a seventh of the CPU of a round that brings nothing.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport, headers: Sequence[tuple[str, str]]) -> None:
        """Take the transport, and the headers of each request; they replace the usual ones of the same name."""
        self._transport = transport
        self._always, self._names = _always(tuple(headers))

    async def open_get(self, url: httpx.URL, headers: Mapping[str, str]) -> httpx.Response:
        """Send a GET; the body is read from the response, which is then closed.

        Args:
            url: with its query.
            headers: in ASCII; they replace those of each request that have the same name.
        """
        added = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
        always = self._always
        if not self._names.isdisjoint(replaced := {name.lower() for name, _ in added}):
            always = [one for one in always if one[0].lower() not in replaced]
        return await self._transport.handle_async_request(httpx.Request("GET", url, headers=[*always, *added]))

    async def aclose(self) -> None:
        """Close the transport."""
        await self._transport.aclose()


@lru_cache(maxsize=64)
def _always(headers: tuple[tuple[str, str], ...]) -> tuple[list[tuple[bytes, bytes]], frozenset[bytes]]:
    """The headers of each request, with these, and their names; one value for all sources with the same ones."""
    found = httpx.Headers({"Connection": "keep-alive"})
    found.update(_usual(headers))
    return found.raw, frozenset(name.lower() for name, _ in found.raw)


def _usual(headers: Sequence[tuple[str, str]]) -> httpx.Headers:
    """The usual headers and these; of a name that is in both, the latter."""
    usual = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": f"poller/{__version__}"}
    given = {name.lower() for name, _ in headers}
    kept = [one for one in usual.items() if one[0].lower() not in given]
    return httpx.Headers([*kept, *headers], encoding="utf-8")  # as sinks get them; the default takes ASCII alone


def transport_of(tls: ssl.SSLContext, *, proxy: str | None, connections: int) -> httpx.AsyncBaseTransport:
    """A transport for this many connections at a time, 0 for any number; opened by its first request."""

    def session() -> aiohttp.ClientSession:
        connector = OneAnswerConnector(
            limit=connections, ssl=tls, ttl_dns_cache=60, resolver=NameResolver(), keepalive_timeout=KEPT_SECONDS
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            middlewares=(_not_repeated,),
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
        )

    return AiohttpTransport(client=session, verify=tls, trust_env=False, proxy=httpx.Proxy(proxy) if proxy else None)


class SharedConnections:
    """The connections of the sources of a process that name no certificate files.

    Sources of one server use each other's connections, as their requests differ in headers alone: a thousand users of
    an API need no thousand connections, nor TLS handshakes. How many requests a source has under way is its own limit.
    """

    def __init__(self) -> None:
        """Begin without connections."""
        self._transports: dict[tuple[str | None, bool], httpx.AsyncBaseTransport] = {}

    def through(self, proxy: str | None, *, uses_tls: bool) -> httpx.AsyncBaseTransport:
        """The transport through this proxy, or without one. It is not closed by its users."""
        found = self._transports.get((proxy, uses_tls))
        if found is None:
            tls = shared_tls(uses_tls=uses_tls)
            found = self._transports[proxy, uses_tls] = transport_of(tls, proxy=proxy, connections=0)
        return found

    async def aclose(self) -> None:
        """Close all of them, after their users."""
        transports, self._transports = self._transports, {}
        for one in transports.values():
            await one.aclose()


def http_client(transport: Transport, tls: ssl.SSLContext, *, connections: int) -> httpx.AsyncClient:
    """A client for this many connections, not open yet. The headers of ``transport`` are for the API only."""
    return httpx.AsyncClient(
        transport=transport_of(tls, proxy=transport.proxy, connections=connections),
        headers=_usual(()),
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        timeout=None,  # noqa: S113 -- the caller limits the whole exchange
        trust_env=False,
    )


class OneAnswerProtocol(ResponseHandler):
    """A connection whose server cannot send answers without end.

    aiohttp parses and keeps every answer that comes, also if no request waits for one: a server that floods an idle
    connection would cost a gigabyte within seconds, in which nothing else runs. So what follows an answer ends the
    connection, and after many interim answers nothing more is read: the caller's time limit ends the exchange.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin without a request."""
        super().__init__(loop)
        self._final: aiohttp.StreamReader | None = None
        self._interim = 0

    def set_response_params(self, **params: Any) -> None:
        """Prepare for a request."""
        self._final, self._interim = None, 0
        super().set_response_params(**params)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take the head of an answer and its body."""
        head, body = data
        if head.code < _FINAL and head.code != _SWITCHING:
            self._interim += 1
        elif self._final is None:
            self._final = body
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        """Parse these bytes, a few at a time: one read of a socket may give thousands of answers."""
        if not data:  # a paused parser goes on
            super().data_received(data)
        for start in range(0, len(data), _PIECE):
            if self._final is not None and self._final.is_eof():
                if self.transport and data[start:].strip(b"\r\n"):  # some end a body with a line break too many
                    self.force_close()
                    self.transport.abort()
                return
            if self._interim > _MOST_INTERIM:
                self._pause_transport_reading()
                return
            super().data_received(data[start : start + _PIECE])
            if self.exception() is not None:
                self._fail_body()
                return

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 -- as there
        """Go on after a pause. aiohttp calls this for each piece of a body that is taken, paused or not."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def _fail_body(self) -> None:
        """Tell the reader of the body that it is malformed; aiohttp does not always, and it would wait in vain."""
        if self._final is not None and not self._final.is_eof() and self._final.exception() is None:
            self._final.set_exception(aiohttp.ClientPayloadError("the body cannot be parsed"))


class OneAnswerConnector(aiohttp.TCPConnector):
    """Makes connections with :class:`OneAnswerProtocol`, or with a kind of it."""

    def __init__(self, *, protocol: type[OneAnswerProtocol] = OneAnswerProtocol, **options: Any) -> None:
        super().__init__(**options)
        # aiohttp has no public interface for this. Without it, tests of broken responses and of floods fail.
        self._factory = cast("partial[ResponseHandler]", partial(protocol, loop=self._loop))


SOCKETS: Final = 2
"""Sockets that one connection takes at most while it is made: to this number of addresses at the same time."""


class NameResolver(AbstractResolver):
    """Resolves the names of servers for aiohttp, see :mod:`poller.http.ssrf`.

    A server that drops packets is tried at its further addresses meanwhile. Of a name with many addresses only two are
    returned, of different families if there are two: others come in turn. Else such a name would use up the descriptors
    of the process.
    """

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        """Ask this look-up."""
        self._lookup = lookup
        self._turn = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """At most :data:`SOCKETS` addresses of a host.

        Raises:
            AddressRefused: the look-up refuses one of the addresses.
            OSError: there are no addresses.
        """
        results = [_result(host, port, text) for text in await self._lookup(host)]
        if family != socket.AF_UNSPEC:
            results = [result for result in results if result["family"] == family]
        if not results:
            raise OSError(None, f"{host} has no address")
        return self._in_turn(results) if len(results) > SOCKETS else results

    def _in_turn(self, results: list[ResolveResult]) -> list[ResolveResult]:
        turn, self._turn = self._turn, self._turn + 1
        families: dict[int, list[ResolveResult]] = {}
        for result in results:
            families.setdefault(result["family"], []).append(result)
        halves = list(families.values()) if len(families) > 1 else [results[::2], results[1::2]]
        return [half[turn % len(half)] for half in halves]

    async def close(self) -> None:
        """Do nothing: the resolver holds no resources."""


def _result(host: str, port: int, text: str) -> ResolveResult:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=text, port=port, family=family, proto=0, flags=flags)


def reason_of(error: BaseException, *secrets: str | None) -> str:
    """The reason why an exchange failed, in one line without these secrets."""
    chain = list(_chain(error))
    found = _tls_reason(chain) or next(filter(None, map(_connection_reason, chain)), None)
    found = found or next(filter(None, map(_protocol_reason, reversed(chain))), None)
    if found is not None:
        return found
    told = " ".join(str(error).split())
    if alert := _IN_TLS.search(told):
        return _not_agreed(alert[1])
    return hidden(_PLACE.sub("", told), *secrets) or type(error).__name__


def _tls_reason(chain: Sequence[BaseException]) -> str | None:
    for cause in chain:
        if isinstance(cause, aiohttp.ClientError):
            continue  # some are called SSL errors without having their attributes
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the server's certificate is not accepted: {cause.verify_message} (see ca_file)"
        if isinstance(cause, ssl.SSLError) and cause.reason:
            return _not_agreed(cause.reason)
    return None


def _not_agreed(reason: str) -> str:
    sign = " (client_cert_file sets the client certificate)" if "ALERT" in reason else ""
    return f"TLS cannot be agreed on: {reason.replace('_', ' ').lower()}{sign}"


def _connection_reason(error: BaseException) -> str | None:
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {error.status} instead of connecting"
    if not isinstance(error, aiohttp.ClientConnectorError):
        return None
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else _PLACE.sub("", error.strerror or "")
    if not why:
        why = "the connection was closed"
        if error.ssl is not False:
            why += " during the TLS handshake: check https://, and whether client_cert_file is required"
    return f"cannot connect to {error.host}:{error.port}: {why}"


def _protocol_reason(error: BaseException) -> str | None:
    """A parser's error, without the quoted text."""
    if not isinstance(error, HttpProcessingError | aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        return None
    told = str(getattr(error, "message", "")) or str(error)
    if cut := _RECEIVED.search(told):
        return f"the answer breaks off after {cut[1]} of {cut[2]} bytes"
    if "Not enough data" in told or isinstance(error, aiohttp.ClientPayloadError):
        return "the answer breaks off before its end"
    return f"the answer is not HTTP: {_FIRST.split(told)[0].lower() or 'it cannot be read'}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class ConnectionClosedEarly(aiohttp.ClientConnectionError):
    """The connection was closed before there was an answer."""


async def _not_repeated(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from repeating a GET by itself.

    It repeats a GET once if the connection was closed before a response, without regard to the rate limit. It
    recognizes this failure by its class, so this raises another one; the retry policy repeats the request.
    """
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise  # no connection was open, so aiohttp does not repeat it
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise ConnectionClosedEarly(str(error)) from error


_GZIP: Final = 16 + zlib.MAX_WBITS
_MAGIC: Final = b"\x1f"  # the first byte of a gzip member


class BodyDecoder:
    """Decodes the pieces of one body, in order. A gzip body may have several members (RFC 1952)."""

    def __init__(self, encoding: str, *, most: int) -> None:
        """Start a body.

        Args:
            encoding: the response's Content-Encoding.
            most: the size limit; a piece that decompresses to more gives one byte more than the limit.

        Raises:
            SourceNonsense: an encoding that was not requested.
        """
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip"):
            raise SourceNonsense(f"the answer is encoded as {encoding[:40]!r}; only gzip was asked for")
        self._most = most
        self._zlib = zlib.decompressobj(_GZIP) if name.endswith("gzip") else None
        self._over = False

    def decode(self, piece: bytes) -> bytes:
        """The decoded piece.

        Raises:
            httpx.DecodingError: the body is not gzip.
        """
        if self._zlib is None:
            return piece
        decoded: list[bytes] = []  # of each member; one is returned without a copy, for it may be as large as a page
        left = self._most + 1
        try:
            while piece and left and not self._is_over(piece):
                if self._zlib.eof:
                    self._zlib = zlib.decompressobj(_GZIP)
                decoded.append(self._zlib.decompress(piece, left))
                left -= len(decoded[-1])
                piece = self._zlib.unused_data
        except zlib.error as error:
            raise httpx.DecodingError(f"the answer is not gzip: {error}") from None
        return decoded[0] if len(decoded) == 1 else b"".join(decoded)

    def _is_over(self, piece: bytes) -> bool:
        """Whether this is padding after the last member, without the magic number."""
        self._over = self._over or (self._zlib is not None and self._zlib.eof and not piece.startswith(_MAGIC))
        return self._over

    def close(self) -> None:
        """Check that the body is complete.

        Raises:
            httpx.DecodingError: the body is truncated.
        """
        if self._zlib is not None and not self._zlib.eof:
            raise httpx.DecodingError("the answer is cut off within its gzip encoding")
