"""May this sink be sent events? The handshake of CloudEvents' web hooks (abuse protection), as values.

Theory of operation
-------------------
An OPTIONS request to the sink's exact URL asks; headers of the answer grant. Where they grant, the status says nothing,
for servers answer OPTIONS for reasons of their own. The permission is for an origin, a DNS name that stands for all of
the daemon's processes, and each delivery under it names that origin again.

=========================================  ============================================================
the answer                                 the state
=========================================  ============================================================
``WebHook-Allowed-Origin`` ours, or ``*``  granted, at ``WebHook-Allowed-Rate`` (a minute, or ``*``)
… with a rate that is none                 refused: better seen at once than sent at a pace nobody chose
another origin                             refused
no such header, 429 or 5xx                 unanswered, and asked again; a callback that was offered before
                                           still grants
no such header, any other 3xx or 4xx       refused: a sink that answers 405 calls no callback either
no such header, a callback was offered     awaiting: whoever calls it with its key grants
no such header otherwise                   refused
=========================================  ============================================================

A refusal after a grant is a revocation. No answer at all counts as 5xx. Whatever is no grant has a reason, a moment at
which it began, and a remedy: the subscription is failing, for nothing is sent.

Pure: the key of the callback is drawn by the caller, and of it only a digest is kept. States are JSON as kept.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec
import structlog

from poller.config.subscriptions import SubscriptionSettings
from poller.delivery.sinks.webhook import Sink
from poller.http.ssrf import address_of, misspelling
from poller.lifecycle import unless
from poller.store.subscriptions import Registry

ORIGIN: Final = "WebHook-Request-Origin"
"""The header that the request and, after a grant, every delivery carries."""

_REMEDY: Final = "let it answer OPTIONS with WebHook-Allowed-Origin: * (or the name it is sent), or unset validate"
_CALLED: Final = "it has to call the URL that it is sent as WebHook-Request-Callback; it is asked again every hour"
_ASKED_AGAIN: Final = "it is asked again every minute"
_TOO_MANY: Final = 429
_RATE: Final = re.compile(r"0*([1-9][0-9]{0,8})")
_MINUTE: Final = 60.0


class Asked(msgspec.Struct, frozen=True):
    """What permission is asked for.

    Attributes:
        origin: the DNS name that the daemon sends as.
        rate: requests a minute; None: no rate is named.
        callback: the URL to call for a later grant, with its key; None: none is offered.
    """

    origin: str
    rate: int | None = None
    callback: str | None = None

    def __post_init__(self) -> None:
        """Hold it to what a header can say."""
        if misspelling(self.origin) or address_of(self.origin):
            raise ValueError("the origin of a handshake is a DNS name")
        if self.rate is not None and self.rate < 1:
            raise ValueError("the rate of a handshake is a whole number of requests a minute")

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Those of the OPTIONS request."""
        wanted = {
            ORIGIN: self.origin,
            "WebHook-Request-Callback": self.callback,
            "WebHook-Request-Rate": None if self.rate is None else str(self.rate),
        }
        return tuple((name, value) for name, value in wanted.items() if value is not None)


class Granted(msgspec.Struct, frozen=True, tag_field="state", tag="granted"):
    """Events may be sent as ``origin``; ``rate`` is requests a minute, None for no limit."""

    origin: str
    rate: int | None = None


class Awaiting(msgspec.Struct, frozen=True, tag_field="state", tag="awaiting callback"):
    """Nothing may be sent until somebody calls back with the key of this digest (SHA-256, hex)."""

    origin: str
    digest: str
    rate: int | None = None
    since: datetime | None = None

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
    headers: Mapping[str, str],
    asked: Asked,
    *,
    status: int = 200,
    key: str = "",
    before: HandshakeState | None = None,
    now: datetime | None = None,
) -> HandshakeState:
    """What an answer means.

    Args:
        headers: the answer's, by names that know no case or are in lower case.
        asked: what it answers.
        status: the answer's.
        key: of the callback that was offered; "" where none was.
        before: the state until now.
        now: UTC.
    """
    said = _read(headers, status, asked, key)
    if isinstance(said, Unanswered):
        return state_unanswered(said.reason, before=before, now=now)
    if isinstance(said, Granted):
        return said
    if isinstance(said, Refused) and isinstance(before, Granted | Revoked):
        said = Revoked(said.reason)
    return msgspec.structs.replace(said, since=_since(before, now))


def state_unanswered(
    reason: str, *, before: HandshakeState | None = None, now: datetime | None = None
) -> HandshakeState:
    """The state after a request that was not answered, or by no word about permission; ``reason`` says how."""
    return before if isinstance(before, Awaiting) else Unanswered(reason, _since(before, now))


def ungranted(state: HandshakeState | None) -> str | None:
    """Why nothing may be sent, and what to do about it, in words; None where it may, or the sink was not asked yet."""
    if state is None or isinstance(state, Granted):
        return None
    remedy = {Awaiting: _CALLED, Unanswered: _ASKED_AGAIN}.get(type(state), _REMEDY)
    return f"{state.reason}; {remedy}"


def state_called(before: HandshakeState | None, key: str, rate: str | None = None) -> HandshakeState | None:
    """What a call of the callback with this key, and this ``WebHook-Allowed-Rate``, leads to; None: nothing."""
    if not isinstance(before, Awaiting) or not compare_digest(before.digest, digest_of(key)):
        return None
    return _granted(before.origin, rate, before.rate)


def callback_url(base: str, *, subscription: str, key: str) -> str:
    """What to call for a grant."""
    return f"{base}?{urlencode({'id': subscription, 'key': key})}"


def digest_of(key: str) -> str:
    """What is kept of a callback's key."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def pace(granted: Granted, configured: float | None) -> float | None:
    """Requests a second at most, by the grant and by the subscription's own ``rate``; None: no limit."""
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


def _read(headers: Mapping[str, str], status: int, asked: Asked, key: str) -> HandshakeState:
    origin = headers.get("webhook-allowed-origin")
    if origin is None:
        if status == _TOO_MANY or status >= 500:  # noqa: PLR2004 -- the class of statuses
            return Unanswered(f"the sink answered {status} to OPTIONS")
        if status >= 300:  # noqa: PLR2004 -- as above
            return Refused(f"the sink answered {status} to OPTIONS, without WebHook-Allowed-Origin")
        if asked.callback is not None:
            return Awaiting(asked.origin, digest_of(key), asked.rate)
        return Refused("the sink has not allowed any origin (no WebHook-Allowed-Origin in its answer to OPTIONS)")
    if origin.strip() != "*" and origin.strip().lower() != asked.origin.lower():
        return Refused(f"the sink allows another origin than {asked.origin} (WebHook-Allowed-Origin)")
    return _granted(asked.origin, headers.get("webhook-allowed-rate"), asked.rate)


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


# Asking a sink for permission before anything is sent to it (``validate = true``).
#
# The state is kept in the registry, so a grant is asked for once and not by each process. A sink that has not granted
# is
# asked again now and then; until then its events wait, and the subscription is failing with the reason.

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
