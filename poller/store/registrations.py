"""What is kept of the subscriptions, as one value: which there are, which of them rest, how they do.

Law: whatever has an id here is registered here. What cannot be read is named and not repeated, for it may be a secret.

Pure. Settings are text that nobody here looks into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec

from poller.errors import SubscriptionUnknown

Origin = Literal["file", "run"]
Pauser = Literal["operator", "sink", "failures", "removed"]

WHOLE: Final = ""
"""In place of a feed: the whole subscription."""

LONGEST_PAUSE: Final = timedelta(hours=24)
"""A sink may ask for no longer pause; a moment further away was written by a wrong clock, and means nothing."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SINCE, _RESUMED = "since", "resumed"
_NEAR_MS: Final = 1000  # of two primaries of one store


class Registered(msgspec.Struct, frozen=True):
    """A subscription that is known.

    Attributes:
        origin: ``file``: the configuration's; ``run``: it was added while the program ran.
        settings: a JSON object with the keys that a ``[[subscriptions]]`` table has.
        since: when it was first known, UTC.
        asked: since when it wants the feeds that it does, in milliseconds of the store's clock; 0: not known. What is
            published from then on is new to it, however late somebody begins to deliver it.
        member: by whose file it came, or came back, while others had none of it: the process' name; "": not known, or
            it was paused since. See :mod:`poller.store.settling`.
    """

    origin: Origin
    settings: msgspec.Raw
    since: datetime
    asked: int = 0
    member: str = ""


class Paused(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why nothing is delivered.

    Attributes:
        by: ``operator``; ``sink``: it answered that it wants no more; ``failures``: nothing else for too long;
            ``removed``: the file does not have it any more.
        reason: in words.
        at: when it was paused, UTC.
        member: the process whose file does not have it; "": not known, or somebody else has paused it.
    """

    by: Pauser
    reason: str
    at: datetime
    member: str = ""


class SinkPauses(msgspec.Struct, frozen=True):
    """The pauses that sinks have asked for, by subscription; moments are those of the store's clock.

    Attributes:
        until: until when the sink wants nothing, UTC; may have passed.
        since: since when that is known, UTC; absent where another version has written it.
        resumed: when an operator last ended one, in milliseconds: what began before that is over.
    """

    until: Mapping[str, datetime] = {}
    since: Mapping[str, datetime] = {}
    resumed: Mapping[str, int] = {}


class Subscriptions(msgspec.Struct, frozen=True):
    """All that is kept of the subscriptions, each part by their ids.

    Attributes:
        version: rises with each change of the first four parts.
        registered: every subscription there is; the other parts hold no id that is not here.
        secrets: the signing secrets that were made for a subscription here; never to be shown.
        credentials: what a request has brought for its sink to be sent, opaque; never to be shown.
        paused: those that rest.
        health: how they do at each feed, opaque; under :data:`WHOLE` what holds for all of one.
        pauses: those that sinks have asked for.
        handshakes: whether the sink has granted events, opaque.
        at: when this was so, in milliseconds of the store's clock; 0: not known.
    """

    version: int = 0
    registered: Mapping[str, Registered] = {}
    secrets: Mapping[str, tuple[str, ...]] = {}
    credentials: Mapping[str, bytes] = {}
    paused: Mapping[str, Paused] = {}
    health: Mapping[str, Mapping[str, bytes]] = {}
    pauses: SinkPauses = SinkPauses()
    handshakes: Mapping[str, bytes] = {}
    at: int = 0

    @property
    def until(self) -> Mapping[str, datetime]:
        """Until when sinks want nothing, UTC; may have passed."""
        return self.pauses.until

    def __repr__(self) -> str:
        """Without anything that may be secret."""
        return f"Subscriptions(version={self.version}, ids={sorted(self.registered)})"


def require_registered(kept: Subscriptions, subscription: str) -> Registered:
    """The subscription of this id.

    Raises:
        SubscriptionUnknown: there is none.
    """
    found = kept.registered.get(subscription)
    if found is None:
        there = f"; there are {', '.join(sorted(kept.registered))}" if kept.registered else "; there are none"
        raise SubscriptionUnknown(f'there is no subscription "{subscription}"{there}')
    return found


def subscriptions_of(version: bytes | None, hashes: Sequence[Mapping[bytes, bytes]], at: int = 0) -> Subscriptions:
    """The value from what the store answers.

    Args:
        version: absent where nothing was ever written.
        hashes: registry, secrets, credentials, paused, health, until and handshakes, each by id; health by that and
                the feed.
        at: when that was, in milliseconds of the store's clock.

    Raises:
        ValueError: a part cannot be read; the message names it.
    """
    registry, secrets, credentials, paused, health, until, handshakes = (
        {name.decode(): value for name, value in one.items()} for one in hashes
    )
    try:
        return Subscriptions(
            int(version or 0),
            {name: _read("registry", name, value, Registered) for name, value in registry.items()},
            {name: _read("secrets", name, value, tuple[str, ...]) for name, value in secrets.items()},
            credentials,
            {name: _read("paused", name, value, Paused) for name, value in paused.items()},
            by_feed(health),
            sink_pauses(until, at),
            handshakes,
            at,
        )
    except OverflowError:
        raise ValueError("until: a moment that is none") from None


def sink_pauses(kept: Mapping[str, bytes], at: int) -> SinkPauses:
    """The pauses from their hash.

    One that cannot be is none: it would last longer than any, or began in what is still to come. So says a clock that
    was wrong when it was written, or that was set back since.

    Args:
        kept: by :func:`since_field`, :func:`resumed_field`, and the subscription's id for until when.
        at: when it was read, in milliseconds of the store's clock; 0: not known.

    Raises:
        ValueError: a part cannot be read; the message names it.
        OverflowError: a moment is none.
    """
    read = {field: int(_read("until", field, value, int)) for field, value in kept.items()}
    until = {name: moment for name, moment in read.items() if " " not in name}
    since = {name: read[field] for name in until if (field := since_field(name)) in read}
    latest = at + LONGEST_PAUSE // timedelta(milliseconds=1)
    valid = {
        name: moment_of(moment)
        for name, moment in until.items()
        if not at or (moment <= latest and since.get(name, 0) <= at + _NEAR_MS)
    }
    resumed = {field.partition(" ")[0]: moment for field, moment in read.items() if field.endswith(f" {_RESUMED}")}
    return SinkPauses(valid, {name: moment_of(since[name]) for name in valid if name in since}, resumed)


def since_field(subscription: str) -> str:
    """Where it is kept since when a sink wants nothing. An id holds no space."""
    return f"{subscription} {_SINCE}"


def resumed_field(subscription: str) -> str:
    """Where it is kept when an operator last ended a pause of a sink."""
    return f"{subscription} {_RESUMED}"


def health_field(subscription: str, feed: str) -> str:
    """Where the health of a subscription at a feed is kept. Neither holds a space."""
    return f"{subscription} {feed}".rstrip()


def by_feed(health: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """What is kept by :func:`health_field`, by subscription and feed."""
    found: dict[str, dict[str, bytes]] = {}
    for field, value in health.items():
        subscription, _, feed = field.partition(" ")
        found.setdefault(subscription, {})[feed] = value
    return found


def milliseconds_of(moment: datetime) -> int:
    """Since 1970."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def moment_of(milliseconds: int) -> datetime:
    """The moment so many milliseconds after 1970 began, UTC.

    Raises:
        OverflowError: it is beyond the year 9999.
    """
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _read(part: str, name: str, value: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"{part}, {name}") from None
