"""The CloudEvents handshake (``validate = true``): the states of a sink's permission, and the loop that requests it.

A sink must grant events before any is sent. The permission is for an origin, a DNS name for all processes of the
daemon, and each delivery names that origin.

==============================  ========================================================================
the sink's answer               the state
==============================  ========================================================================
granted                         granted, at the rate that it names (a minute, or ``*``)
granted, at a rate that is none  refused: better seen soon than sent at a pace that was not chosen
refused                         refused; after a grant: revoked
unanswered                      unanswered, and asked again; a callback that was offered still grants
awaiting                        awaiting: a call of the callback with its key grants
==============================  ========================================================================

**Invariants**

* Every state but a grant has a reason, a beginning and a remedy; the subscription fails meanwhile.
* The state is stored in the registry as JSON, so that permission is requested once and not by each process. Only a
  digest of the callback's key is stored.
* A sink that has not granted is asked again from time to time; until then its events wait.
* A callback grants from the moment on at which it is offered, for a sink may call it before it answers; the last
  :data:`_OFFERS` of them do, for several processes may ask. What the sink answers never takes such a grant back.
"""

from __future__ import annotations

import asyncio
import math
import re
import socket
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
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
from poller.lifecycle import unless_stopped
from poller.store.registry import Registry

_REMEDY: Final = "let it answer OPTIONS with WebHook-Allowed-Origin: * (or the name it is sent), or unset validate"
_CALLED: Final = "it has to call the URL that it is sent as WebHook-Request-Callback; it is asked again every hour"
_ASKED_AGAIN: Final = "it is asked again every minute"
_RATE: Final = re.compile(r"0*([1-9][0-9]{0,8})")
_MINUTE: Final = 60.0


class Granted(msgspec.Struct, frozen=True, tag_field="state", tag="granted"):
    """Events may be sent as ``origin``; ``rate``: requests a minute, None: no limit."""

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
    """The sink has refused, and never granted before."""

    reason: str
    since: datetime | None = None


class Revoked(msgspec.Struct, frozen=True, tag_field="state", tag="revoked"):
    """The sink has refused after a grant."""

    reason: str
    since: datetime | None = None


class Unanswered(msgspec.Struct, frozen=True, tag_field="state", tag="unanswered"):
    """The sink has not answered the request for permission; ``offered``: the callbacks that still grant."""

    reason: str
    since: datetime | None = None
    offered: Awaiting | None = None


Ungranted = Awaiting | Refused | Revoked | Unanswered
HandshakeState = Granted | Ungranted
"""``since``: the beginning, UTC; None: unknown."""


def state_after(
    permission: Permission,
    request: PermissionRequest,
    *,
    key: str = "",
    before: HandshakeState | None = None,
    now: datetime | None = None,
) -> HandshakeState:
    """The state after an answer.

    Args:
        permission: the sink's answer.
        request: that it answers.
        key: of the offered callback; "": none was offered.
        before: the present state.
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
    """The state after a request without an answer; ``reason``: the failure."""
    return before if isinstance(before, Awaiting) else Unanswered(reason, _since(before, now))


def ungranted(state: HandshakeState | None) -> str | None:
    """The reason why nothing may be sent, with the remedy; None: events may be sent, or the sink was not asked yet."""
    if state is None or isinstance(state, Granted):
        return None
    remedy = {Awaiting: _CALLED, Unanswered: _ASKED_AGAIN}.get(type(state), _REMEDY)
    return f"{state.reason}; {remedy}"


def state_called(before: HandshakeState | None, key: str, rate: str | None = None) -> HandshakeState | None:
    """The state after a callback with this key and ``WebHook-Allowed-Rate``; None: unchanged."""
    digest, offered = digest_of(key), _offered(before)
    if offered is None or not any(compare_digest(digest, one) for one in (offered.digest, *offered.earlier)):
        return None
    return _granted(offered.origin, rate, offered.rate)


def callback_url(base: str, *, subscription: str, key: str) -> str:
    """The URL that grants events."""
    return f"{base}?{urlencode({'id': subscription, 'key': key})}"


def digest_of(key: str) -> str:
    """The stored digest of a callback's key."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def pace(granted: Granted, configured: float | None) -> float | None:
    """The rate limit in requests per second, by grant and subscription; None: no limit."""
    limits = [limit for limit in (configured, granted.rate and granted.rate / _MINUTE) if limit is not None]
    return min(limits, default=None)


def encoded(state: HandshakeState) -> bytes:
    """The stored form, a JSON object."""
    return msgspec.json.encode(state)


