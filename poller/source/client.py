"""The HTTP client of one source: a path in, a body, an error, or "unchanged" out.

**Invariants**

- All feeds of a source together stay within its bounds: requests in flight, requests a second, and pauses
  (:mod:`poller.source.retry`). Processes that share the feeds divide the first two among them. Retries count as
  requests. An API that hangs takes no connection from others: the sources of a process share its descriptors evenly.
- An exchange has a time limit, body included, and a size limit, decoded. What the network does ends in a value, not
  in an exception; only the caller decides about retries.
- Only gzip is requested and accepted, and what a piece decompresses to is bounded before it is in memory: a few
  kilobytes may stand for gigabytes.
- Errors hold neither the token nor the value of a configured header.
- A status that is an error, or 304, decides by itself. Its body only explains it: one that is cut off, late, too large
  or encoded otherwise takes nothing from the status and its headers.
- A 304 never hides a change. An ``ETag`` names one version. ``Last-Modified`` names a second, and a record may change
  later in that second: it is used only if the answer came long enough after it.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Final, Protocol, Self

import httpx
import msgspec

from poller.auth.base import AppliedCredential, Credential, NoCredential
from poller.changes.plan import COUNTERS
from poller.clock import Clock
from poller.errors import SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from poller.http.transport import (
    FAILURES,
    BodyDecoder,
    CertificateFiles,
    ConnectionClosedEarly,
    DirectClient,
    SharedConnections,
    Transport,
    reason_of,
    transport_of,
)
from poller.limits import ConcurrencyLimit, RateLimiter, http_date
from poller.source.feed import RoundResult
from poller.source.paging import SINCE, Get, Params
from poller.source.retry import (
    ATTEMPTS,
    PATIENCE,
    ExchangeOutcome,
    NoRetry,
    PauseSource,
    RequestGate,
    Step,
    is_affordable,
    step_after,
)
from poller.telemetry import metrics as costs
from poller.telemetry import tracing
from poller.telemetry.metrics import Failure, SourceSeries
from poller.telemetry.tracing import Span, SpanScope, record_response, request_words, sent_again
from poller.text import gist, hidden, one_line

_NEVER: Final = datetime.min.replace(tzinfo=UTC)
# What RFC 9110 calls an entity tag, in ASCII and with something in it; others are not sent back.
_ETAG: Final = re.compile(r'(W/)?"[!#-~]{1,1024}"')
_SETTLED: Final = timedelta(seconds=60)
_LONGEST_AGE: Final = 10  # digits
_KEPT_URLS: Final = 64  # of a source
_LONGEST_KEPT: Final = 512  # characters

LONGEST_UNCHANGED: Final = timedelta(days=2)
"""For how long an API may call a listing unchanged before it is read all the same."""

# A cache in between must ask the API: what it has stored may be older than what is known here.
_PRESENT: Final = ("Cache-Control", "no-cache")


class Validators(msgspec.Struct, frozen=True):
    """The validator of an answer; both are None if it has no version."""

    etag: str | None = None
    modified: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a conditional request."""
        if self.etag is not None:
            return {"If-None-Match": self.etag}
        return {"If-Modified-Since": self.modified} if self.modified is not None else {}


def validators_of(headers: Mapping[str, str]) -> Validators:
    """The validators of an answer, from its headers (names in any case)."""
    etag = headers.get("etag", "")
    if _ETAG.fullmatch(etag):
        return Validators(etag=etag)
    modified = headers.get("last-modified", "")
    changed, sent = http_date(modified), http_date(headers.get("date"))
    if changed and sent and sent - changed >= _SETTLED:
        return Validators(modified=modified)
    return Validators()


