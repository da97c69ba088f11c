"""May this sink be sent events? The handshake of CloudEvents' web hooks (abuse protection), as values.

Theory of operation
-------------------
An OPTIONS request to the sink's exact URL asks; headers of the answer grant. The status says nothing, for servers
answer OPTIONS for reasons of their own. The permission is for an origin, a DNS name that stands for all of the
daemon's processes, and each delivery under it names that origin again.

=========================================  ============================================================
the answer                                 the state
=========================================  ============================================================
``WebHook-Allowed-Origin`` ours, or ``*``  granted, at ``WebHook-Allowed-Rate`` (a minute, or ``*``)
… with a rate that is none                 refused: better seen at once than sent at a pace nobody chose
another origin                             refused
no such header, a callback was offered     awaiting: whoever calls it with its key grants
no such header otherwise                   refused
=========================================  ============================================================

A refusal after a grant is a revocation. Where there was no answer at all there is nothing to read: the state stays.

Pure: the key of the callback is drawn by the caller, and of it only a digest is kept. States are JSON as kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.parse import urlencode

import msgspec

from poller.http.addresses import address_of
from poller.http.hosts import misspelling

ORIGIN: Final = "WebHook-Request-Origin"
"""The header that the request and, after a grant, every delivery carries."""

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


class Refused(msgspec.Struct, frozen=True, tag_field="state", tag="refused"):
    """Nothing may be sent, and nothing was."""

    reason: str


class Revoked(msgspec.Struct, frozen=True, tag_field="state", tag="revoked"):
    """Nothing may be sent any more."""

    reason: str


State = Granted | Awaiting | Refused | Revoked


def state_after(headers: Mapping[str, str], asked: Asked, *, key: str = "", before: State | None = None) -> State:
    """What an answer means.

    Args:
        headers: the answer's, by names that know no case or are in lower case.
        asked: what it answers.
        key: of the callback that was offered; "" where none was.
        before: the state until now.
    """
    said = _read(headers, asked, key)
    if isinstance(said, Refused) and isinstance(before, Granted | Revoked):
        return Revoked(said.reason)
    return said


def state_called(before: State | None, key: str, rate: str | None = None) -> State | None:
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


def encoded(state: State) -> bytes:
    """As it is kept: a JSON object."""
    return msgspec.json.encode(state)


def decoded(kept: bytes) -> State:
    """As it was kept.

    Raises:
        msgspec.DecodeError: it is no state.
    """
    state: State = msgspec.json.decode(kept, type=State)
    return state


def _read(headers: Mapping[str, str], asked: Asked, key: str) -> State:
    origin = headers.get("webhook-allowed-origin")
    if origin is None:
        if asked.callback is not None:
            return Awaiting(asked.origin, digest_of(key), asked.rate)
        return Refused("the sink has not allowed any origin (no WebHook-Allowed-Origin in its answer to OPTIONS)")
    if origin.strip() != "*" and origin.strip().lower() != asked.origin.lower():
        return Refused(f"the sink allows another origin than {asked.origin} (WebHook-Allowed-Origin)")
    return _granted(asked.origin, headers.get("webhook-allowed-rate"), asked.rate)


def _granted(origin: str, rate: str | None, asked: int | None) -> State:
    text = (rate or "").strip()
    if not text:
        return Granted(origin, asked)
    if text == "*":
        return Granted(origin)
    number = _RATE.fullmatch(text)
    if number is None:
        return Refused('the sink allows a rate that is none: neither "*" nor a whole number (WebHook-Allowed-Rate)')
    return Granted(origin, int(number[1]))
