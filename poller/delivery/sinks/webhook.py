"""A sink that takes events by HTTP: CloudEvents over HTTP, signed as Standard Webhooks.

=================================  =============================================
the sink answered                  the outcome
=================================  =============================================
2xx                                delivered
410                                endpoint gone
415                                endpoint gone: it does not take this mode
429 or 503 with ``Retry-After``    retry, overloaded, with that wait
429 without                        retry, overloaded
any other status, or no answer     retry
nothing, as a secret is missing    not sent
nothing: the event does not fit    rejected: an event that its mode cannot carry
=================================  =============================================

**Invariants**

* An attempt has one bound in time, from the name's look-up to the last byte, and one in size.
* It goes to no other place than the URL says: no redirect, no proxy, no cookie, no address that the guard has not seen.
* A status counts as soon as its line has arrived. What becomes of the rest of the answer, cut, reset, endless or slow,
  changes nothing: a sink that says 2xx has taken the event. The rest is read to its end or to :data:`READ` bytes, so
  that the connection can be used again; it is never unpacked.
* A kept connection that the sink closes before it answers is replaced by a new one within the attempt, once: a sink
  closes idle connections whenever it likes, and that says nothing of the event.
* Nothing that was secret in the request is in the outcome, wherever the sink has put it.
* Each sink has connections of its own and shares no limit with another, so one that hangs holds up no other.

Connections and parsing are aiohttp's; :class:`poller.delivery.sinks.connection.SinkClient` writes the requests. With
aiohttp's session a small signed POST takes a third more of the processor's time, and with httpx around that three to
four times as much (measured with 8 and 32 in flight).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import aiohttp
import msgspec
from yarl import URL

from poller import __version__
from poller.auth.base import Credential, NoCredential, SecretFile
from poller.auth.sink_credential import Authorization, authorization_of
from poller.clock import Clock
from poller.config.http import path_secrets
from poller.config.subscriptions import SubscriptionSettings
from poller.delivery.cloudevent import Mode, Request, RequestForm
from poller.delivery.signing import SIGNATURE_HEADERS, Signer, check_secret
from poller.delivery.sinks.base import (
    NOT_PERMITTED,
    UNANSWERED,
    Failure,
    Outcome,
    OutcomeKind,
    Permission,
    PermissionRequest,
    Preview,
    Sink,
    SinkEvent,
    SinkParts,
    always,
)
from poller.delivery.sinks.connection import (
    FAILURES,
    MAY_WANT_A_CERTIFICATE,
    GuardedResolver,
    NotAllowed,
    NotHttp,
    ReceivedBytes,
    SinkClient,
    SinkConnector,
    StartedResponse,
    current,
    failure_of,
)
from poller.errors import AddressRefused, ConfigurationError, CredentialUnusable
from poller.http.ssrf import AddressPolicy, Lookup, forbidden
from poller.http.transport import CertificateFiles, shared_tls
from poller.lifecycle import TimeLimit
from poller.limits import pause_requested
from poller.telemetry import tracing
from poller.telemetry.tracing import request_words
from poller.text import gist, hidden, one_line, without_credentials

READ: Final = 64 * 1024
"""Bytes of a response's body that are read; then the connection is closed."""

SEND_AGAIN: Final = 1.0
"""Seconds within which a reused connection that ends without a response is replaced, and the request sent again.

A connection that ends later was not closed while it was idle, and the lease may have expired meanwhile.
"""

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_SECRET: Final = 8  # characters; shorter values of configured headers are no secrets
_AGENT: Final = "User-Agent"
_USER_AGENT: Final = f"poller/{__version__}"
_FIXED: Final = {_AGENT: _USER_AGENT, "Accept": "*/*", "Accept-Encoding": "identity"}

_ORIGIN: Final = "WebHook-Request-Origin"
_SHOWN: Final = 10  # characters of a signature: enough to see its kind
_ACCEPTED: Final = range(HTTPStatus.OK, HTTPStatus.MULTIPLE_CHOICES)
_GONE: Final[Mapping[int, str]] = {
    HTTPStatus.GONE: "the sink answered 410: it is gone for good",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "the sink answered 415: it does not take requests of this mode",
}
_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})

Headers = Sequence[tuple[str, str]]