def age_of(text: str) -> int:
    """The seconds of the header ``Age``; 0: there is none, or it is no number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_AGE else 0


class ConditionalResponse(msgspec.Struct, frozen=True):
    """A body and its validators; a body of None means "unchanged". ``age``: the seconds that a cache had kept it."""

    body: bytes | None
    validators: Validators = Validators()
    age: int = 0


class ConditionalRequest(Protocol):
    """One exchange with the API, conditional on these validators."""

    async def __call__(self, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
        """The answer; errors as :meth:`poller.source.client.ApiClient.get`."""
        ...


class ApiClient:
    """The client of one source, shared by its feeds. An async context manager."""

    def __init__(
        self,
        base_url: str,
        *,
        credential: Credential | None = None,
        limits: ClientLimits | None = None,
        transport: Transport | None = None,
        clock: Clock,
        series: SourceSeries | None = None,
        shared: SharedConnections | None = None,
    ) -> None:
        """Set up the client; :meth:`__aenter__` opens it.

        Args:
            base_url: without a trailing slash; paths are appended to it.
            credential: the source of bearer tokens.
            limits: the bounds of the source's requests.
            transport: the connection settings.
            clock: the store's, where there is a store.
            series: counts the requests.
            shared: the connections of all sources; without them it has its own.

        Raises:
            ConfigurationError: a certificate file cannot be used.
        """
        self._credential = credential or NoCredential()
        limits = limits or ClientLimits()
        self._base_url = base_url
        self._exchange = HttpSession(
            base_url, limits, transport or Transport(), clock=clock, series=series, shared=shared
        )
        self._series = series
        self._clock = clock
        self._gate = RequestGate(self._clock)
        self.date: str | None = None
        self._wanted = limits.concurrency
        self._slots = ConcurrencyLimit(limits.concurrency)
        self._pace = RateLimiter(limits.rate)

    @property
    def opens_at(self) -> datetime | None:
        """The end of the pause that the API asked for; None: there is none."""
        return self._gate.opens_at

    async def __aenter__(self) -> Self:
        """Open the pool; connections are made when they are needed."""
        await self._exchange.__aenter__()
        if self._series:
            self._series.opened(lambda: self._gate.shut or not self._gate.answering)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        if self._series:
            self._series.closed()
        await self._credential.close()
        await self._exchange.__aexit__()

    def share(self, part: Fraction) -> None:
        """Use only this share of the source's rate and concurrency."""
        self._slots.change(part)
        self._pace.change(part)

    @property
    def wanted(self) -> int:
        """The connections of its configuration."""
        return self._wanted

    def bound(self, most: int) -> None:
        """Use at most this number of connections, whatever the share. Call it before the first request."""
        self._slots.bound(most)

    async def get(self, path: str, params: Params = (), *, patience: timedelta = PATIENCE) -> bytes:
        """The body of a 200.

        ``patience`` bounds waits and retries; the first attempt has the whole ``timeout`` in any case.

        Raises:
            SourceUnavailable: there is no usable answer; later there may be one. Raised without a wait if the API
                asked for a pause longer than ``patience``, or does not answer and no probe is due.
            SourceRefused: a status that a retry would not change.
            SourceNonsense: the body is larger than ``max_page_bytes``.
            CredentialUnusable: there is no token to send.
        """
        return (await self._settled(path, params, {}, patience)).body

    async def ask(
        self, path: str, params: Params = (), *, unless: Validators | None = None, patience: timedelta = PATIENCE
    ) -> ConditionalResponse:
        """As :meth:`get`, conditional on these validators."""
        reply = await self._settled(path, params, unless.headers if unless else {}, patience)
        return ConditionalResponse(
            None if reply.outcome.status == httpx.codes.NOT_MODIFIED else reply.body, reply.validators, reply.age
        )

    async def _settled(self, path: str, params: Params, condition: dict[str, str], patience: timedelta) -> HttpReply:
        """The answer that a retry would not improve, if it is usable."""
        deadline, attempt = self._gate.elapsed + patience, 1
        reply, step = await self._attempt(path, params, condition, attempt, deadline)
        while not isinstance(step, NoRetry):
            left = deadline - self._gate.elapsed
            if not is_affordable(step.after, attempt=attempt, left=left) or not self._gate.answering:
                raise self._given_up(reply, step, attempt)
            if not isinstance(step, PauseSource):  # a pause is everybody's: the gate waits
                await self._clock.sleep(step.after.total_seconds())
            costs.retried()
            try:
                async with asyncio.timeout((deadline - self._gate.elapsed).total_seconds()):
                    reply, step = await self._attempt(path, params, condition, attempt + 1, deadline)
            except TimeoutError:
                raise self._given_up(reply, step, attempt) from None
            attempt += 1
        refusal = self._refusal(reply, conditional=bool(condition))
        if refusal:
            raise refusal
        return reply

    async def _attempt(
        self, path: str, params: Params, condition: dict[str, str], attempt: int, deadline: timedelta
    ) -> tuple[HttpReply, Step]:
        while True:
            await self._gate.passed(path, deadline=deadline)
            token = await self._credential.token()
            async with self._slots:
                await self._pace.turn()
                if self._gate.shut:
                    continue  # another feed's answer shut it while this one was waiting for its turn
                with self._gate.request(path) as learn:
                    reply = await self._answer(path, params, condition, token, again=attempt - 1)
                    self.date = reply.outcome.date
                    step = step_after(reply.outcome, attempt=attempt, jitter=self._gate.jitter, now=self._clock.now())
                    learn(reply.outcome, step)
                    return reply, step

    async def _answer(
        self, path: str, params: Params, condition: dict[str, str], token: str | None, *, again: int
    ) -> HttpReply:
        """One answer; after a 401, that of a second request with a new token."""
        reply = await self._asked(path, params, condition, token, again=again)
        if reply.outcome.status != httpx.codes.UNAUTHORIZED:
            return reply
        offered = "the token of " if token else ""
        if token is not None and await self._credential.renew(token):
            reply = await self._asked(path, params, condition, await self._credential.token(), again=again + 1)
            if reply.outcome.status != httpx.codes.UNAUTHORIZED:
                return reply
            offered = "a fresh token of "
        return msgspec.structs.replace(
            reply, text=f"{reply.text}; it does not accept {offered}{self._credential.origin}"
        )

    async def _asked(
        self, path: str, params: Params, condition: dict[str, str], token: str | None, *, again: int
    ) -> HttpReply:
        with request_span(self._base_url, path, again=again) as span:
            reply = await self._exchange.get(path, params, condition, self._credential.apply(token))
            record_reply(span, reply)
            return reply

    def _given_up(self, reply: HttpReply, step: Step, attempts: int) -> SourceUnavailable:
        asked = f"; {self._gate.asked}" if isinstance(step, PauseSource) else ""
        return SourceUnavailable(f"{reply.text} ({attempts} attempt{'s' if attempts > 1 else ''}){asked}")

    def _refusal(self, reply: HttpReply, *, conditional: bool) -> SourceError | None:
        """The error that a final answer means; None: it is usable."""
        status = reply.outcome.status
        if reply.too_large:
            return SourceNonsense(reply.text)
        if status == httpx.codes.OK or status is None or (conditional and status == httpx.codes.NOT_MODIFIED):
            return None
        return SourceRefused(reply.text, status=status, age=reply.age)


