"""Requests to the HTTP service, counted by route and status.

Law: what is counted is the route as it is declared; whatever else somebody asks for is ``other``, so that nobody can
make up series.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poller.telemetry.process import answered


class Counting:
    """An ASGI application whose answers are counted."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        """Take the application, and its routes."""
        self._app = app
        self._paths: dict[Any, str] = {one.endpoint: one.path for one in routes if isinstance(one, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; counted as soon as the status is known, for an answer may go on for long."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered(self._paths.get(scope.get("endpoint"), "other"), message["status"])
            await send(message)

        await self._app(scope, receive, sending)
