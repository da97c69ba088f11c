"""The HTTP service: joins all routes, and adds security headers, limits and metrics to them.

**Invariants**

* Every response has security headers, and forbids caching unless its route allows it.
* A request body is at most :data:`LARGEST_BODY`.
* An unknown method gets 405 with the known ones; GET routes answer HEAD.
* Errors are problem details (RFC 9457).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poller.clock import Clock
from poller.config.settings import ListenAddress
from poller.daemon.health import Readiness
from poller.errors import AddressTaken
from poller.http.server import listening
from poller.store.registry import Registry
from poller.telemetry.metrics import answered
from poller.web.auth import Authorizer, HostFilter, names_of
from poller.web.context import AppContext
from poller.web.documents import document_routes
from poller.web.events import event_routes
from poller.web.health import probe_routes
from poller.web.http import ANSWERS, problem
from poller.web.records import record_routes
from poller.web.status import feed_routes, page_routes
from poller.web.subscriptions import callback_routes, subscription_routes

LARGEST_BODY: Final = 64 * 1024
"""Bytes of a request's body."""

_TOO_LARGE: Final = f"a request may bring {LARGEST_BODY} bytes"

_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def application(*routes: BaseRoute, names: frozenset[str] | None = None) -> Any:
    """The ASGI application of these routes.

    Args:
        routes: one for each path.
        names: permitted in ``Host``, besides addresses; None: any.
    """
    site = Starlette(routes=routes, exception_handlers=ANSWERS)
    site.router.redirect_slashes = False  # it would redirect to the host that the request names
    bounded = _BodyLimit(site)
    return _SecurityHeaders(bounded if names is None else HostFilter(bounded, names))


class _SecurityHeaders:
    """Adds security headers to every response; a route's own headers take precedence."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, sending)


class _BodyLimit:
    """Refuses bodies beyond :data:`LARGEST_BODY`, with or without ``Content-Length``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken = 0

        async def receiving() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > LARGEST_BODY:
                raise HTTPException(413, _TOO_LARGE, {"connection": "close"})  # Starlette answers it
            return message

        length = Headers(scope=scope).get("content-length", "0")
        if length.isdecimal() and int(length) > LARGEST_BODY:
            await problem(413, _TOO_LARGE, headers={"connection": "close"})(scope, receive, send)
        else:
            await self._app(scope, receiving, send)


# Routes that show records, events, feeds or subscriptions require permission to read. Probes, metrics and documents
# show none of these and are open.


def routes_of(backing: AppContext, readiness: Readiness, registry: Callable[[], Registry | None]) -> list[Route]:
    """All routes, one for each path.

    Args:
        backing: the configuration and the store.
        readiness: of this process.
        registry: for callbacks of sinks; None: the store has not answered yet.
    """
    admission = Authorizer(backing.settings.http, backing.environ, clock=backing.clock)
    shown = [
        *page_routes(backing, readiness, clock=backing.clock),
        *feed_routes(backing, admission),
        *subscription_routes(backing, admission),
        *event_routes(backing, admission.may_read),
        *record_routes(backing, admission.may_read, changing=admission.only),
    ]
    unrestricted = [
        *probe_routes(readiness, admission.may_read),
        *document_routes(backing.settings),
        *callback_routes(registry),
    ]
    return [*map(admission.readable, shown), *unrestricted]


def site(backing: AppContext, readiness: Readiness, registry: Callable[[], Registry | None], *more: BaseRoute) -> Any:
    """The application, with its responses counted.

    Args:
        backing: the configuration and the store.
        readiness: of this process.
        registry: as for :func:`routes_of`.
        more: further routes, open to all.
    """
    routes = [*routes_of(backing, readiness, registry), *more]
    return RequestCounter(application(*routes, names=names_of(backing.settings.http)), routes)


def declared(route: Route) -> str:
    """The path of a route as documents name it."""
    return route.path.replace(":path}", "}")


# Requests by route and status: the route as declared, or ``other``, so that no client can create metric series.


class RequestCounter:
    """An ASGI application that counts its responses."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        """Count the responses of an application with these routes."""
        self._app = app
        self._paths: dict[Any, str] = {one.endpoint: declared(one) for one in routes if isinstance(one, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. It is counted as soon as its status is known, because a response may last long."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered(self._paths.get(scope.get("endpoint"), "other"), message["status"])
            await send(message)

        await self._app(scope, receive, sending)


# An address in use does not end the daemon: it is logged once and tried again, so that of two daemons on a machine the
# second one listens as soon as the first one ends.

_SERVE_AGAIN: Final = 2.0  # seconds

_log = structlog.get_logger("poller.web")


async def serve(
    app: Any,
    address: ListenAddress,
    *,
    until: asyncio.Event,
    clock: Clock,
) -> None:
    """Serve an application until an event is set.

    Args:
        app: an ASGI 3 application.
        address: where to listen.
        until: ends serving.
        clock: of this process.

    Raises:
        ConfigurationError: this machine does not have the address, or this user may not listen there.
    """
    told = False
    while not until.is_set():
        try:
            async with listening(app, *address, clock=clock) as url:
                _log.info("listening", page=f"{url}/")
                await until.wait()
        except AddressTaken as taken:
            if not told:
                told = True
                advice = 'retrying until it is free; or set http.bind or POLLER_HTTP_BIND to another, or "off"'
                _log.warning("not listening", error=str(taken), advice=advice)
            await clock.wait(until, _SERVE_AGAIN)
