"""``Receiver`` and ``verify``: webhooks in, verified events out.

:class:`Receiver` is an ASGI application, and its method :meth:`Receiver.wsgi` a WSGI application. Both give each event
of a request to a function, and answer when that is done:

======  ================================================================================================
status  when
======  ================================================================================================
204     every event was handled, now or earlier
200     a request for permission (OPTIONS, CloudEvents webhooks 1.0) was granted; 403 if not
400     the content is no CloudEvent
401     the signature is missing, old, or another's
405     another method than POST and OPTIONS
408     the body has not arrived in time
411     the server does not tell where the body ends (WSGI)
413     the body, or the number of its events, is above the limit
415     another format, charset or content encoding
500     the function failed: the sender sends the request again
503     the store of repeats cannot be asked, or another delivery of the event is still being handled
======  ================================================================================================

**Invariants**

- Nothing of a request is decoded before its signature is verified.
- An event is marked as handled after the function has returned, and 2xx is sent after that. So a crash at any instant
  repeats work and loses none.
- Events of one request are handled one after the other. After a failure the rest waits for the repeat of the request,
  and what was handled before is not handled again.
- While an event is being handled in this process, another delivery of it waits for the result.
- A client that leaves does not interrupt the function.
- Neither secrets nor contents are logged; an exception of the function is logged with its traceback.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar
from wsgiref.types import StartResponse, WSGIEnvironment

from poller.client.http_events import MAX_EVENTS, ContentRefused, ReceivedEvent, events_of
from poller.client.repeats import Claims, MemoryStore, SeenStore, key_of
from poller.client.signatures import (
    TOLERANCE,
    Headers,
    Secrets,
    SignatureVerifier,
    WebhookRefused,
    header_pairs,
)

MAX_BODY: Final = 8 * 1024 * 1024
"""The largest body by default, in bytes."""

Handler = Callable[[ReceivedEvent], object]
"""What is done with an event: a function, or a coroutine function. An exception means that it was not done."""

Message = MutableMapping[str, Any]
T = TypeVar("T")

_BODY_SECONDS: Final = 30.0
_WAIT_SECONDS: Final = 30.0  # longer than senders wait, so that their next attempt finds the result
_ALLOW: Final = ("Allow", "POST, OPTIONS")
_CLOSE: Final = ("Connection", "close")
_ORIGIN: Final = "webhook-request-origin"

_log: Final = logging.getLogger("poller.client")


def verify(
    headers: Headers,
    body: bytes,
    secrets: Secrets | None,
    *,
    tolerance: timedelta = TOLERANCE,
    now: datetime | None = None,
    max_events: int = MAX_EVENTS,
) -> list[ReceivedEvent]:
    """The events of a request whose signature is verified; of a batch all, else one.

    Args:
        headers: a mapping of any framework, or pairs of names and values; names in any case.
        body: the bytes as received, before anything has parsed them.
        secrets: one secret or several, each accepted: ``whsec_…``, ``whpk_…`` (a public key) or ``whsk_…``. None:
            nothing is verified.
        tolerance: how old or early a signature may be.
        now: with its time zone; None: the present moment.
        max_events: the most events of a batch.

    Raises:
        VerificationError: the signature is missing, too old, or not of one of the secrets.
        ContentRefused: there is no CloudEvent in it. Both are :class:`WebhookRefused`, with an HTTP ``status``.
        MalformedSecret: a secret cannot be used.
    """
    if not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError("the body has to be the bytes as received: a signature covers bytes")
    verifier = None if secrets is None else SignatureVerifier(secrets, tolerance=tolerance)
    return _verified(header_pairs(headers), bytes(body), verifier, now=now, max_events=max_events)


def _verified(
    headers: Sequence[tuple[str, str]],
    body: bytes,
    verifier: SignatureVerifier | None,
    *,
    now: datetime | None,
    max_events: int,
) -> list[ReceivedEvent]:
    if verifier is not None:
        verifier.verify(headers, body, now or datetime.now(UTC))
    if any(name == "content-encoding" and text.lower() != "identity" for name, text in headers):
        raise ContentRefused("expected a body without Content-Encoding", status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
    return events_of(headers, body, max_events=max_events)


class _Response(NamedTuple):
    status: int
    text: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def parts(self, method: str) -> tuple[list[tuple[str, str]], bytes]:
        """Headers and body."""
        body = f"{self.text}\n".encode() if self.text else b""
        length = [] if self.status == HTTPStatus.NO_CONTENT else [("Content-Length", str(len(body)))]
        kind = [("Content-Type", "text/plain; charset=utf-8")] if body else []
        return [*self.headers, *length, *kind], b"" if method == "HEAD" else body


class _NotHandled(Exception):
    """An event was not handled; ``response`` is what its sender is answered."""

    def __init__(self, response: _Response) -> None:
        super().__init__(response.text)
        self.response = response


class _ClientLeft(Exception):
    """The client closed the connection before its request was complete."""


_FAILED: Final = _Response(HTTPStatus.INTERNAL_SERVER_ERROR, "the event was not handled")
_NO_STORE: Final = _Response(HTTPStatus.SERVICE_UNAVAILABLE, "it cannot be found out whether the event is a repeat")
_BUSY: Final = _Response(HTTPStatus.SERVICE_UNAVAILABLE, "an earlier delivery of the event is still being handled")


class Receiver:
    """Receives webhooks: ``Receiver(handler, secrets)`` for ASGI servers, ``Receiver(handler, secrets).wsgi`` for WSGI.

    The application answers at every path where it is mounted. Put TLS and limits for connections in front of it.
    """

    def __init__(
        self,
        handler: Handler,
        secrets: Secrets | None,
        *,
        seen: SeenStore | None = None,
        max_body: int = MAX_BODY,
        max_events: int = MAX_EVENTS,
        tolerance: timedelta = TOLERANCE,
        origins: Iterable[str] | None = None,
        rate: int | None = None,
        body_timeout: timedelta = timedelta(seconds=_BODY_SECONDS),
        repeat_timeout: timedelta = timedelta(seconds=_WAIT_SECONDS),
        on_refusal: Callable[[WebhookRefused], object] | None = None,
    ) -> None:
        """Begin to receive.

        Args:
            handler: called with each event; a coroutine function runs in the loop of the ASGI server, any other
                function in a thread. It may get an event again after a crash, so keep the ``id`` with what it does.
            secrets: as of :func:`verify`; None: nothing is verified.
            seen: where handled events are remembered; None: a :class:`~poller.client.repeats.MemoryStore`.
            max_body: the largest body, in bytes.
            max_events: the most events of a batch.
            tolerance: how old or early a signature may be.
            origins: the senders that are granted permission when they ask (``WebHook-Request-Origin``); None: all.
            rate: the requests a minute that they are granted; None: any number.
            body_timeout: how long a body may take to arrive (ASGI; WSGI servers have limits of their own).
            repeat_timeout: how long another delivery of an event that is being handled waits for the result.
            on_refusal: called with the reason of each refused request; None: the reason is logged as a warning.

        Raises:
            MalformedSecret: a secret cannot be used, or the list is empty.
        """
        self._handler = handler
        self._is_async = any(map(inspect.iscoroutinefunction, (handler, getattr(handler, "__call__", None))))  # noqa: B004 -- it is asked whether that is one
        self._verifier = None if secrets is None else SignatureVerifier(secrets, tolerance=tolerance)
        self._seen: SeenStore = MemoryStore() if seen is None else seen
        self._max_body = max_body
        self._max_events = max_events
        self._origins = None if origins is None else {origin.lower() for origin in origins}
        self._rate = rate
        self._body_seconds = body_timeout.total_seconds()
        self._repeat_seconds = repeat_timeout.total_seconds()
        self._on_refusal = on_refusal or _log_refusal
        self._claims = Claims()
        self._work: set[asyncio.Task[None]] = set()
        if secrets is None:
            _log.warning("webhooks are not verified: the receiver has no secrets")

    # What both kinds of server have in common.

    def _unless_post(self, method: str, headers: Sequence[tuple[str, str]]) -> _Response | None:
        """The answer to a request that brings no event; None: it is a POST."""
        if method == "POST":
            return None
        if method != "OPTIONS":
            return _Response(HTTPStatus.METHOD_NOT_ALLOWED, "expected POST", (_ALLOW,))
        origin = _first(headers, _ORIGIN)
        if origin is None:
            return _Response(HTTPStatus.NO_CONTENT, headers=(_ALLOW,))
        if self._origins is not None and origin.lower() not in self._origins:
            return _Response(HTTPStatus.FORBIDDEN, "this origin may not send", (_ALLOW,))
        granted = [("WebHook-Allowed-Origin", "*" if self._origins is None else origin)]
        if self._rate is not None or _first(headers, "webhook-request-rate") is not None:
            granted.append(("WebHook-Allowed-Rate", "*" if self._rate is None else str(self._rate)))
        return _Response(HTTPStatus.OK, headers=(_ALLOW, *granted))

    def _check_length(self, length: int) -> None:
        if length > self._max_body:
            raise ContentRefused(
                f"the body is larger than {self._max_body} bytes", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            )

    def _events(self, headers: Sequence[tuple[str, str]], body: bytes) -> list[ReceivedEvent]:
        return _verified(headers, body, self._verifier, now=None, max_events=self._max_events)

    def _refused(self, refused: WebhookRefused) -> _Response:
        self._on_refusal(refused)
        return _Response(refused.status, str(refused))

    def _was_handled(self, key: str) -> bool:
        try:
            return self._seen.contains(key)
        except Exception as error:  # a store of any kind
            _log.error("webhook not handled: the store of repeats cannot be asked: %s", error)
            raise _NotHandled(_NO_STORE) from error

    def _mark(self, key: str) -> None:
        try:
            self._seen.add(key)
        except Exception as error:  # noqa: BLE001 -- a store of any kind
            # The work is done. A refusal would have it done twice for certain, and this only if the answer is lost.
            _log.warning("webhook handled, but not remembered: the store of repeats cannot be written: %s", error)

    # ASGI

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Serve one request, or the server's start and end (ASGI 3)."""
        if scope["type"] == "http":
            try:
                response = await self._response(scope, receive)
            except _ClientLeft:
                return
            headers, body = response.parts(scope["method"])
            raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
            await send({"type": "http.response.start", "status": int(response.status), "headers": raw})
            await send({"type": "http.response.body", "body": body})
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise NotImplementedError(f"no application for {scope['type']}")

    async def aclose(self) -> None:
        """Wait for the functions that still run; a server that tells its end (lifespan) does this itself."""
        while self._work:
            await asyncio.wait(self._work)

    async def _live(
        self, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _response(self, scope: Message, receive: Callable[[], Awaitable[Message]]) -> _Response:
        headers = header_pairs(scope["headers"])
        try:
            answer = self._unless_post(scope["method"], headers)
            if answer is None:
                self._check_length(_length(_first(headers, "content-length")) or 0)
                events = self._events(headers, await self._body(receive))
                for event in events:
                    await self._deliver(event)
                answer = _Response(HTTPStatus.NO_CONTENT)
        except WebhookRefused as refused:
            answer = self._refused(refused)
        except TimeoutError:
            answer = _Response(HTTPStatus.REQUEST_TIMEOUT, "the body has not arrived in time", (_CLOSE,))
        except _NotHandled as failed:
            answer = failed.response
        return answer

    async def _body(self, receive: Callable[[], Awaitable[Message]]) -> bytes:
        parts, length, more = [], 0, True
        async with asyncio.timeout(self._body_seconds):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _ClientLeft
                part = message.get("body", b"")
                length += len(part)
                self._check_length(length)
                parts.append(part)
                more = message.get("more_body", False)
        return b"".join(parts)

    async def _deliver(self, event: ReceivedEvent) -> None:
        """Handle an event in a task of its own, which goes on if the server cancels the request."""
        task = asyncio.create_task(self._handle_once(event), name="webhook event")
        self._work.add(task)
        task.add_done_callback(self._finish)
        await asyncio.shield(task)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled():
            task.exception()  # it was logged; without this, asyncio would log it again when the request has gone

    async def _handle_once(self, event: ReceivedEvent) -> None:
        key = key_of(event)
        try:
            async with asyncio.timeout(self._repeat_seconds):
                while (running := self._claims.claim(key)) is not None:
                    await asyncio.wrap_future(running)
        except TimeoutError:
            raise _NotHandled(_BUSY) from None
        try:
            if not await self._stored(self._was_handled, key):
                await self._handle(event)
                await self._stored(self._mark, key)
        finally:
            self._claims.release(key)

    async def _stored(self, ask: Callable[[str], T], key: str) -> T:
        """Use the store in a thread, unless it is in memory."""
        return ask(key) if isinstance(self._seen, MemoryStore) else await asyncio.to_thread(ask, key)

    async def _handle(self, event: ReceivedEvent) -> None:
        try:
            result = self._handler(event) if self._is_async else await asyncio.to_thread(self._handler, event)
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # the function's, whatever it is
            raise _failed(event) from error

    # WSGI

    def wsgi(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request (PEP 3333). The handler has to be a plain function.

        Raises:
            TypeError: it is a coroutine function.
        """
        if self._is_async:
            raise TypeError(
                "a WSGI server needs a plain function as handler; a coroutine function needs an ASGI server"
            )
        method = environ["REQUEST_METHOD"]
        response = self._wsgi_response(method, environ)
        headers, body = response.parts(method)
        status = HTTPStatus(response.status)
        # A server may not be given Connection by an application (PEP 3333), and closes after an error as it sees fit.
        start_response(f"{status.value} {status.phrase}", [one for one in headers if one != _CLOSE])
        return [body] if body else []

    def _wsgi_response(self, method: str, environ: WSGIEnvironment) -> _Response:
        headers = _wsgi_headers(environ)
        try:
            answer = self._unless_post(method, headers)
            if answer is None:
                for event in self._events(headers, self._wsgi_body(environ)):
                    self._handle_once_here(event)
                answer = _Response(HTTPStatus.NO_CONTENT)
        except WebhookRefused as refused:
            answer = self._refused(refused)
        except _NotHandled as failed:
            answer = failed.response
        return answer

    def _wsgi_body(self, environ: WSGIEnvironment) -> bytes:
        length = _length(environ.get("CONTENT_LENGTH"))
        if length is None and not environ.get("wsgi.input_terminated"):
            raise ContentRefused("expected Content-Length", status=HTTPStatus.LENGTH_REQUIRED)
        self._check_length(length or 0)
        parts, missing = [], self._max_body + 1 if length is None else length
        while missing and (part := environ["wsgi.input"].read(missing)):
            parts.append(part)
            missing -= len(part)
        body = b"".join(parts)
        self._check_length(len(body))
        if length is not None and missing:
            raise ContentRefused("the body is shorter than Content-Length says")
        return body

    def _handle_once_here(self, event: ReceivedEvent) -> None:
        key, end = key_of(event), time.monotonic() + self._repeat_seconds
        try:
            while (running := self._claims.claim(key)) is not None:
                running.result(timeout=max(end - time.monotonic(), 0))
        except TimeoutError:
            raise _NotHandled(_BUSY) from None
        try:
            if not self._was_handled(key):
                self._handle_here(event)
                self._mark(key)
        finally:
            self._claims.release(key)

    def _handle_here(self, event: ReceivedEvent) -> None:
        try:
            result = self._handler(event)
            if inspect.iscoroutine(result):
                result.close()
                raise TypeError("the handler returned a coroutine, which a WSGI server cannot await")  # noqa: TRY301 -- it is the handler's fault
        except Exception as error:  # the function's, whatever it is
            raise _failed(event) from error


def _failed(event: ReceivedEvent) -> _NotHandled:
    """Log the exception of the function that is being handled; what the sender is answered."""
    _log.exception("webhook not handled: the handler failed for the event %s of %s", event.get_id(), event.get_type())
    return _NotHandled(_FAILED)


def _log_refusal(refused: WebhookRefused) -> None:
    _log.warning("webhook refused with %d: %s", refused.status, refused)


def _first(headers: Sequence[tuple[str, str]], name: str) -> str | None:
    return next((text for given, text in headers if given == name), None)


def _length(text: str | None) -> int | None:
    """The value of Content-Length; None: there is none.

    Raises:
        ContentRefused: it is no number.
    """
    if not text:
        return None
    if not text.isascii() or not text.isdigit():
        raise ContentRefused("the header Content-Length is no number")
    return int(text)


def _wsgi_headers(environ: WSGIEnvironment) -> list[tuple[str, str]]:
    found = {name.removeprefix("HTTP_"): text for name, text in environ.items() if name.startswith("HTTP_")}
    found |= {name: environ[name] for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if environ.get(name)}
    return header_pairs({name.replace("_", "-"): text for name, text in found.items()})
