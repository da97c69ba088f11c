"""What each change of the subscriptions comes to: which fields are to be written.

Law: a change is planned on a version of the whole, and whoever writes it does so only while that is still the version.
So two processes that change something at the same instant come one after the other, and neither overwrites what it has
not seen. What is as it should be is not written, so the same change twice is one.

A subscription that has left the file is paused and never dropped: its events wait. It goes on when it returns; whose
file counts where there are several, :mod:`poller.store.settling` says. Only an operator's word deletes one. A pause
stays the first one's, but an operator's takes the place of ``removed``, for that one ends by itself.

Pure. Of settings it looks at nothing but the feeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from poller.errors import ConfigurationError, SubscriptionTaken
from poller.store.registrations import (
    WHOLE,
    Paused,
    Registered,
    Subscriptions,
    health_field,
    milliseconds_of,
    moment_of,
    require_registered,
    resumed_field,
    since_field,
)

Part = Literal["registry", "secrets", "credentials", "paused", "health", "until", "handshakes"]
PARTS: Final[tuple[Part, ...]] = ("registry", "secrets", "credentials", "paused", "health", "until", "handshakes")

Write = tuple[Part, str, bytes | None]
"""Which hash, which field of it, and what that holds from now on; None deletes it."""

Following = Callable[[bytes, bytes | None], bytes | None]
"""Makes of a subscription's settings and credential, as they are kept, the credential that is kept from now on."""

_json: Final = msgspec.json.Encoder().encode
_NONE: Final = Subscriptions()


class _Feeds(msgspec.Struct):
    feeds: list[str] | None = None


class Synced(msgspec.Struct, frozen=True):
    """What a new look at the file has changed, ids in their order.

    Attributes:
        added: new ones.
        changed: whose settings are other ones now.
        removed: those that were paused because the file has them no more.
        returned: those that go on because the file has them again.
    """

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


def syncing(
    kept: Subscriptions, file: Mapping[str, bytes], now: datetime, before: Subscriptions = _NONE, *, member: str = ""
) -> tuple[list[Write], Synced]:
    """What is to be written so that the subscriptions of the file are these, and what that means.

    Args:
        kept: what is there.
        file: the settings of each subscription of the file, in JSON, by id; equal settings are equal bytes.
        now: UTC.
        before: what was there before the store lost it: those of the file are as old and as paused as they were.
        member: the process whose file it is.

    Raises:
        ConfigurationError: one of them has the id of a subscription that was added at run time.
    """
    twice = [name for name in file if name in kept.registered and kept.registered[name].origin == "run"]
    if twice:
        raise ConfigurationError(_twice(twice[0], kept.registered[twice[0]]))
    added = [name for name in file if name not in kept.registered]
    changed = {
        name: _changed(kept.registered[name], settings, kept.at)
        for name, settings in file.items()
        if name not in added and bytes(kept.registered[name].settings) != settings
    }
    returned = [name for name in file if name in kept.paused and kept.paused[name].by == "removed"]
    gone = [name for name, one in kept.registered.items() if one.origin == "file" and name not in file]
    removed = [name for name in gone if name not in kept.paused]
    writes = _coming(kept, {name: file[name] for name in added}, now, before, member=member)
    writes += [_registered(name, one) for name, one in changed.items() if name not in returned]
    for name in returned:
        writes += returning(name, changed.get(name, kept.registered[name]), member)
    pause = Paused("removed", "it is not in the configuration file any more", now, member)
    for name in removed:
        writes += leaving(name, kept.registered[name], pause)
    return writes, Synced(tuple(added), tuple(changed), tuple(removed), tuple(returned))


def returning(subscription: str, one: Registered, member: str) -> list[Write]:
    """What is to be written so that one which rests goes on, for it is in the file of this process."""
    return [("paused", subscription, None), _registered(subscription, msgspec.structs.replace(one, member=member))]


def leaving(subscription: str, one: Registered, pause: Paused) -> list[Write]:
    """What is to be written so that one rests which is in nobody's file, as far as is known."""
    unclaimed = [_registered(subscription, msgspec.structs.replace(one, member=""))] if one.member else []
    return [("paused", subscription, _json(pause)), *unclaimed]


def adding(
    kept: Subscriptions,
    subscription: str,
    settings: bytes,
    secrets: Sequence[str],
    now: datetime,
    *,
    credential: bytes | None = None,
) -> list[Write]:
    """What is to be written for a subscription that is added at run time.

    Args:
        kept: what is there.
        subscription: its id.
        settings: in JSON.
        secrets: those that were made for it.
        now: UTC.
        credential: that was brought for it.

    Raises:
        SubscriptionTaken: there is one of this id.
    """
    if subscription in kept.registered:
        raise SubscriptionTaken(f'there is a subscription "{subscription}" already')
    writes = [_registered(subscription, Registered("run", msgspec.Raw(settings), now, kept.at))]
    writes += [("secrets", subscription, _json(tuple(secrets)))] if secrets else []
    return writes + _credential(kept, subscription, credential)


