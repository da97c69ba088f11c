"""The CloudEvents handshake (``validate = true``): a sink's permission, as states and their loop.

A sink is asked for permission before it is sent anything. The permission is for an origin, a DNS name that stands for
all of the daemon's processes, and each delivery under it names that origin again.

==============================  ========================================================================
the sink said                   the state
==============================  ========================================================================
granted                         granted, at the rate that it names (a minute, or ``*``)
granted, at a rate that is none  refused: better seen soon than sent at a pace that was not chosen
refused                         refused; after a grant: revoked
unanswered                      unanswered, and asked again; a callback that was offered before still grants
awaiting                        awaiting: a call of the callback with its key grants
==============================  ========================================================================

**Invariants**

* What is no grant has a reason, a moment at which it began, and a remedy: the subscription is failing meanwhile.
* The state is kept in the registry as JSON, so a grant is asked for once and not by each process. Of the callback's key
  only a digest is kept.
* A sink that has not granted is asked again now and then; until then its events wait.
* A callback grants from the moment on at which it is offered, for a sink may call it before it answers; the last
  :data:`_OFFERS` of them do, for several processes may ask. What the sink answers never takes such a grant back.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec
import structlog

from poller.clock import Clock
from poller.config.subscriptions import SubscriptionSettings
from poller.delivery.sinks.base import Permission, PermissionRequest, Sink
from poller.store.registry import Registry

_REMEDY: Final = "let it answer OPTIONS with WebHook-Allowed-Origin: * (or the name it is sent), or unset validate"
_CALLED: Final = "it has to call the URL that it is sent as WebHook-Request-Callback; it is asked again every hour"
_ASKED_AGAIN: Final = "it is asked again every minute"
_RATE: Final = re.compile(r"0*([1-9][0-9]{0,8})")
_MINUTE: Final = 60.0


class Granted(msgspec.Struct, frozen=True, tag_field="state", tag="granted"):
    """Events may be sent as ``origin``; ``rate`` is requests a minute, None for no limit."""

    origin: str
    rate: int | None = None


class Awaiting(msgspec.Struct, frozen=True, tag_field="state", tag="awaiting callback"):
    """Nothing may be sent until a callback with the key of this digest (SHA-256, hex), or of an ``earlier`` one."""

    origin: str
    digest: str
    rate: int | None = None
    since: datetime | None = None
    earlier: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why nothing may be sent."""
        return "the sink has not called the callback that it was offered"


class Refused(msgspec.Struct, frozen=True, tag_field="state", tag="refused"):
    """Nothing may be sent, and nothing was."""

    reason: str
    since: datetime | None = None


class Revoked(msgspec.Struct, frozen=True, tag_field="state", tag="revoked"):
    """Nothing may be sent any more."""

    reason: str
    since: datetime | None = None


class Unanswered(msgspec.Struct, frozen=True, tag_field="state", tag="unanswered"):
    """Nothing may be sent: the sink has not said whether it may."""

    reason: str
    since: datetime | None = None


Ungranted = Awaiting | Refused | Revoked | Unanswered
HandshakeState = Granted | Ungranted
"""``since``: from when on nothing could be sent, UTC; None: not known."""


def state_after(
    permission: Permission,
    request: PermissionRequest,
    *,
    key: str = "",
    before: HandshakeState | None = None,
    now: datetime | None = None,
) -> HandshakeState:
    """What an answer means.

    Args:
        permission: what the sink said.
        request: what it answers.
        key: of the callback that was offered; "" where none was.
        before: the state until now.
        now: UTC.
    """
    if permission.state == "unanswered":
        return state_unanswered(permission.text, before=before, now=now)
    if permission.state == "awaiting":
        said: HandshakeState = Awaiting(request.origin, digest_of(key), request.rate)
    elif permission.state == "refused":
        said = Refused(permission.text)
    else:
        said = _granted(request.origin, permission.rate, request.rate)
    if isinstance(said, Granted):
        return said
    if isinstance(said, Refused) and isinstance(before, Granted | Revoked):
        said = Revoked(said.reason)
    return msgspec.structs.replace(said, since=_since(before, now))


