"""Asking a sink for permission before anything is sent to it (``validate = true``).

The state is kept in the registry, so a grant is asked for once and not by each process. A sink that has not granted is
asked again now and then; until then its events wait.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import socket
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import msgspec
import structlog

from poller.config.subscriptions import SubscriptionSettings
from poller.delivery.handshake import Asked, Awaiting, Granted, State, callback_url, decoded, encoded, state_after
from poller.delivery.sink import Sink
from poller.stopping import unless
from poller.store.subscriptions import Registry

CALLBACK: Final = "/webhooks/callback"
"""The path of the HTTP service that a sink calls for a later grant."""

_LOOK_SECONDS: Final = 1.0
_AGAIN: Final = 60  # looks before a sink that has not granted is asked again
_LATE_GRANT: Final = 3600  # likewise, where it may call back
_KEY_BYTES: Final = 32
_NAMELESS: Final = "poller.invalid"  # a machine that has no DNS name of its own

_log = structlog.get_logger("poller.delivery")


async def permitted(
    settings: SubscriptionSettings,
    sink: Sink,
    registry: Registry,
    kept: bytes | None,
    stop: asyncio.Event,
    *,
    public_url: str | None,
) -> Granted | None:
    """Wait until the sink has granted events; None: told to stop before.

    Args:
        settings: of the subscription.
        sink: is asked.
        registry: keeps the state.
        kept: the state as it was kept.
        stop: ends the wait.
        public_url: where the daemon can be called back; None: no callback is offered.

    Raises:
        StoreError: the state cannot be kept.
    """
    name = origin(public_url)
    state = _state(kept)
    while not stop.is_set():
        if isinstance(state, Granted) and state.origin == name:
            return state
        key = secrets.token_urlsafe(_KEY_BYTES)
        base = f"{public_url.rstrip('/')}{CALLBACK}" if public_url else None
        asked = Asked(
            name,
            rate=math.ceil(settings.rate * 60) if settings.rate else None,
            callback=callback_url(base, subscription=settings.id, key=key) if base else None,
        )
        answer = await sink.options(asked.headers)
        if answer.outcome.status is None:
            _log.warning("handshake", subscription=settings.id, error=answer.outcome.text)
        else:
            state = state_after(answer.headers, asked, key=key, before=state)
            await registry.note_handshake(settings.id, encoded(state))
            _log.info("handshake", subscription=settings.id, **msgspec.to_builtins(state))
        state = await _later(state, registry, settings.id, stop)
    return None


async def _later(state: State | None, registry: Registry, subscription: str, stop: asyncio.Event) -> State | None:
    """The state when it is time to ask again, or as soon as somebody has called back."""
    if isinstance(state, Granted):
        return state
    looks = _LATE_GRANT if isinstance(state, Awaiting) else _AGAIN
    for _ in range(looks):
        if await unless(stop, _LOOK_SECONDS):
            break
        found = _state(await registry.handshake(subscription))
        if isinstance(found, Granted):
            return found
    return state


def origin(public_url: str | None) -> str:
    """The DNS name that the daemon sends as: that of its public URL, or of this machine."""
    machine = (name for name in (socket.getfqdn(), socket.gethostname()) if name != "localhost")
    for name in (urlsplit(public_url or "").hostname or "", *machine):
        with suppress(ValueError):
            return Asked(name).origin
    return _NAMELESS


def _state(kept: bytes | None) -> State | None:
    try:
        return decoded(kept) if kept else None
    except msgspec.MsgspecError:  # another version's
        return None
