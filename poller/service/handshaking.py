"""Asking a sink for permission before anything is sent to it (``validate = true``).

The state is kept in the registry, so a grant is asked for once and not by each process. A sink that has not granted is
asked again now and then; until then its events wait, and the subscription is failing with the reason.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

import msgspec
import structlog

from poller.config.subscriptions import SubscriptionSettings
from poller.delivery.handshake import (
    Asked,
    Awaiting,
    Granted,
    HandshakeState,
    callback_url,
    encoded,
    state_after,
    state_unanswered,
    stored_state,
    ungranted,
)
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
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    told: Callable[[str | None], None] = lambda _: None,
) -> Granted | None:
    """Wait until the sink has granted events; None: told to stop before.

    Args:
        settings: of the subscription.
        sink: is asked.
        registry: keeps the state.
        kept: the state as it was kept.
        stop: ends the wait.
        public_url: where the daemon can be called back; None: no callback is offered.
        now: UTC.
        told: why nothing may be sent, in words; None once it may.

    Raises:
        StoreError: the state cannot be kept.
    """
    name = origin(public_url)
    state = stored_state(kept)
    while not stop.is_set():
        told(ungranted(state))
        if isinstance(state, Granted) and state.origin == name:
            return state
        key = secrets.token_urlsafe(_KEY_BYTES)
        base = f"{public_url.rstrip('/')}{CALLBACK}" if public_url else None
        asked = asked_of(settings, name, callback_url(base, subscription=settings.id, key=key) if base else None)
        answer, before = await sink.options(asked.headers), state
        if answer.outcome.status is None:
            state = state_unanswered(answer.outcome.text, before=before, now=now())
        else:
            status = answer.outcome.status
            state = state_after(answer.headers, asked, status=status, key=key, before=before, now=now())
        await registry.note_handshake(settings.id, encoded(state))
        _log_state(settings.id, state, before)
        told(ungranted(state))
        state = await _later(state, registry, settings.id, stop)
    return None


def asked_of(settings: SubscriptionSettings, origin: str, callback: str | None = None) -> Asked:
    """What the sink of a subscription is asked."""
    return Asked(origin, rate=math.ceil(settings.rate * 60) if settings.rate else None, callback=callback)


def _log_state(subscription: str, state: HandshakeState, before: HandshakeState | None) -> None:
    """Say it: as a warning where events cannot be sent for a new reason."""
    why = ungranted(state)
    if why is None:
        _log.info("handshake", subscription=subscription, **msgspec.to_builtins(state))
    else:
        level = _log.debug if why == ungranted(before) else _log.warning
        level("handshake", subscription=subscription, state=msgspec.to_builtins(state)["state"], error=why)


async def _later(
    state: HandshakeState | None, registry: Registry, subscription: str, stop: asyncio.Event
) -> HandshakeState | None:
    """The state when it is time to ask again, or as soon as somebody has called back."""
    if isinstance(state, Granted):
        return state
    looks = _LATE_GRANT if isinstance(state, Awaiting) else _AGAIN
    for _ in range(looks):
        if await unless(stop, _LOOK_SECONDS):
            break
        found = stored_state(await registry.handshake(subscription))
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
