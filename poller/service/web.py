"""The HTTP service: so far the address that a sink calls to grant events after its handshake.

Serves what is in the store and nothing of this process, so it may run apart from those who deliver.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from poller.delivery.handshake import decoded, encoded, state_called
from poller.errors import StoreError
from poller.service.handshaking import CALLBACK
from poller.store.subscriptions import Registry

_RATE: Final = "WebHook-Allowed-Rate"

_log = structlog.get_logger("poller.web")


def application(registry: Registry) -> Any:
    """The ASGI application.

    Args:
        registry: of the subscriptions.
    """

    async def callback(request: Request) -> Response:
        """GET or POST by whoever has the key: grants events to the sink of a subscription."""
        subscription, key = request.query_params.get("id", ""), request.query_params.get("key", "")
        try:
            kept = await registry.handshake(subscription)
            try:
                before = decoded(kept) if kept else None
            except msgspec.MsgspecError:  # another version's
                before = None
            state = state_called(before, key, request.headers.get(_RATE))
            if state is None:
                return PlainTextResponse("no handshake waits for this key\n", status_code=404)
            await registry.note_handshake(subscription, encoded(state))
        except StoreError as error:
            _log.warning("callback", subscription=subscription, error=str(error))
            return PlainTextResponse("try again later\n", status_code=503)
        _log.info("handshake", subscription=subscription, **msgspec.to_builtins(state))
        return PlainTextResponse("granted\n")

    return Starlette(routes=[Route(CALLBACK, callback, methods=["GET", "POST"])])