def open_sink(settings: SubscriptionSettings, parts: SinkParts) -> WebhookSink:
    """The sink of a subscription to an HTTP URL."""
    return WebhookSink(
        settings.sink,
        requests=SignedRequests(
            settings.mode,
            files=[SecretFile(path, "signing secret") for path in settings.secret_files],
            secrets=parts.secrets,
            origin=parts.origin,
        ),
        timeout=settings.timeout,
        concurrency=settings.concurrency,
        headers=tuple(settings.headers.items()),
        credential=parts.credential,
        authorization=authorization_of(parts.brought) if parts.brought else None,
        allowed=AddressPolicy.of(settings.allow_hosts, private=settings.allow_private),
        tls=parts.tls,
        certificates=parts.certificates,
        clock=parts.clock,
    )


class SignedRequests:
    """Makes signed requests of a subscription; changed secret files are read again."""

    def __init__(
        self,
        mode: Mode = "structured",
        *,
        files: Sequence[SecretFile] = (),
        secrets: Sequence[str] = (),
        origin: str | None = None,
    ) -> None:
        """Begin with the constant parts.

        Args:
            mode: the subscription's.
            files: with signing secrets, read again when they change.
            secrets: those that no file holds.
            origin: the DNS name that the sink has granted events for.
        """
        self._mode: Mode = mode
        self._files = tuple(files)
        self._secrets = tuple(secrets)
        self._origin = origin
        self._signed_with: tuple[str, ...] | None = None
        self._form = self._made(())

    def request(self, batch: Sequence[SinkEvent], timestamp: int) -> Request:
        """The request that carries these events.

        Raises:
            ValueError: see :meth:`poller.delivery.cloudevent.RequestForm.request`.
            CredentialUnusable: a secret file cannot be read.
            SecretUnusable: a file holds no secret; names the file.
        """
        texts = [file.text() for file in self._files]
        secrets = (*self._secrets, *texts)
        if secrets != self._signed_with:
            for file, text in zip(self._files, texts, strict=True):
                check_secret(text, file.origin)
            self._form = self._made(secrets)
            self._signed_with = secrets
        return self._form.request([(one.envelope, one.data) for one in batch], timestamp=timestamp)

    def _made(self, secrets: tuple[str, ...]) -> RequestForm:
        """The form with these secrets, the same one for all subscriptions that need the same."""
        key = self._mode, secrets, self._origin
        form = _forms.get(key)
        if form is None:
            signer = Signer(secrets) if secrets else None
            form = RequestForm(self._mode, signer=signer, user_agent=_USER_AGENT, origin=self._origin)
            _forms[key] = form
        return form


# Each for as long as a subscription has it; no secret is here that is not in its Signer.
_forms: Final[WeakValueDictionary[tuple[Mode, tuple[str, ...], str | None], RequestForm]] = WeakValueDictionary()