def round_span(feed: str) -> Span:
    """The trace of one round."""
    return tracing.root("round", attributes={"poller.feed": feed})


def record_round(span: Span, result: RoundResult) -> None:
    """Add the result to the trace of a round."""
    counts = {f"poller.round.{name}": getattr(result, name) for name in COUNTERS if name != "seconds"}
    span.set_attributes({"poller.round.mode": result.mode.value, "poller.round.ok": result.ok, **counts})
    if not result.ok:
        span.fail("round", result.error or "")


def request_span(base_url: str, path: str, *, again: int) -> Span:
    """The span of one request; ``again`` counts its repetitions, 0 for none."""
    if not tracing.on():
        return tracing.NOTHING
    words = {**request_words("GET", base_url + path), **sent_again(again)}
    return tracing.child("GET", kind=SpanScope.CLIENT, attributes=words)


def record_reply(span: Span, reply: HttpReply) -> None:
    """Add the reply to the span of a request."""
    record_response(span, reply.outcome.status, text=reply.text)
    if reply.too_large:
        span.fail("too_large", reply.text)


_SECRET: Final = 8  # characters; shorter values of configured headers are no secrets
_EXPLAINED: Final = 64 * 1024  # bytes of an error's body that are decoded to text; a message shows far less
_EXPLAINS_WITHIN: Final = 5.0  # seconds that an error's body may take, at most half of the exchange's limit