def state_unanswered(
    reason: str, *, before: HandshakeState | None = None, now: datetime | None = None
) -> HandshakeState:
    """The state after a request without an answer about permission; ``reason`` says how."""
    return before if isinstance(before, Awaiting) else Unanswered(reason, _since(before, now))


def ungranted(state: HandshakeState | None) -> str | None:
    """Why nothing may be sent, with the remedy.

    None where it may, or the sink was not asked yet.
    """
    if state is None or isinstance(state, Granted):
        return None
    remedy = {Awaiting: _CALLED, Unanswered: _ASKED_AGAIN}.get(type(state), _REMEDY)
    return f"{state.reason}; {remedy}"


def state_called(before: HandshakeState | None, key: str, rate: str | None = None) -> HandshakeState | None:
    """The state after a callback with this key and ``WebHook-Allowed-Rate``; None: unchanged."""
    digest = digest_of(key)
    if not isinstance(before, Awaiting) or not any(
        compare_digest(digest, one) for one in (before.digest, *before.earlier)
    ):
        return None
    return _granted(before.origin, rate, before.rate)


def callback_url(base: str, *, subscription: str, key: str) -> str:
    """What to call for a grant."""
    return f"{base}?{urlencode({'id': subscription, 'key': key})}"


def digest_of(key: str) -> str:
    """What is kept of a callback's key."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def pace(granted: Granted, configured: float | None) -> float | None:
    """Most requests a second, by the grant and the subscription's ``rate``; None: no limit."""
    limits = [limit for limit in (configured, granted.rate and granted.rate / _MINUTE) if limit is not None]
    return min(limits, default=None)


def encoded(state: HandshakeState) -> bytes:
    """As it is kept: a JSON object."""
    return msgspec.json.encode(state)


def decoded(kept: bytes) -> HandshakeState:
    """As it was kept.

    Raises:
        msgspec.DecodeError: it is no state.
    """
    state: HandshakeState = msgspec.json.decode(kept, type=HandshakeState)
    return state


def stored_state(kept: bytes | None) -> HandshakeState | None:
    """As it was kept; None where nothing was, or another version's."""
    try:
        return decoded(kept) if kept else None
    except msgspec.MsgspecError:
        return None


def _since(before: HandshakeState | None, now: datetime | None) -> datetime | None:
    return now if before is None or isinstance(before, Granted) else before.since or now


def _granted(origin: str, rate: str | None, asked: int | None) -> HandshakeState:
    text = (rate or "").strip()
    if not text:
        return Granted(origin, asked)
    if text == "*":
        return Granted(origin)
    number = _RATE.fullmatch(text)
    if number is None:
        return Refused('the sink allows a rate that is none: neither "*" nor a whole number (WebHook-Allowed-Rate)')
    return Granted(origin, int(number[1]))


CALLBACK: Final = "/webhooks/callback"
"""The path of the HTTP service that a sink calls for a later grant."""

_LOOK_SECONDS: Final = 1.0
_AGAIN: Final = 60  # looks before a sink that has not granted is asked again
_LATE_GRANT: Final = 3600  # likewise, where it may call back
_KEY_BYTES: Final = 32
_OFFERS: Final = 4
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
    clock: Clock,
    report: Callable[[str | None], None] = lambda _: None,
) -> Granted | None:
    """Wait until the sink has granted events; None: stopped before.

    Args:
        settings: of the subscription.
        sink: is asked.
        registry: keeps the state.
        kept: the state as it was kept.
        stop: ends the wait.
        public_url: where the daemon can be called back; None: no callback is offered.
        clock: the store's.
        report: why nothing may be sent, in words; None once it may.

    Raises:
        StoreError: the state cannot be kept.
    """
    name = origin(public_url)
    state = stored_state(kept)
    while not stop.is_set():
        report(ungranted(state))
        if isinstance(state, Granted) and state.origin == name:
            return state
        key = secrets.token_urlsafe(_KEY_BYTES)
        base = f"{public_url.rstrip('/')}{CALLBACK}" if public_url else None
        request = request_of(settings, name, callback_url(base, subscription=settings.id, key=key) if base else None)
        before, offered = state, key if base else ""
        state = await _asked(sink, request, offered, before, registry=registry, settings=settings, clock=clock)
        if state is None:
            await stop.wait()  # removed, or it has another sink now: what this one said no longer counts
            return None
        _log_state(settings.id, state, before)
        report(ungranted(state))
        state = await _later(state, registry, settings.id, stop, clock)
    return None