class WebhookSink(Sink):
    """Sends webhooks to one HTTP endpoint; connects when necessary."""

    def __init__(
        self,
        url: str,
        *,
        requests: SignedRequests | None = None,
        timeout: timedelta,
        concurrency: int,
        headers: Headers = (),
        credential: Credential | None = None,
        authorization: Authorization | None = None,
        allowed: AddressPolicy | None = None,
        tls: ssl.SSLContext | None = None,
        certificates: CertificateFiles | None = None,
        lookup: Lookup | None = None,
        clock: Clock,
    ) -> None:
        """Begin without connections.

        Args:
            url: of the sink, sent as written; its path and query are treated as secrets. With a forbidden URL each
                attempt fails, before any look-up.
            requests: makes the requests; default: unsigned and structured.
            timeout: of a whole attempt.
            concurrency: the greatest number of connections; further attempts wait, within their timeout.
            headers: of each request; their values are treated as secrets. A traceparent replaces that of the current
                span, a User-Agent the program's.
            credential: of each request; default: none.
            authorization: replaces ``credential``, and is the same for each request.
            allowed: the address policy.
            tls: trusted authorities; default: the system's.
            certificates: replaces ``tls``; its files are checked for changes at each request.
            lookup: resolves names.
            clock: the store's.
        """
        allowed = allowed or AddressPolicy()
        self._requests = requests or SignedRequests()
        self._shown = url
        self._expected = forbidden(url, allowed)
        self._url = URL(url if self._expected is None else "", encoded=True)
        self._limit = TimeLimit(timeout.total_seconds(), clock=clock)
        self._concurrency = concurrency
        self._headers = tuple(headers)
        self._traced_otherwise = any(name.lower() == "traceparent" for name, _ in headers)
        self._is_agent_given = any(name.lower() == _AGENT.lower() for name, _ in headers)
        self._words = request_words("POST", str(self._url.origin())) if self._expected is None else {}
        self._secrets = (*path_secrets(url), *(value for _, value in headers if len(value) >= _SECRET))
        self._credential = credential or NoCredential()
        self._authorization = authorization
        if authorization:
            self._headers += (("Authorization", authorization.value),)
            self._secrets += authorization.secrets
            self._credential = NoCredential()
        self._guard = GuardedResolver(allowed, lookup)
        self._tls = tls
        self._certificates = certificates
        self._clock = clock
        self._client: SinkClient | None = None
        self._closed = False

    async def send(self, batch: Sequence[SinkEvent], *, allowed: Callable[[], bool] = always) -> Outcome:
        """Send these events in one request."""
        try:
            request = self._request_of(batch)
        except (CredentialUnusable, ConfigurationError) as error:  # the signing secrets are at fault, not the events
            return Outcome(OutcomeKind.NOT_SENT, error=one_line(str(error)), failure=Failure.CREDENTIAL)
        except ValueError as error:
            return Outcome(OutcomeKind.REJECTED, error=str(error), failure=Failure.REQUEST)
        return await self.post(self._headers_of(request), request.body, allowed=allowed)

    async def verify(self, request: PermissionRequest | None = None) -> Permission:
        """Ask with OPTIONS: for permission, or only whether the sink answers."""
        answer = await self.options(_asking(request) if request else ())
        if answer.outcome.status is None:
            error = answer.outcome.error + (" (asked with OPTIONS)" if answer.outcome.failure in UNANSWERED else "")
            return Permission("unanswered", error, failure=answer.outcome.failure)
        return permission_of(answer.headers, answer.outcome.status, request)

    async def try_out(self, batch: Sequence[SinkEvent]) -> tuple[Preview, Outcome]:
        """Send these events in one request; shows its line, headers and body."""
        request = self._request_of(batch)
        return self._preview_of(request), await self.post(self._headers_of(request), request.body)

    def _request_of(self, batch: Sequence[SinkEvent]) -> Request:
        return self._requests.request(batch, int(self._clock.now().timestamp()))

    def _headers_of(self, request: Request) -> Headers:
        """The headers of a request, without the one that the subscription sets itself."""
        made = tuple(request.headers.items())
        return tuple(one for one in made if one[0] != _AGENT) if self._is_agent_given else made

    def _preview_of(self, request: Request) -> Preview:
        parts = urlsplit(self._shown)
        head = [
            f"POST /{'…' if parts.path not in {'', '/'} or parts.query else ''} HTTP/1.1",
            f"Host: {parts.netloc}",
            *(f"{name}: …" for name, _ in self._headers),
        ]
        if not isinstance(self._credential, NoCredential):
            head += [f"{name}: …" for name in self._credential.apply("…").headers]
        for name, value in self._headers_of(request):
            shown = " ".join(f"{one[:_SHOWN]}…" for one in value.split()) if name in SIGNATURE_HEADERS else value
            head.append(f"{name}: {shown}")
        return Preview(head, request.body)

    async def close(self) -> None:
        """Close all connections; later attempts fail."""
        self._closed = True
        await self._credential.close()
        if self._client:
            await self._client.close()
        self._client = None

    async def post(self, headers: Headers, body: bytes, *, allowed: Callable[[], bool] = always) -> Outcome:
        """Send a request; after a 401, once more with another token if there is one."""
        span = tracing.current()
        span.set_attributes(self._words)
        carried = () if self._traced_otherwise else tuple(span.carried.items())
        return (await self._attempt("POST", (*headers, *carried), body, allowed)).outcome

    async def options(self, headers: Headers) -> SinkResponse:
        """Send an OPTIONS request."""
        return await self._attempt("OPTIONS", headers, None)

    async def _attempt(
        self, method: str, headers: Headers, body: bytes | None, allowed: Callable[[], bool] = always
    ) -> SinkResponse:
        began = self._clock.monotonic()
        exchange = Exchange(allowed)
        try:
            with self._limit.block():
                await self._settled(exchange, method, (*self._headers, *headers), body)
        except TimeoutError:
            exchange.failed = self._too_late(exchange)
        except NotAllowed:
            return SinkResponse(NOT_PERMITTED)
        except FAILURES as error:
            if isinstance(error, aiohttp.ClientConnectionError):
                await asyncio.sleep(0)  # the loop may report the reason of a lost connection after it refuses a write
            exchange.failed = failure_of(error, exchange.received.lost)
            if self._certificates and self._certificates.problem:
                exchange.failed = exchange.failed[0], f"{self._certificates.problem}; {exchange.failed[1]}"
        return exchange.answer(self._clock.monotonic() - began, *self._secrets, clock=self._clock)

    def _opened(self) -> SinkClient:
        if self._closed:
            raise RuntimeError("the sink is closed")
        tls = self._tls or shared_tls(uses_tls=self._url.scheme == "https")
        connector = SinkConnector(limit=self._concurrency, tls=tls, resolver=self._guard)
        return SinkClient(self._url, connector, _FIXED)

    def _too_late(self, exchange: Exchange) -> tuple[Failure, str]:
        if exchange.begun:
            return Failure.TIMEOUT, f"no answer within {self._limit.seconds:g} s"
        return Failure.CREDENTIAL, f"{self._credential.origin} has given no token within {self._limit.seconds:g} s"

    async def _settled(self, exchange: Exchange, method: str, headers: Headers, body: bytes | None) -> None:
        if self._expected:
            raise AddressRefused(f"expected {self._expected}")
        token = await self._credential.token()
        await self._send(exchange, method, headers, body, token)
        if self._authorization and exchange.status in (_UNAUTHORIZED, _FORBIDDEN):
            exchange.remark = self._authorization.remark(self._clock.now())
        if exchange.status != _UNAUTHORIZED or token is None:
            return
        if await self._credential.renew(token):
            await self._send(exchange, method, headers, body, await self._credential.token())

    async def _send(
        self, exchange: Exchange, method: str, headers: Headers, body: bytes | None, token: str | None
    ) -> None:
        if not exchange.allowed():
            raise NotAllowed
        proof = self._credential.apply(token)
        headers = (*headers, *proof.headers.items())
        exchange.begins(proof.secrets)
        began = self._clock.monotonic()
        try:
            response = await self._requested(exchange.received, method, headers, body)
        except aiohttp.ClientConnectionError:
            if not exchange.received.unanswered or self._clock.monotonic() - began > SEND_AGAIN:
                raise
            exchange.received = ReceivedBytes(allowed=exchange.allowed, new_connection=True)
            response = await self._requested(exchange.received, method, headers, body)
        try:
            exchange.arrived(response)
            while len(exchange.body) < READ and not response.content.at_eof():
                exchange.body += await response.content.readany()
        finally:
            response.close()

    def _requested(
        self, received: ReceivedBytes, method: str, headers: Headers, body: bytes | None
    ) -> Awaitable[StartedResponse]:
        """A request whose received bytes are kept there; to be awaited by the same task, before another one is made."""
        if self._client is None:
            self._client = self._opened()
        current.set(received)
        tls = self._certificates.context() if self._certificates else True  # True: what the connector has
        return self._client.request(method, headers, body, tls=tls)


