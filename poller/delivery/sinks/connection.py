"""Connections to HTTP sinks, made by aiohttp, requests over them, and the first bytes of their responses.

aiohttp makes and keeps the connections and parses the responses. Requests are written here: a webhook needs nothing of
what aiohttp's session does for redirects, cookies, proxies, traces and bodies of every kind, and that costs as much as
reading and settling the event.

If aiohttp's parser rejects a part of a response, it returns nothing of the bytes that arrived in the same segment. So
the first bytes are kept beside the parser, and status and headers are read from them here.

**Invariants**

* A connection that the sink has closed, or on which it sent unrequested data, is not used again. The socket is checked,
  because the event loop may not have noticed yet. Unrequested data is not kept.
* Data left from an earlier response (a body after 204) is not read as the next response; its connection is closed.
* :attr:`ReceivedBytes.unanswered` is true only for a connection that was used before and on which no response arrived:
  the sink had closed it, or closed it without a response, and the request may be sent over a new one.
* Once a whole status line has arrived, its status counts, even if faults follow: malformed or too long headers, a body
  that must not be there, truncated chunks, data after ``Connection: close``. Interim responses (1xx but 101) are
  skipped. Headers count up to the first malformed one, so ``Retry-After`` before a fault is respected.
* Names are resolved only by :class:`GuardedResolver`, which checks each address.
* A response has at most :data:`READ_ALL` bytes, whatever they are: endless chunk extensions or line breaks give no body
  that could be bounded. One with more ends there, and its connection is closed.
* A request is written only while it is permitted: its lease may run out while a connection is made, or while other
  requests are gathered.
* A request that is given up without a response does not arrive later, see :func:`poller.lifecycle.abandon`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import select
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from multidict import CIMultiDict
from yarl import URL

from poller.delivery.sinks.base import Failure, always
from poller.errors import AddressRefused, SourceError
from poller.http.ssrf import AddressPolicy, Lookup, checked_addresses
from poller.http.transport import NameResolver, OneAnswerConnector, OneAnswerProtocol
from poller.lifecycle import abandon

_BEGINNING: Final = b"HTTP/"
_BREAK: Final = re.compile("[\r\n\0]")
_BROKEN: Final = "a header contains a line break"
_MOST_TEMPLATES: Final = 64


class ReceivedBytes:
    """The bytes received on the connection of one request.

    Attributes:
        allowed: whether the request may be sent.
        lost: the error that ended the connection; None: it was closed in order.
        new_connection: whether to use a new connection.
    """

    __slots__ = ("_bytes", "_left_behind", "_new_tls", "_reused", "allowed", "lost", "new_connection")

    def __init__(self, *, allowed: Callable[[], bool] = always, new_connection: bool = False) -> None:
        self.allowed = allowed
        self.new_connection = new_connection
        self.lost: BaseException | None = None
        self._bytes = b""
        self._left_behind = b""
        self._reused = False
        self._new_tls = False

    @property
    def head(self) -> AnswerHead | None:
        """The head of the response, as far as it has arrived."""
        return head_in(self._bytes)

    @property
    def other_protocol(self) -> str | None:
        """The protocol that the sink uses instead of HTTP/1.1."""
        return other_protocol(self._bytes)

    @property
    def unanswered(self) -> bool:
        """Whether no byte of a response came over a connection that was used before."""
        return self._reused and not self._bytes

    @property
    def is_new_tls(self) -> bool:
        """Whether TLS was established for this request, and nothing arrived after that."""
        return self._new_tls and not self._bytes

    def start(self, *, reused: bool, new_tls: bool, lost: BaseException | None) -> None:
        """Begin with this connection; ``new_tls``: it is new, and TLS was established on it."""
        self._bytes = self._left_behind = b""
        self._reused, self._new_tls, self.lost, self.new_connection = reused, new_tls, lost, False

    def add(self, data: bytes) -> tuple[bytes, bool]:
        """Keep received bytes. Returns those of the response, and whether other data came before it."""
        rest = False
        if self._reused and not self._bytes:
            data = self._left_behind + data
            start = data.find(_BEGINNING)
            if start < 0:
                self._left_behind = data[1 - len(_BEGINNING) :]
                return b"", False
            rest = bool(data[:start].strip(b"\r\n"))
            data = data[start:]
        if len(self._bytes) < READ_HEAD:
            self._bytes += data[: READ_HEAD - len(self._bytes)]
        return data, rest


current: Final[ContextVar[ReceivedBytes | None]] = ContextVar("received", default=None)
"""The received bytes of the request in this context."""


class SinkProtocol(OneAnswerProtocol):
    """One connection.

    Attributes:
        is_withheld: whether a request was not written because it was no longer allowed.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.is_withheld = False
        self._received: ReceivedBytes | None = None
        self._size = 0
        self._lost: BaseException | None = None
        self._poll: select.poll | None = None

    def set_response_params(self, **params: Any) -> None:
        """Prepare for a request."""
        reused, self._received = self._received is not None, current.get()
        if self._received is not None:
            new_tls = (
                not reused and self.transport is not None and self.transport.get_extra_info("sslcontext") is not None
            )
            self._received.start(reused=reused, new_tls=new_tls, lost=self._lost)
        self._size = 0
        super().set_response_params(**params)

    def write(self, request: bytes) -> None:
        """Write a request if it is still allowed, else close the connection.

        A connection that has ended takes nothing; the wait for the response ends with it.
        """
        if self.transport is None or self.transport.is_closing():
            return
        if self._received is not None and not self._received.allowed():
            self.is_withheld = True
            self.close()
            return
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Keep the first bytes, and pass all bytes to the parser, up to a bound."""
        self._size += len(data)
        if self._size > READ_ALL:
            self._cut_off()
            return
        if data and self._received is not None:
            data, rest = self._received.add(data)
            if rest:
                self.force_close()
            if not data:
                return
        super().data_received(data)

    def _cut_off(self) -> None:
        """End the response here, and the connection."""
        self.force_close()
        if self._final is None:
            self.set_exception(NotHttp(f"no status line within {READ_ALL // 1024} KiB"))
        elif not self._final.is_eof() and self._final.exception() is None:
            self._final.feed_eof()
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Keep the error: a TLS alert may come before the request is written."""
        self._lost = exc
        if self._received is not None:
            self._received.lost = exc
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection, and send no more of a request.

        One without a response is not to arrive behind those that follow it, and a sink that has answered and reads no
        more would keep the connection for ever.
        """
        if self.transport is not None and (self._final is None or self.transport.get_write_buffer_size()):
            abandon(self.transport)
        super().close()

    def is_connected(self) -> bool:
        """Whether a request may be sent over this connection."""
        received = current.get()
        if received is not None and received.new_connection:
            return False
        return super().is_connected() and not self._has_news()

    def _has_news(self) -> bool:
        """Whether there is data to read: on an idle connection, its end or unrequested data."""
        if self.transport is None or self._received is None:
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(self._poll.poll(0))


class RequestWrites:
    """Requests to all sinks that are prepared and not written yet: some are written together.

    An event goes to many sinks. A request that is written alone, between the preparations of others, wakes up a
    receiver on this machine, or the network's driver, that has just gone to sleep: that costs as much as writing
    several.
    """

    def __init__(self) -> None:
        """Begin without requests."""
        self._waiting: list[tuple[SinkProtocol, bytes]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, connection: SinkProtocol, request: bytes) -> None:
        """Write this request together with the next ones, at the latest in the next turn of the event loop."""
        loop = asyncio.get_running_loop()
        if not self._waiting or self._loop is not loop:  # what an ended loop has left is never written
            self._waiting, self._loop = [], loop
            loop.call_soon(self._write)
        self._waiting.append((connection, request))
        if len(self._waiting) >= _TOGETHER:
            self._write()

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection, request in waiting:
            connection.write(request)


_writes: Final = RequestWrites()


class SinkConnector(OneAnswerConnector):
    """Makes connections with :class:`SinkProtocol`."""

    def __init__(self, *, limit: int, tls: ssl.SSLContext, resolver: GuardedResolver) -> None:
        super().__init__(protocol=SinkProtocol, limit=limit, ssl=tls, resolver=resolver, ttl_dns_cache=60)

    async def _create_connection(self, *args: Any, **options: Any) -> ResponseHandler:
        """A new connection, if the request may still be sent. aiohttp has no public interface for this."""
        connection = await super()._create_connection(*args, **options)
        if (request := current.get()) is not None and not request.allowed():
            connection.close()
            raise NotAllowed
        return connection


_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
_TOGETHER: Final = 16  # requests; the first of them waits about a millisecond for the last
_COPIED: Final = 64 * 1024  # bytes; a larger body is no part of the same write as its head
_INTERIM: Final = range(100, 200)


class StartedResponse:
    """A response whose head has arrived.

    Attributes:
        status: its code.
        headers: with case-insensitive names.
        content: the body, as it arrives.
    """

    __slots__ = ("_connection", "_protocol", "content", "headers", "status")

    def __init__(
        self, connection: Connection, protocol: ResponseHandler, head: RawResponseMessage, content: aiohttp.StreamReader
    ) -> None:
        self.status: int = head.code
        self.headers: Mapping[str, str] = head.headers
        self.content = content
        self._connection = connection
        self._protocol = protocol

    def close(self) -> None:
        """Keep the connection for another request if this exchange has ended, else close it."""
        protocol = self._protocol
        unsent = protocol.transport is not None and protocol.transport.get_write_buffer_size()
        if self.content.is_eof() and not unsent:
            self._connection.release()
        else:
            self._connection.close()


class SinkClient:
    """Sends requests to one URL over kept connections, which it makes when they are needed."""

    def __init__(self, url: URL, connector: SinkConnector, headers: Mapping[str, str]) -> None:
        """Begin without connections.

        Args:
            url: as it is to be sent.
            connector: makes connections; closed with this client.
            headers: of each request, unless the request has others of these names.
        """
        self._url = url
        self._connector = connector
        self._headers = CIMultiDict({"Host": url.host_port_subcomponent or "", **headers})
        self._templates: dict[tuple[object, ...], str] = {}
        self._form: tuple[ssl.SSLContext | bool, aiohttp.ClientRequest] | None = None

    async def close(self) -> None:
        """Close all connections."""
        await self._connector.close()

    async def request(
        self, method: str, headers: Sequence[tuple[str, str]], body: bytes | None, *, tls: ssl.SSLContext | bool
    ) -> StartedResponse:
        """Send a request. Returns when the head of its response has arrived; close that.

        Args:
            method: POST or OPTIONS.
            headers: of this request.
            body: None: there is none.
            tls: trusted authorities and certificate; True: those of the connector.

        Raises:
            aiohttp.ClientError, OSError: there is no connection, or no response.
            ValueError: a header cannot be sent.
        """
        head, form = self._head_of(method, headers, body), self._form_of(tls=tls)
        try:
            connection = await self._connector.connect(form, traces=[], timeout=_NO_TIMEOUT)
        except aiohttp.ClientError:
            raise
        except OSError as error:
            raise aiohttp.ClientOSError(*error.args) from error
        try:
            return await _exchanged(connection, head, body or b"", form)
        except BaseException:
            connection.close()
            raise

    def _form_of(self, *, tls: ssl.SSLContext | bool) -> aiohttp.ClientRequest:
        """A request as the connector wants one: for it, all requests to this URL are the same."""
        if self._form is None or self._form[0] is not tls:
            loop = asyncio.get_running_loop()
            self._form = tls, aiohttp.ClientRequest("POST", self._url, loop=loop, ssl=tls)
        return self._form[1]

    def _head_of(self, method: str, headers: Sequence[tuple[str, str]], body: bytes | None) -> bytes:
        """Request line and headers. Of a name the last value counts if it is spelt differently, else all do."""
        names = (method, body is None, *[name for name, _ in headers])
        template = self._templates.get(names)
        if template is None:
            template = self._template_of(method, [name for name, _ in headers], has_body=body is not None)
            if len(self._templates) >= _MOST_TEMPLATES:  # in binary mode, each set of attributes has its own
                self._templates.clear()
            self._templates[names] = template
        values = [value for _, value in headers]
        if _BREAK.search("".join(values)):
            raise ValueError(_BROKEN)
        return template.format(*values, 0 if body is None else len(body)).encode()

    def _template_of(self, method: str, names: Sequence[str], *, has_body: bool) -> str:
        """The head of all requests with headers of these names; their values are to be filled in, and the length."""
        fields = CIMultiDict((name, _literal(value)) for name, value in self._headers.items())
        given: set[str] = set()
        for number, name in enumerate(names):
            if name in given:
                fields.add(_literal(name), f"{{{number}}}")
            else:
                fields[_literal(name)] = f"{{{number}}}"
                given.add(name)
        if has_body:
            fields.setdefault("Content-Type", "application/octet-stream")
            fields["Content-Length"] = f"{{{len(names)}}}"
        begins = _literal(f"{method} {self._url.raw_path_qs} HTTP/1.1")
        lines = [begins, *[f"{name}: {value}" for name, value in fields.items()]]
        if _BREAK.search("".join(lines)):
            raise ValueError(_BROKEN)
        return "\r\n".join([*lines, "", ""])


def _literal(text: str) -> str:
    """A text that :meth:`str.format` leaves as it is."""
    return text.replace("{", "{{").replace("}", "}}")


async def _exchanged(connection: Connection, head: bytes, body: bytes, form: aiohttp.ClientRequest) -> StartedResponse:
    """Write a request, and wait for the head of its response."""
    protocol = connection.protocol
    if not isinstance(protocol, SinkProtocol):  # there is none
        raise aiohttp.ServerDisconnectedError
    protocol.set_response_params(read_until_eof=True, auto_decompress=False)
    if protocol.transport is None or protocol.transport.is_closing():
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
    if len(body) <= _COPIED:
        _writes.add(protocol, head + body)
    else:
        protocol.transport.write(head)
        protocol.transport.write(body)
    while True:
        try:
            message, content = await protocol.read()
        except aiohttp.ClientConnectionError as error:
            if protocol.is_withheld:
                raise NotAllowed from error
            raise
        except HttpProcessingError as error:
            failed = aiohttp.ClientResponseError(form.request_info, (), status=error.code, message=error.message)
            raise failed from error
        if message.code not in _INTERIM or message.code == _SWITCHING:
            return StartedResponse(connection, protocol, message, content)


class GuardedResolver(NameResolver):
    """A resolver that returns only permitted addresses."""

    def __init__(self, allowed: AddressPolicy, lookup: Lookup | None = None) -> None:
        """Begin with the address policy and the look-up of names; default: the system's resolver."""
        super().__init__(partial(checked_addresses, allowed=allowed, lookup=lookup))