class ClientLimits(msgspec.Struct, frozen=True):
    """The bounds of a source's exchanges. ``rate`` is requests a second, None for no limit; sizes are bytes."""

    timeout: timedelta = timedelta(seconds=30)
    max_page_bytes: int = 64 * 1024 * 1024
    rate: float | None = None
    concurrency: int = 4


class HttpReply(msgspec.Struct, frozen=True):
    """How an exchange ended.

    Attributes:
        outcome: for the retry policy.
        text: one line that says what came, fit for an error; it holds neither the token nor a configured header.
        body: all of it, decoded; empty if there was none or it is ``too_large``.
        too_large: whether the body was larger than allowed.
        validators: of the answer's version.
        failure: why it is no usable answer, in a word; None: it is one, whatever its status.
        received: bytes of the body as sent, as far as known.
        age: how many seconds a cache had stored it; 0: none had, or none said so.
    """

    outcome: ExchangeOutcome
    text: str
    body: bytes = b""
    too_large: bool = False
    validators: Validators = Validators()
    failure: Failure | None = None
    received: int = 0
    age: int = 0


_NONE: Final[Mapping[str, str]] = {}
_NO_PROOF: Final = AppliedCredential()


class HttpSession:
    """The connections to one API. An async context manager."""

    def __init__(
        self,
        base_url: str,
        limits: ClientLimits,
        transport: Transport,
        *,
        clock: Clock,
        series: SourceSeries | None = None,
        shared: SharedConnections | None = None,
    ) -> None:
        """Set up the session; :meth:`__aenter__` opens it.

        ``shared``: where its connections are, unless it has certificate files.

        Raises:
            ConfigurationError: a certificate file cannot be used.
        """
        self._base_url = base_url
        self._limits = limits
        self._clock = clock
        self._transport = transport
        self._series = series
        self._secrets = tuple(value for _, value in transport.headers if len(value) >= _SECRET)
        self._certificates = CertificateFiles(transport)
        self._shared = None if self._certificates.are_named else shared
        self._is_open = False
        self._urls: dict[str, tuple[Params, httpx.URL]] = {}
        self._tls: ssl.SSLContext | None = None
        self._http: DirectClient | None = None
        self._earlier: DirectClient | None = None

    async def __aenter__(self) -> Self:
        """Permit requests; connections are made, and certificate authorities loaded, when they are needed."""
        self._is_open = True
        return self

    async def _client(self) -> DirectClient:
        """The client with the present certificates; the one before it ends its requests, and any other is closed."""
        if self._shared is not None:
            if self._http is None:
                proxy = self._transport.proxy
                uses_tls = proxy is not None or not self._base_url.startswith("http://")
                self._http = DirectClient(self._shared.through(proxy, uses_tls=uses_tls), self._headers)
            return self._http
        tls = self._certificates.context()
        if self._http is None or tls is not self._tls:
            self._tls = tls
            own = transport_of(tls, proxy=self._transport.proxy, connections=self._limits.concurrency)
            closed, self._earlier, self._http = self._earlier, self._http, DirectClient(own, self._headers)
            if closed is not None:
                await closed.aclose()
        return self._http

    @property
    def _headers(self) -> Sequence[tuple[str, str]]:
        headers = self._transport.headers
        return headers if any(name.lower() == "cache-control" for name, _ in headers) else (_PRESENT, *headers)

    async def __aexit__(self, *_: object) -> None:
        """Close all connections that are not shared."""
        clients = (self._earlier, self._http) if self._shared is None else ()
        self._earlier = self._http = None
        self._is_open = False
        for client in clients:
            if client is not None:
                await client.aclose()

    async def get(
        self, path: str, params: Params = (), condition: Mapping[str, str] = _NONE, proof: AppliedCredential = _NO_PROOF
    ) -> HttpReply:
        """Send one GET.

        Args:
            path: is appended to the base URL.
            params: the query.
            condition: the headers of a conditional request.
            proof: the part of the credential that is sent with it.
        """
        begun = self._clock.monotonic()
        try:
            reply = await self._ended(path, params, condition, proof)
        except SourceNonsense:
            self._count("body", self._clock.monotonic() - begun)
            raise
        self._count(reply.failure or reply.outcome.status or "other", self._clock.monotonic() - begun, reply.received)
        return reply

    def _count(self, answer: int | Failure, seconds: float, received: int = 0) -> None:
        costs.requested(seconds, received)
        if self._series:
            self._series.ended(answer, seconds)

    async def _ended(
        self, path: str, params: Params, condition: Mapping[str, str], proof: AppliedCredential
    ) -> HttpReply:
        seconds = self._limits.timeout.total_seconds()
        secrets = (*proof.secrets, *self._secrets)
        try:
            async with asyncio.timeout(seconds):
                return await self._get(path, (*params, *proof.params), {**condition, **proof.headers}, secrets)
        except TimeoutError:
            return HttpReply(
                ExchangeOutcome(), f"GET {path}: no complete answer within {seconds:g} s", failure="timeout"
            )
        except FAILURES as error:
            failed = _failed(path, error, *secrets)
            if self._certificates.problem:
                failed = msgspec.structs.replace(failed, text=f"{self._certificates.problem}; {failed.text}")
            return failed

    async def _get(self, path: str, params: Params, headers: Mapping[str, str], secrets: tuple[str, ...]) -> HttpReply:
        if not self._is_open:
            raise RuntimeError("the client is not open")
        client = await self._client()
        async with aclosing(await client.open_get(self._url(path, params), headers)) as response:
            status, sent = response.status_code, response.headers
            outcome = ExchangeOutcome(status, retry_after=sent.get("retry-after"), date=sent.get("date"))
            try:
                read = self._body if status == httpx.codes.OK else self._explanation
                body, received = await read(response)
            except FAILURES as error:
                return msgspec.structs.replace(_failed(path, error, *secrets), failure="body")
        if body is None:
            most = self._limits.max_page_bytes
            text = f"GET {path}: the answer is larger than {most} bytes (max_page_bytes)"
            return HttpReply(outcome, text, too_large=True, failure="body", received=received)
        beginning = "" if status == httpx.codes.OK else _said(body, secrets)
        text = f"GET {path}: the API answered {status}" + (f": {beginning}" if beginning else "")
        age = age_of(sent.get("age", ""))
        return HttpReply(outcome, text, body, validators=validators_of(sent), received=received, age=age)

    def _url(self, path: str, params: Params) -> httpx.URL:
        """The URL with these parameters. The last one of a path is kept: a feed at rest asks for the same each time."""
        kept = self._urls.get(path)
        if kept is not None and kept[0] == params:
            return kept[1]
        url = httpx.URL(self._base_url + path, params=params or None)  # empty ones would add a question mark
        if len(self._urls) >= _KEPT_URLS:
            self._urls.clear()
        if len(str(url)) <= _LONGEST_KEPT:
            self._urls[path] = params, url
        return url

    async def _explanation(self, response: httpx.Response) -> tuple[bytes, int]:
        """The body of an error and the number of bytes received; empty: it cannot be read."""
        within = min(_EXPLAINS_WITHIN, self._limits.timeout.total_seconds() / 2)
        try:
            async with asyncio.timeout(within):
                body, received = await self._body(response)
        except (*FAILURES, SourceNonsense, TimeoutError):
            return b"", 0
        return body or b"", received

    async def _body(self, response: httpx.Response) -> tuple[bytes | None, int]:
        """The decoded body and the number of bytes received; no body: it is too large."""
        decoder = BodyDecoder(response.headers.get("content-encoding", ""), most=self._limits.max_page_bytes)
        chunks: list[bytes] = []
        size = sent = 0
        async for wire in response.aiter_raw():
            chunk = decoder.decode(wire)
            size += len(chunk)
            sent += len(wire)
            if max(size, sent) > self._limits.max_page_bytes:
                return None, sent
            chunks.append(chunk)
        decoder.close()
        return b"".join(chunks), sent