async def _asked(
    sink: Sink,
    request: PermissionRequest,
    key: str,
    before: HandshakeState | None,
    *,
    registry: Registry,
    settings: SubscriptionSettings,
    clock: Clock,
) -> HandshakeState | None:
    """The state that is kept after the sink was asked once; None: as of :func:`_kept`.

    A callback is kept before it is offered: a sink may call it before it answers.
    """
    offered: HandshakeState | None = None
    if key:
        stored = await registry.handshake(settings.id)
        offered = await _kept(
            _offer(request, key, before, stored_state(stored)), registry, settings, before=stored or b""
        )
        if not isinstance(offered, Awaiting):
            return offered
    state = state_after(await sink.verify(request), request, key=key, before=before, now=clock.now())
    if isinstance(offered, Awaiting) and isinstance(state, Awaiting):
        state = msgspec.structs.replace(offered, since=state.since)
    return await _kept(state, registry, settings, before=encoded(offered) if offered else b"")


def _offer(
    request: PermissionRequest, key: str, before: HandshakeState | None, stored: HandshakeState | None
) -> HandshakeState:
    """The state in which a callback with this key grants, and those offered earlier; a grant that is there stays."""
    there = stored if isinstance(stored, Awaiting | Granted) and stored.origin == request.origin else None
    if isinstance(there, Granted):
        return there
    earlier = (there.digest, *there.earlier)[: _OFFERS - 1] if there else ()
    since = None if before is None or isinstance(before, Granted) else before.since
    return Awaiting(request.origin, digest_of(key), request.rate, since, earlier)


async def _kept(
    state: HandshakeState, registry: Registry, settings: SubscriptionSettings, *, before: bytes
) -> HandshakeState | None:
    """Keep a state, a grant in any case, another one in place of ``before`` alone; returns what is kept then.

    None: the subscription is gone, or has another sink.
    """
    is_grant = isinstance(state, Granted)
    replaced = b"" if is_grant else before
    if await registry.note_handshake(settings.id, encoded(state), sink=settings.sink, before=replaced):
        return state
    return None if is_grant else stored_state(await registry.handshake(settings.id))


def request_of(settings: SubscriptionSettings, origin: str, callback: str | None = None) -> PermissionRequest:
    """What the sink of a subscription is asked."""
    return PermissionRequest(origin, rate=math.ceil(settings.rate * 60) if settings.rate else None, callback=callback)


def _log_state(subscription: str, state: HandshakeState, before: HandshakeState | None) -> None:
    """Say it: as a warning where events cannot be sent for a new reason."""
    why = ungranted(state)
    if why is None:
        _log.info("handshake", subscription=subscription, **msgspec.to_builtins(state))
    else:
        level = _log.debug if why == ungranted(before) else _log.warning
        level("handshake", subscription=subscription, state=msgspec.to_builtins(state)["state"], error=why)


async def _later(
    state: HandshakeState | None, registry: Registry, subscription: str, stop: asyncio.Event, clock: Clock
) -> HandshakeState | None:
    """The state when it is time to ask again, or after a callback."""
    if isinstance(state, Granted):
        return state
    looks = _LATE_GRANT if isinstance(state, Awaiting) else _AGAIN
    for _ in range(looks):
        if await clock.wait(stop, _LOOK_SECONDS):
            break
        found = stored_state(await registry.handshake(subscription))
        if isinstance(found, Granted):
            return found
    return state


def origin(public_url: str | None) -> str:
    """The daemon's DNS name as origin: from its public URL, or this machine's."""
    machine = (name for name in (socket.getfqdn(), socket.gethostname()) if name != "localhost")
    for name in (urlsplit(public_url or "").hostname or "", *machine):
        with suppress(ValueError):
            return PermissionRequest(name).origin
    return _NAMELESS
