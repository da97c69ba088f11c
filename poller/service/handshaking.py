"""Asking a sink for permission before anything is sent to it (``validate = true``).

The state is kept in the registry, so a grant is asked for once and not by each process. A sink that has not granted is
asked again now and then; until then its events wait.
"""

from __future__ import annotations

import asyncio
import math
import socket
from datetime import timedelta
from typing import Final

import msgspec
import structlog

from poller.config.subscriptions import SubscriptionSettings
from poller.delivery.handshake import Asked, Granted, State, decoded, encoded, state_after
from poller.delivery.sink import Sink
from poller.stopping import unless
from poller.store.subscriptions import Registry

_AGAIN: Final = timedelta(minutes=1)
_NAMELESS: Final = "poller.invalid"  # a machine that has no DNS name of its own

_log = structlog.get_logger("poller.delivery")


async def permitted(
    settings: SubscriptionSettings, sink: Sink, registry: Registry, kept: bytes | None, stop: asyncio.Event
) -> Granted | None:
    """Wait until the sink has granted events; None: told to stop before.

    Raises:
        StoreError: the state cannot be kept.
    """
    asked = Asked(origin(), rate=math.ceil(settings.rate * 60) if settings.rate else None)
    state = _state(kept)
    while not stop.is_set():
        if isinstance(state, Granted) and state.origin == asked.origin:
            return state
        answer = await sink.options(asked.headers)
        if answer.outcome.status is None:
            _log.warning("handshake", subscription=settings.id, error=answer.outcome.text)
        else:
            state = state_after(answer.headers, asked, before=state)
            await registry.note_handshake(settings.id, encoded(state))
            _log.info("handshake", subscription=settings.id, **msgspec.to_builtins(state))
        if not isinstance(state, Granted):
            await unless(stop, _AGAIN.total_seconds())
    return None


def origin() -> str:
    """The DNS name that this machine sends as."""
    name = socket.getfqdn()
    try:
        return Asked(name).origin
    except ValueError:
        return _NAMELESS


def _state(kept: bytes | None) -> State | None:
    try:
        return decoded(kept) if kept else None
    except msgspec.MsgspecError:  # another version's
        return None