def decoded(kept: bytes) -> HandshakeState:
    """The state from its stored form.

    Raises:
        msgspec.DecodeError: invalid.
    """
    state: HandshakeState = msgspec.json.decode(kept, type=HandshakeState)
    return state


def stored_state(kept: bytes | None) -> HandshakeState | None:
    """The stored state; None: none, or another version's."""
    try:
        return decoded(kept) if kept else None
    except ValueError:  # also of bytes that are no UTF-8
        return None


def _offered(state: HandshakeState | None) -> Awaiting | None:
    """The callbacks that still grant; None: there are none."""
    return state.offered if isinstance(state, Unanswered) else state if isinstance(state, Awaiting) else None


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
_AGAIN: Final = 60  # reads of the registry before a sink that has not granted is asked again
_LATE_GRANT: Final = 3600  # the same if it may call back
_AFTER_CHANGE: Final = 2.0  # seconds; the registry is read each second
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
        kept: the stored state.
        stop: ends the wait.
        public_url: where the daemon can be called back; None: no callback is offered.
        clock: the store's.
        report: is called with the reason why nothing may be sent; None: events may be sent.

    Raises:
            StoreError: the state cannot be stored.
    """
    name, state = await unless_stopped(origin_aside(public_url), stop), stored_state(kept)
    if name is None:
        return None
    while not stop.is_set():
        report(ungranted(state))
        if isinstance(state, Granted) and state.origin == name:
            return state
        key = urlsafe_b64encode(clock.random.randbytes(_KEY_BYTES)).rstrip(b"=").decode()
        base = f"{public_url.rstrip('/')}{CALLBACK}" if public_url else None
        request = request_of(settings, name, callback_url(base, subscription=settings.id, key=key) if base else None)
        before, offered = state, key if base else ""
        state = await _asked(sink, request, offered, before, registry=registry, settings=settings, clock=clock)
        if state is None:  # removed, or with another sink now: this answer no longer counts, and the stop comes soon
            if await clock.wait(stop, _AFTER_CHANGE):
                return None
            continue  # it has this sink again
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
    """Ask the sink once. Returns the stored state; None: as of :func:`_kept`.

    A callback is stored before it is offered, because a sink may call it before it answers.
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
    if isinstance(offered, Awaiting) and isinstance(state, Unanswered):  # a slow sink may call all the same
        state = msgspec.structs.replace(state, offered=offered)
    return await _kept(state, registry, settings, before=encoded(offered) if offered else b"")


def _offer(
    request: PermissionRequest, key: str, before: HandshakeState | None, stored: HandshakeState | None
) -> HandshakeState:
    """The state in which a callback with this key grants, and those offered earlier; a grant that is there stays."""
    if isinstance(stored, Granted) and stored.origin == request.origin:
        return stored
    there = _offered(stored)
    earlier = (there.digest, *there.earlier)[: _OFFERS - 1] if there and there.origin == request.origin else ()
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
    """The request for permission to the sink of a subscription."""
    return PermissionRequest(origin, rate=math.ceil(settings.rate * 60) if settings.rate else None, callback=callback)


def _log_state(subscription: str, state: HandshakeState, before: HandshakeState | None) -> None:
    """Log the state: a warning if events cannot be sent for a new reason."""
    why = ungranted(state)
    if why is None:
        _log.info("handshake", subscription=subscription, **msgspec.to_builtins(state))
    else:
        level = _log.debug if why == ungranted(before) else _log.warning
        level("handshake", subscription=subscription, state=msgspec.to_builtins(state)["state"], error=why)


async def _later(
    state: HandshakeState | None, registry: Registry, subscription: str, stop: asyncio.Event, clock: Clock
) -> HandshakeState | None:
    """Wait until it is time to ask again, or for a callback. Returns the state then."""
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


def origin(public_url: str | None, machine: Callable[[], str] = socket.getfqdn) -> str:
    """The origin: the host of the public URL, or this machine's DNS name. ``machine`` may block for long."""
    public = urlsplit(public_url or "").hostname or ""
    names: Sequence[Callable[[], str]] = (lambda: public, machine, socket.gethostname)
    for name in names:
        with suppress(ValueError):
            found = PermissionRequest(name()).origin
            if found == public or found != "localhost":
                return found
    return _NAMELESS


async def origin_aside(public_url: str | None, machine: Callable[[], str] = socket.getfqdn) -> str:
    """As :func:`origin`, in a thread that delays neither other tasks nor the end of the process."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str] = loop.create_future()

    def settle(name: str) -> None:
        if not found.done():  # else the caller was cancelled
            found.set_result(name)

    def find() -> None:
        name = origin(public_url, machine)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, name)

    threading.Thread(target=find, name="look-up of this machine's name", daemon=True).start()
    return await found
