"""One exchange with the API: a GET, and how it ended.

The law: it has a bound in time, body included, and in size, decoded; what the network does ends in a value and not in
an exception; nobody but the caller decides that it is made again.
How the connection comes about is :mod:`poller.http.transport`'s to know.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final, Self

import httpx
import msgspec

from poller.errors import SourceNonsense
from poller.hiding import gist, hidden, one_line
from poller.http.transport import FAILURES, ClosedUnanswered, Transport, http_client, reason_of, tls_of
from poller.source.inflating import Inflater
from poller.source.paging import Params
from poller.source.retrying import Outcome
from poller.source.validators import Validators, validators_of
from poller.telemetry import costs
from poller.telemetry.sources import Failure, SourceSeries

_SECRET: Final = 8  # characters; shorter values of configured headers are no secrets


class Limits(msgspec.Struct, frozen=True):
    """The bounds of a source's exchanges. ``rate`` is requests a second, None for no limit; sizes are bytes."""

    timeout: timedelta = timedelta(seconds=30)
    max_page_bytes: int = 64 * 1024 * 1024
    rate: float | None = None
    concurrency: int = 4


class Reply(msgspec.Struct, frozen=True):
    """How an exchange ended.

    Attributes:
        outcome: as far as manners are concerned.
        text: one line that says what came, fit for an error; it holds neither the token nor a configured header.
        body: the whole of it, decoded; empty where none came or ``too_large``.
        too_large: whether the body was larger than allowed.
        validators: what the answer says of its version.
        failure: why it is no usable answer, in a word; None where it is one, whatever its status.
        received: bytes of the body as they were sent, as far as they are known.
    """

    outcome: Outcome
    text: str
    body: bytes = b""
    too_large: bool = False
    validators: Validators = Validators()
    failure: Failure | None = None
    received: int = 0


class Exchange:
    """The connections to one API. An async context manager: enter it before the first call."""

    def __init__(
        self, base_url: str, limits: Limits, transport: Transport, *, series: SourceSeries | None = None
    ) -> None:
        """Take where to ask, ``base_url`` without a trailing slash, and where requests are counted.

        Raises:
            ConfigurationError: a certificate file cannot be used.
        """
        self._base_url = base_url
        self._limits = limits
        self._transport = transport
        self._series = series
        self._secrets = tuple(value for _, value in transport.headers if len(value) >= _SECRET)
        self._tls = tls_of(transport)
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

    async def get(self, path: str, params: Params, condition: dict[str, str], token: str | None) -> Reply:
        """Ask once.

        Args:
            path: is appended to the base URL.
            params: the query.
            condition: headers that make the request a conditional one.
            token: the bearer token.
        """
        begun = time.perf_counter()
        try:
            reply = await self._ended(path, params, condition, token)
        except SourceNonsense:
            self._count("body", time.perf_counter() - begun)
            raise
        self._count(reply.failure or reply.outcome.status or "other", time.perf_counter() - begun, reply.received)
        return reply

    def _count(self, answer: int | Failure, seconds: float, received: int = 0) -> None:
        costs.requested(seconds, received)
        if self._series:
            self._series.ended(answer, seconds)

    async def _ended(self, path: str, params: Params, condition: dict[str, str], token: str | None) -> Reply:
        seconds = self._limits.timeout.total_seconds()
        headers = condition | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            async with asyncio.timeout(seconds):
                return await self._get(path, params, headers, token)
        except TimeoutError:
            return Reply(Outcome(), f"GET {path}: no complete answer within {seconds:g} s", failure="timeout")
        except FAILURES as error:
            return _failed(path, error, token, *self._secrets)

    async def _get(self, path: str, params: Params, headers: dict[str, str], token: str | None) -> Reply:
        if self._http is None:
            raise RuntimeError("the client is not open")
        async with self._http.stream("GET", self._base_url + path, params=params or None, headers=headers) as response:
            status, sent = response.status_code, response.headers
            outcome = Outcome(status, retry_after=sent.get("retry-after"), date=sent.get("date"))
            try:
                body, received = await self._body(response)
            except FAILURES as error:
                return msgspec.structs.replace(_failed(path, error, token, *self._secrets), failure="body")
        if body is None:
            most = self._limits.max_page_bytes
            text = f"GET {path}: the answer is larger than {most} bytes (max_page_bytes)"
            return Reply(outcome, text, too_large=True, failure="body", received=received)
        beginning = "" if status == httpx.codes.OK else self._said(body, token)
        text = f"GET {path}: the API answered {status}" + (f": {beginning}" if beginning else "")
        return Reply(outcome, text, body, validators=validators_of(sent), received=received)

    def _said(self, body: bytes, token: str | None) -> str:
        return gist(hidden(body.decode("utf-8", "replace"), token, *self._secrets))

    async def _body(self, response: httpx.Response) -> tuple[bytes | None, int]:
        """The body, None where it is too large, decoded or as it was sent; and how many bytes were sent."""
        inflater = Inflater(response.headers.get("content-encoding", ""), most=self._limits.max_page_bytes)
        chunks: list[bytes] = []
        size = sent = 0
        async for wire in response.aiter_raw():
            chunk = inflater.take(wire)
            size += len(chunk)
            sent += len(wire)
            if max(size, sent) > self._limits.max_page_bytes:
                return None, sent
            chunks.append(chunk)
        inflater.finish()
        return b"".join(chunks), sent


def _failed(path: str, error: Exception, *secrets: str | None) -> Reply:
    closed = isinstance(error.__cause__, ClosedUnanswered)
    connecting = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError)
    text = f"GET {path}: {one_line(reason_of(error, *secrets))}"
    return Reply(Outcome(closed=closed), text, failure="connect" if connecting else "other")