KEPT: Final = 1024
"""Bytes of a response's body that are kept."""

_LEAST: Final = 100
_LONGEST: Final = 128  # characters of a header that is kept
_NONE: Final[Mapping[str, str]] = {}


def _asking(request: PermissionRequest) -> Headers:
    wanted = {
        _ORIGIN: request.origin,
        "WebHook-Request-Callback": request.callback,
        "WebHook-Request-Rate": None if request.rate is None else str(request.rate),
    }
    return tuple((name, value) for name, value in wanted.items() if value is not None)


def permission_of(headers: Mapping[str, str], status: int, request: PermissionRequest | None) -> Permission:
    """The permission in a response to OPTIONS.

    If its headers grant events, the status does not count: servers answer OPTIONS for other reasons, too.

    Args:
        headers: of the response, with case-insensitive or lower-case names.
        status: of the response.
        request: that it answers; None: only a check that the sink answers.
    """
    if request is None:
        doubt = "" if status in _ACCEPTED else ", which says nothing about events"
        return Permission("granted", f"it answers {status} to OPTIONS{doubt}")
    origin = headers.get("webhook-allowed-origin")
    if origin is None:
        return _unsaid(status, request)
    if origin.strip() != "*" and origin.strip().lower() != request.origin.lower():
        return Permission("refused", f"the sink allows another origin than {request.origin} (WebHook-Allowed-Origin)")
    text = f"it answers {status} to OPTIONS"
    return Permission("granted", text, rate=headers.get("webhook-allowed-rate") or "")


def _unsaid(status: int, request: PermissionRequest) -> Permission:
    """The permission if a response does not mention it."""
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Permission("unanswered", f"the sink answered {status} to OPTIONS")
    if status >= HTTPStatus.MULTIPLE_CHOICES:  # a sink that answers 405 will call no callback either
        return Permission("refused", f"the sink answered {status} to OPTIONS, without WebHook-Allowed-Origin")
    if request.callback is not None:
        return Permission("awaiting", "the sink has not called the callback that it was offered")
    text = "the sink has not allowed any origin (no WebHook-Allowed-Origin in its answer to OPTIONS)"
    return Permission("refused", text, may_grant_later=True)


