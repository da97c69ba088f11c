"""The address that a sink calls to grant events after its handshake.

Serves what is in the store and nothing of this process, so it may run apart from those who deliver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from poller.delivery.handshake import encoded, state_called, stored_state
from poller.errors import StoreError
from poller.service.handshaking import CALLBACK
from poller.store.subscriptions import Registry

_RATE: Final = "WebHook-Allowed-Rate"

_log = structlog.get_logger("poller.web")


def callback_routes(registry: Callable[[], Registry | None]) -> list[Route]:
    """The routes.

    Args:
        registry: of the subscriptions; None while the store has not answered yet.
    """

    async def callback(request: Request) -> Response:
        """GET or POST by whoever has the key: grants events to the sink of a subscription."""
        kept_in = registry()
        if kept_in is None:
            return _later()
        subscription, key = request.query_params.get("id", ""), request.query_params.get("key", "")
        try:
            kept = await kept_in.handshake(subscription)
            state = state_called(stored_state(kept), key, request.headers.get(_RATE))
            if state is None:
                return PlainTextResponse("no handshake waits for this key\n", status_code=404)
            await kept_in.note_handshake(subscription, encoded(state))
        except StoreError as error:
            _log.warning("callback", subscription=subscription, error=str(error))
            return _later()
        _log.info("handshake", subscription=subscription, **msgspec.to_builtins(state))
        return PlainTextResponse("granted\n")

    return [Route(CALLBACK, callback, methods=["GET", "POST"])]


def _later() -> Response:
    return PlainTextResponse("try again later\n", status_code=503)