def changing(
    kept: Subscriptions, subscription: str, settings: bytes, following: Following = lambda _, credential: credential
) -> list[Write]:
    """What is to be written so that a subscription has these settings and is otherwise what it was.

    Args:
        kept: what is there.
        subscription: its id.
        settings: in JSON.
        following: says what becomes of its credential.

    Raises:
        SubscriptionUnknown: there is none of this id.
    """
    before = require_registered(kept, subscription)
    has = following(bytes(before.settings), kept.credentials.get(subscription))
    same = bytes(before.settings) == settings
    writes = [] if same else [_registered(subscription, _changed(before, settings, kept.at))]
    return writes + _credential(kept, subscription, has)


def removing(kept: Subscriptions, subscription: str) -> list[Write]:
    """What is to be written so that nothing is left of a subscription.

    Raises:
        SubscriptionUnknown: there is none of this id.
    """
    require_registered(kept, subscription)
    writes: list[Write] = [(part, subscription, None) for part in PARTS if part != "health"]
    writes += [("until", since_field(subscription), None), ("until", resumed_field(subscription), None)]
    return writes + [("health", health_field(subscription, feed), None) for feed in kept.health.get(subscription, {})]


def pausing(
    kept: Subscriptions, subscription: str, pause: Paused, renewed: Callable[[bytes], bytes] | None = None
) -> tuple[list[Write], Paused | None]:
    """What is to be written so that it rests, and the pause that it was in before.

    Args:
        kept: what is there.
        subscription: its id.
        pause: why it rests.
        renewed: makes of what is kept of the whole one's health, which may be nothing, that of one that rests.

    Raises:
        SubscriptionUnknown: there is none of this id.
    """
    require_registered(kept, subscription)
    before = kept.paused.get(subscription)
    stays = before is not None and not (before.by == "removed" and pause.by == "operator")
    if stays:
        return [], before
    writes: list[Write] = [("paused", subscription, _json(pause))]
    return writes + (renewing(kept, subscription, renewed) if renewed else []), before


def renewing(kept: Subscriptions, subscription: str, renewed: Callable[[bytes], bytes]) -> list[Write]:
    """What is to be written so that the health that is kept of the whole subscription is another one."""
    health = kept.health.get(subscription, {}).get(WHOLE, b"")
    fresh = renewed(health)
    return [("health", health_field(subscription, WHOLE), fresh)] if fresh != health else []


def resuming(
    kept: Subscriptions, subscription: str, renewed: Callable[[bytes], bytes]
) -> tuple[list[Write], Paused | None]:
    """What is to be written so that it goes on, and the pause that it was in, a sink's included; None: none.

    Args:
        kept: what is there.
        subscription: its id.
        renewed: makes of its health at a feed, where there is some, that of one that starts again.

    Raises:
        SubscriptionUnknown: there is none of this id.
    """
    require_registered(kept, subscription)
    before, until = kept.paused.get(subscription), kept.until.get(subscription)
    writes: list[Write] = [] if before is None else [("paused", subscription, None)]
    if until is not None and milliseconds_of(until) > kept.at:
        since = kept.pauses.since.get(subscription) or moment_of(kept.at)
        before = before or Paused("sink", f"its sink wanted nothing before {until:%Y-%m-%dT%H:%M:%SZ}", since)
        writes += [("until", subscription, None), ("until", since_field(subscription), None)]
        writes.append(("until", resumed_field(subscription), _json(kept.at)))
    for feed, health in kept.health.get(subscription, {}).items():
        if (fresh := renewed(health)) != health:
            writes.append(("health", health_field(subscription, feed), fresh))
    return writes, before


def _coming(
    kept: Subscriptions, added: Mapping[str, bytes], now: datetime, before: Subscriptions, *, member: str
) -> list[Write]:
    fresh = {name: Registered("file", msgspec.Raw(text), now, kept.at, member) for name, text in added.items()}
    writes = [_registered(name, _as_old_as(before.registered.get(name), one)) for name, one in fresh.items()]
    paused = {name: before.paused[name] for name in added if name in before.registered and name in before.paused}
    writes += [("paused", name, _json(pause)) for name, pause in paused.items() if pause.by != "removed"]
    return writes + [write for name in added for write in _credential(kept, name, None)]  # of one that was lost


def _as_old_as(before: Registered | None, one: Registered) -> Registered:
    return msgspec.structs.replace(one, since=before.since, asked=before.asked) if before else one


def _changed(one: Registered, settings: bytes, at: int) -> Registered:
    asked = one.asked if _feeds(one.settings) == _feeds(settings) else at
    return msgspec.structs.replace(one, settings=msgspec.Raw(settings), asked=asked)


def _feeds(settings: bytes) -> object:
    return msgspec.json.decode(settings, type=_Feeds).feeds


def _credential(kept: Subscriptions, name: str, credential: bytes | None) -> list[Write]:
    return [] if credential == kept.credentials.get(name) else [("credentials", name, credential)]


def _registered(name: str, one: Registered) -> Write:
    return "registry", name, _json(one)


def _twice(name: str, one: Registered) -> str:
    return (
        f'subscription "{name}" is in the configuration file, and one of that id was added at run time '
        f"({one.since:%Y-%m-%d %H:%M} UTC): give the one in the file another id, or end the other with "
        f"`poller subscriptions remove {name}`"
    )