class SinkResponse(msgspec.Struct, frozen=True):
    """An outcome, and the response's headers with case-insensitive names; empty: no response."""

    outcome: Outcome
    headers: Mapping[str, str] = _NONE


def meaning_of(status: int, headers: Mapping[str, str], clock: Clock) -> tuple[OutcomeKind, timedelta | None, bool]:
    """The kind of outcome for a response, the pause that it requests, and whether the sink is overloaded."""
    if status in _ACCEPTED:
        return OutcomeKind.DELIVERED, None, False
    if status in _GONE:
        return OutcomeKind.ENDPOINT_GONE, None, False
    if status not in _BUSY:
        return OutcomeKind.RETRY, None, False
    wait = pause_requested(_ascii(headers.get("Retry-After")), date=_ascii(headers.get("Date")), now=clock.now())
    return OutcomeKind.RETRY, wait, wait is not None or status == HTTPStatus.TOO_MANY_REQUESTS


class Exchange:
    """The state of a running exchange."""

    def __init__(self, allowed: Callable[[], bool] = always) -> None:
        self.allowed = allowed
        self.status: int | None = None
        self.body = b""
        self.failed: tuple[Failure, str] | None = None
        self.remark = ""  # on a credential that the sink has not accepted
        self.received = ReceivedBytes(allowed=allowed)  # on the connection of the request that was sent last
        self._headers: Mapping[str, str] = _NONE
        self.begun = False  # whether a request was sent, or about to be sent
        self._proofs: tuple[str, ...] = ()

    def begins(self, secrets: tuple[str, ...]) -> None:
        """Start a request with these secrets; discard earlier results."""
        if self.begun:
            self.status, self.body, self.received = None, b"", ReceivedBytes(allowed=self.allowed)
        self.begun, self._proofs = True, (*self._proofs, *secrets)

    def arrived(self, response: StartedResponse) -> None:
        """Record the head of a response."""
        if response.status < _LEAST:
            raise NotHttp(f"it has the status {response.status}")
        self.status, self._headers = response.status, response.headers

    def answer(self, seconds: float, *secrets: str, clock: Clock) -> SinkResponse:
        """The outcome; ``clock``: for a ``Retry-After`` with a date."""
        known = (*self._proofs, *secrets)
        if self.status is None and (head := self.received.head):  # the parser has rejected data after the status
            self.status, self._headers, self.body = head.status, head.headers, head.body
        if self.status is None:
            failure, text = self.failed or (Failure.NETWORK, "there was no answer")
            if other := self.received.other_protocol:
                failure, text = Failure.NOT_HTTP, other
            elif failure in (Failure.CLOSED, Failure.RESET) and self.received.is_new_tls:
                text += f", right after TLS was agreed on; {MAY_WANT_A_CERTIFICATE}"
            kind = OutcomeKind.NOT_SENT if failure is Failure.CREDENTIAL else OutcomeKind.RETRY
            error = one_line(hidden(text, *known))
            return SinkResponse(Outcome(kind, error=error, failure=failure, seconds=seconds))
        kind, wait, is_overloaded = meaning_of(self.status, self._headers, clock)
        outcome = Outcome(
            kind,
            wait=wait,
            is_overloaded=is_overloaded,
            error="" if kind is OutcomeKind.DELIVERED else _GONE.get(self.status) or self._text(*known),
            status=self.status,
            seconds=seconds,
            excerpt=_kept(self.body, *known),
        )
        return SinkResponse(outcome, self._headers)

    def _text(self, *secrets: str | None) -> str:
        text = f"the sink answered {self.status}"
        if self.failed and self.failed[0] is Failure.CREDENTIAL:
            text += f"; another token cannot be had: {one_line(hidden(self.failed[1], *secrets))}"
        if self.remark:
            text += f"; {self.remark}"
        said = gist(without_credentials(hidden(self.body.decode("utf-8", "replace"), *secrets)))
        return text + (f": {said}" if said else "")


def _ascii(value: str | None) -> str | None:
    """A header's text in ASCII; other characters are replaced."""
    return value and value[:_LONGEST].encode("ascii", "replace").decode()


def _kept(body: bytes, *secrets: str | None) -> bytes:
    if not body:
        return body
    return hidden(body.decode("utf-8", "surrogateescape"), *secrets).encode("utf-8", "surrogateescape")[:KEPT]
