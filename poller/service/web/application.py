"""The HTTP service: what every route of it has in common.

Law: an answer says what may be done with it (security headers, never kept by a cache unless a route says so), a request
may bring :data:`LARGEST_BODY` and no more, a method that a route does not know is answered 405 with those that it does,
GET routes answer HEAD, and what is refused is told as a problem. Routes come from the modules that know what they are
about; this one knows none.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poller.service.web.hosts import OwnNames
from poller.service.web.problems import ANSWERS, problem

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
        names: by which it may be asked for, besides addresses; None: any.
    """
    site = Starlette(routes=routes, exception_handlers=ANSWERS)
    site.router.redirect_slashes = False  # it would lead to whatever host the request has named
    bounded = _Bounded(site)
    return _Guarded(bounded if names is None else OwnNames(bounded, names))


class _Guarded:
    """Security headers on every answer; a route's own come first."""

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


class _Bounded:
    """No body beyond :data:`LARGEST_BODY`, whether it says how long it is or not."""

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