READ_HEAD: Final = 16 * 1024
"""Bytes of a response that are kept."""

READ_ALL: Final = 512 * 1024
"""Bytes of a response that are received at most."""

_STATUS_LINE: Final = re.compile(rb"[\r\n]*HTTP/\d\.\d ([1-9]\d\d)(?: [^\n]*)?\n|[\r\n]*HTTP/\d\.\d ([1-9]\d\d)\r\n")
_HEADER: Final = re.compile(rb"([!#-'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*)\r?\n")
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_SWITCHING: Final = 101
_FINAL: Final = 200

# Frame of length below 64 KiB, type SETTINGS or GOAWAY, any flags, stream 0: what an HTTP/2 server sends first.
_HTTP2: Final = re.compile(rb"\x00..[\x04\x07].\x00\x00\x00\x00", re.DOTALL)
_TLS: Final = re.compile(rb"[\x14-\x16]\x03[\x00-\x04]")

HTTP2_ONLY: Final = "the sink speaks HTTP/2 only; enable HTTP/1.1 at the sink, or put a proxy in front of it"
_HTTP2_TEXT: Final = f"the answer is not HTTP/1.1: {HTTP2_ONLY}"
_TLS_TEXT: Final = "the answer is not HTTP: the sink speaks TLS; write https:// in the subscription's sink"