def _said(body: bytes, secrets: tuple[str, ...]) -> str:
    return gist(hidden(body[:_EXPLAINED].decode("utf-8", "replace"), *secrets))


def _failed(path: str, error: Exception, *secrets: str | None) -> HttpReply:
    closed = isinstance(error.__cause__, ConnectionClosedEarly)
    connecting = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError)
    text = f"GET {path}: {one_line(reason_of(error, *secrets))}"
    return HttpReply(ExchangeOutcome(closed=closed), text, failure="connect" if connecting else "other")


class FeedPosition(msgspec.Struct, frozen=True):
    """The state of a feed between rounds.

    ``read_at`` is the mark that each full reading leaves, so no two positions are equal.
    """

    generation: str
    sequence: int
    read_at: str


class ConditionalReader:
    """Requests for one feed's listings, conditional where the API may call them unchanged since they were committed.

    In each round: :meth:`start_round`, any number of :meth:`get`, then :meth:`finish_round` if it went well.

    A full reading of a listing of one page may be conditional. A 304 then means that nothing changed since the answer
    with these validators, *if* the store still holds what that answer held. So validators are kept only when their
    round ended well and its end is committed. They are sent only while the feed's state in the store is the one which
    that commit left: no other process wrote, nothing was rolled back or flushed, no delta brought anything since.

    **Invariants**

    - A listing of several pages is never requested conditionally: its first page says nothing of the others.
    - Nor is a listing that lacks a known record which is not removed yet: the next reading has to decide about it.
    - Nor is one that the API has called unchanged for :data:`LONGEST_UNCHANGED`. The validators of some APIs do not
      change when a record is deleted.
    - Validators are kept in memory, for one feed, by one process.

    Attributes:
        age: how long a cache on the way had kept the oldest answer of the round, deltas aside; each round begins with
            zero.
    """

    def __init__(self, ask: ConditionalRequest) -> None:
        """Start without validators."""
        self.age = timedelta()
        self._ask = ask
        self._left: FeedPosition | None = None
        self._kept: dict[tuple[str, Params], Validators] = {}
        self._full = self._usable = self._unchanged = False
        self._now = self._read_at = _NEVER  # when this round began, and the last full one that received its listing
        self._asked: dict[str, tuple[Params, Validators] | None] = {}  # None: in more than one request

    async def ask(self, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
        """One exchange with the API, conditional on these validators."""
        answer = await self._ask(path, params, unless=unless)
        if not _is_delta(params):
            self.age = max(self.age, timedelta(seconds=answer.age))
        return answer

    def start_round(self, position: FeedPosition | None, *, now: datetime) -> None:
        """Start a round at this position; None: it has to read everything."""
        self._now, self._unchanged = now, False
        self._full = position is not None
        recent = timedelta() <= now - self._read_at <= LONGEST_UNCHANGED
        self._usable = self._full and recent and position == self._left
        self._asked = {}

    async def get(self, path: str, params: Params) -> bytes | None:
        """The body; None: the whole listing is unchanged.

        Errors as of :meth:`poller.source.client.ApiClient.get`.
        """
        known = self._kept.get((path, params), Validators()) if self._usable else Validators()
        answer = await self.ask(path, params, unless=known)
        self._unchanged = self._unchanged or answer.body is None
        if self._full and answer.body is not None:
            self._left = None  # the store is about to change; until the round has finished its state is unknown
        current = known if answer.body is None else answer.validators
        if not _is_delta(params):  # which says nothing of the listing beside it
            self._asked[path] = None if path in self._asked else (params, current)
        return answer.body

    def finish_round(self, position: FeedPosition | None) -> None:
        """Keep the validators of a round that read all listings and committed its end.

        Args:
            position: what it left; None: the next full reading has something to settle, even in unchanged listings.
        """
        self._left = position
        if not self._unchanged:
            self._read_at = self._now
        single = ((path, *asked) for path, asked in self._asked.items() if asked)
        self._kept = {(path, params): validators for path, params, validators in single if validators.headers}


def _is_delta(params: Params) -> bool:
    return any(name == SINCE for name, _ in params)


def unconditional(get: Get) -> ConditionalRequest:
    """Requests without conditions, in the form of conditional ones."""

    async def ask(path: str, params: Params, *, unless: Validators) -> ConditionalResponse:  # noqa: ARG001 -- there is no condition
        return ConditionalResponse(await get(path, params))

    return ask


__all__ = ["ATTEMPTS", "ApiClient", "ClientLimits"]
