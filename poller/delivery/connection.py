"""Connections to a sink: aiohttp's, and what came over them byte by byte.

aiohttp's parser hands over nothing of an answer when it refuses any part of it that arrived in the same segment. The
first bytes are kept beside it, so that :mod:`poller.delivery.answer_head` can tell what was answered.

**Invariants**

* A connection that the sink has closed, or sent something over while nothing was asked, is not used again: that is
  looked for at the socket, for the event loop may not have got to it yet.
* What an earlier answer left behind (a body after 204) is not taken for the next answer; its connection is closed then.
* :attr:`Received.unanswered` is true only of a connection that was used before, and over which nothing of an answer
  came: then the sink had closed it, or did so without answering, and the request may be sent over a new one.
"""

from __future__ import annotations

import asyncio
import functools
import select
import ssl
from contextvars import ContextVar
from typing import Any, Final, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

from poller.delivery.answer_head import READ_HEAD, AnswerHead, head_in, other_protocol
from poller.delivery.guard import Guard

_BEGINNING: Final = b"HTTP/"


class Received:
    """What has come over the connection of one request.

    Attributes:
        lost: what ended the connection, where it was not closed in order.
        new_connection: ask for a connection that was not used before.
    """

    __slots__ = ("_bytes", "_left_behind", "_reused", "_tls", "lost", "new_connection")

    def __init__(self, *, new_connection: bool = False) -> None:
        self.new_connection = new_connection
        self.lost: BaseException | None = None
        self._bytes = b""
        self._left_behind = b""
        self._reused = False
        self._tls = False

    @property
    def head(self) -> AnswerHead | None:
        """As far as it has arrived."""
        return head_in(self._bytes)

    @property
    def other_protocol(self) -> str | None:
        """What the sink speaks instead of HTTP/1.1."""
        return other_protocol(self._bytes)

    @property
    def unanswered(self) -> bool:
        """Whether nothing of an answer came over a connection that was used before."""
        return self._reused and not self._bytes

    @property
    def is_new_tls(self) -> bool:
        """Whether TLS was agreed on for this request, and nothing came after that."""
        return self._tls and not self._reused and not self._bytes

    def begin(self, *, reused: bool, tls: bool, lost: BaseException | None) -> None:
        """A connection was found."""
        self._bytes = self._left_behind = b""
        self._reused, self._tls, self.lost, self.new_connection = reused, tls, lost, False

    def add(self, data: bytes) -> tuple[bytes, bool]:
        """What of these bytes belongs to the answer, and whether something else stood before it."""
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


current: Final[ContextVar[Received | None]] = ContextVar("received", default=None)
"""Of the request that is being sent in this context."""


class SinkProtocol(ResponseHandler):
    """One connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._received: Received | None = None
        self._lost: BaseException | None = None
        self._poll: select.poll | None = None

    def set_response_params(self, **params: Any) -> None:
        """A request is about to be sent."""
        reused, self._received = self._received is not None, current.get()
        if self._received is not None:
            tls = self.transport is not None and self.transport.get_extra_info("sslcontext") is not None
            self._received.begin(reused=reused, tls=tls, lost=self._lost)
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Keep the beginning of it, and let it be parsed."""
        if data and self._received is not None:
            data, rest = self._received.add(data)
            if rest:
                self.force_close()
            if not data:
                return
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Keep why: an alert of TLS may come before the request is written."""
        self._lost = exc
        if self._received is not None:
            self._received.lost = exc
        super().connection_lost(exc)

    def is_connected(self) -> bool:
        """Whether a request may be sent over it."""
        received = current.get()
        if received is not None and received.new_connection:
            return False
        return super().is_connected() and not self._has_news()

    def _has_news(self) -> bool:
        """Whether there is something to be read: of an idle connection that is its end, or nothing good."""
        if self.transport is None or self._received is None:
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(self._poll.poll(0))


class SinkConnector(aiohttp.TCPConnector):
    """Makes these connections."""

    def __init__(self, *, limit: int, tls: ssl.SSLContext | None, resolver: Guard) -> None:
        super().__init__(limit=limit, ssl=tls or True, resolver=resolver, ttl_dns_cache=60)
        # The one way in: aiohttp has no public one. Without it a test of broken answers fails.
        self._factory = cast("functools.partial[ResponseHandler]", functools.partial(SinkProtocol, loop=self._loop))