class AnswerHead(msgspec.Struct, frozen=True):
    """Status, readable headers, and the first bytes of the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def head_in(received: bytes) -> AnswerHead | None:
    """The head of the final response; None: its status line has not arrived, or is malformed."""
    at = 0
    while line := _STATUS_LINE.match(received, at):
        status = int(line[1] or line[2])
        blank = _BLANK_LINE.search(received, line.end() - 1)
        if status >= _FINAL or status == _SWITCHING:
            body = received[blank.end() :] if blank and len(received) < READ_HEAD else b""  # a cut head has no body
            return AnswerHead(status, _headers(received, line.end()), body)
        if blank is None:
            return None
        at = blank.end()
    return None


def other_protocol(received: bytes) -> str | None:
    """The protocol that the sink uses instead of HTTP/1.1, with the remedy; None: unknown."""
    if _HTTP2.match(received):
        return _HTTP2_TEXT
    if _TLS.match(received):
        return _TLS_TEXT
    return None


def _headers(received: bytes, at: int) -> Mapping[str, str]:
    headers: CIMultiDict[str] = CIMultiDict()
    while line := _HEADER.match(received, at):
        headers.add(line[1].decode("ascii"), line[2].rstrip(b" \t").decode("utf-8", "surrogateescape"))
        at = line.end()
    return headers


FAILURES: Final = (AddressRefused, SourceError, aiohttp.ClientError, OSError, ValueError)
"""The errors of an exchange, which :func:`failure_of` translates. ValueError: a URL or header cannot be sent."""

MAY_WANT_A_CERTIFICATE: Final = (
    "it may want a client certificate (client_cert_file and client_key_file of the subscription)"
)
_CLOSED: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError)
_PLAIN: Final = (
    (TimeoutError, Failure.TIMEOUT, "no answer in time"),
    (ValueError, Failure.REQUEST, "the URL or a header cannot be sent as it is"),
)
_BY_NUMBER: Final = {
    errno.ECONNREFUSED: Failure.REFUSED,
    errno.ETIMEDOUT: Failure.TIMEOUT,
    errno.ECONNRESET: Failure.RESET,
    errno.EPIPE: Failure.RESET,
    errno.ECONNABORTED: Failure.RESET,
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.ENOSPC), Failure.LOCAL
    ),
}


_TLS_REMEDIES: Final = (
    (
        ("certificate required",),
        "it wants a client certificate: set client_cert_file and client_key_file of the subscription",
    ),
    (
        ("alert handshake failure",),
        f"{MAY_WANT_A_CERTIFICATE}, or none of the TLS versions and ciphers offered",
    ),
    (
        ("alert unknown ca", "alert bad certificate", "alert certificate", "alert unsupported certificate"),
        "it does not accept the client certificate: check client_cert_file of the subscription",
    ),
    (("no application protocol",), HTTP2_ONLY),
    (("protocol version", "unsupported protocol"), "the sink must offer TLS 1.2 or later"),
    (
        ("wrong version number", "record layer failure", "http request"),
        "the answer is not TLS: the sink seems to speak plain HTTP on this port",
    ),
)


_UNTRUSTED: Final = "set ca_file of the subscription to the certificate of the authority that issued it"
_CERTIFICATE_REMEDIES: Final = (
    ("mismatch", "the sink's URL must have the name that it was issued for"),
    ("not valid for", "the sink's URL must have the name that it was issued for"),
    ("expired", "the sink has to renew it"),
    ("not yet valid", "set the clocks"),
)


class NotHttp(aiohttp.ClientError):
    """A response that the parser accepted is no valid one."""


class NotAllowed(aiohttp.ClientError):
    """The request may not be sent any more; nothing of it was."""


def failure_of(error: BaseException, lost: BaseException | None = None) -> tuple[Failure, str]:
    """The kind of failure, and one line without any sent data.

    Args:
        error: of the exchange.
        lost: the error that ended its connection; aiohttp does not always pass it on.
    """
    told = _of_tls(error) or _of_tls(lost)  # first, because a certificate error is a ValueError, too
    if told:
        return told
    if any(isinstance(one, _CLOSED) for one in (error, error.__cause__)):
        return Failure.CLOSED, "the connection was closed before there was an answer"
    for kind, failure, text in _PLAIN:
        if isinstance(error, kind):
            return failure, text
    return _with_reason(error) or _of_connection(error)


def _with_reason(error: BaseException) -> tuple[Failure, str] | None:
    match error:
        case NotHttp():
            return Failure.NOT_HTTP, f"the answer is not HTTP: {error}"
        case AddressRefused():
            return Failure.ADDRESS, f"the address is refused: {error}"
        case SourceError():
            return Failure.CREDENTIAL, str(error)
        case aiohttp.ClientConnectorDNSError():
            return Failure.DNS, f"{error.host} cannot be resolved: {error.strerror or 'the name has no address'}"
        case aiohttp.ClientResponseError() | aiohttp.ClientPayloadError():
            return Failure.NOT_HTTP, f"the answer is not HTTP: {_complaint(error)}"
    return None


def _of_tls(error: BaseException | None) -> tuple[Failure, str] | None:
    for cause in _chain(error):
        if isinstance(cause, aiohttp.ClientError):
            continue  # some are called SSL errors without having their attributes
        if isinstance(cause, ssl.SSLCertVerificationError):
            remedy = next((told for word, told in _CERTIFICATE_REMEDIES if word in cause.verify_message), _UNTRUSTED)
            return Failure.TLS, f"the sink's certificate is not accepted: {cause.verify_message.rstrip('.')}; {remedy}"
        if isinstance(cause, ssl.SSLError) and cause.reason:
            return Failure.TLS, _tls_text(cause.reason.replace("_", " ").lower())
    return None


def _tls_text(reason: str) -> str:
    """The side that refused, the reason, and the remedy."""
    _, alert, name = reason.partition(" alert ")
    remedy = next((remedy for words, remedy in _TLS_REMEDIES if any(word in reason for word in words)), "")
    told = f"the sink refuses TLS (alert: {name})" if alert else f"TLS cannot be agreed on: {reason}"
    return f"{told}; {remedy}" if remedy else told


def _of_connection(error: BaseException) -> tuple[Failure, str]:
    number = (error.errno if isinstance(error, OSError) else None) or 0
    why = os.strerror(number) if number > 0 else "no address of it answers"
    if not isinstance(error, aiohttp.ClientConnectorError):
        return _BY_NUMBER.get(number, Failure.NETWORK), why
    where = f"cannot connect to {error.host}:{error.port}: "
    if not number and isinstance(error.__cause__, ConnectionError):
        return Failure.TLS, (
            f"{where}the connection was closed while TLS was being agreed on; {MAY_WANT_A_CERTIFICATE}"
        )
    return _BY_NUMBER.get(number, Failure.NETWORK), where + why


def _complaint(error: aiohttp.ClientError) -> str:
    """The parser's message without the quoted data after a colon, which may be a part of a secret."""
    said = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return said.partition(":")[0].strip()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
