"""How each subscription does: whether it delivers, and if not why, and what waits. Reads only.

Law: one that the file holds and no daemon has seen yet is told too. Of the sink its place is shown, never what may be
a credential.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal

import msgspec
from redis.asyncio import Redis

from poller.config.settings import Settings
from poller.config.urls import host_only
from poller.delivery.handshake import Granted, HandshakeState, stored_state, ungranted
from poller.delivery.health import Health, health_of, of_subscription
from poller.service.subscribing import filed, registry_of
from poller.store.backlogs import Backlog, backlogs
from poller.store.registrations import WHOLE, Origin, Pauser, Subscriptions

Doing = Literal["new", "active", "failing", "paused"]


class SubscriptionStatus(msgspec.Struct, frozen=True):
    """One line of ``poller subscriptions list --json``, and of ``poller status --json`` after the feeds; key for key.

    Attributes:
        subscription: its id.
        origin: ``file``: the configuration's; ``run``: added at run time.
        sink: where its events go, without the path.
        state: ``new``, of the file and seen by no daemon yet; ``active``; ``failing``, nothing has succeeded since, or
            its sink has not granted events; ``paused``.
        paused_by: ``operator``, ``sink``, ``failures`` or ``removed`` (from the file); None where it is not paused.
        reason: why it is paused, in words.
        since: since when it is paused or failing, RFC 3339.
        until: until when its sink wants nothing, RFC 3339; None where that is not so.
        handshake: whether its sink has granted events, in a word: ``granted``, ``refused``, ``revoked``,
            ``awaiting callback`` or ``unanswered``; None where it is not to be asked, or was not yet.
        delivered: attempts that succeeded, in all, as of when whoever delivers last noted it.
        failed: attempts that did not, likewise.
        lag_entries: how many its groups have not delivered, over its feeds; None where that is known of none.
        lag_seconds: age of the oldest event that is not delivered; None likewise.
        parked: how many wait for their next attempt.
        dead_letters: how many were given up.
        lost: how many went before they were delivered, ever, for a stream outgrew ``retention.max_bytes``.
        error: how the last attempt failed, or why events are not granted and what to do, in words, where it is failing;
            None elsewhere.
        all_feeds: whether it gets all feeds that there are.
        feeds: what waits at each feed that it gets.
    """

    subscription: str
    origin: Origin
    sink: str
    state: Doing
    paused_by: Pauser | None
    reason: str | None
    since: str | None
    until: str | None
    handshake: str | None
    delivered: int
    failed: int
    lag_entries: int | None
    lag_seconds: float | None
    parked: int
    dead_letters: int
    lost: int
    all_feeds: bool
    feeds: tuple[Backlog, ...]
    error: str | None = None


class _Outline(msgspec.Struct, frozen=True):
    """What is shown of kept settings, whichever version wrote them."""

    sink: str = "?"
    feeds: tuple[str, ...] | None = None
    handshake: bool = msgspec.field(default=False, name="validate")


def status_of_new(name: str, sink: str, *, all_feeds: bool) -> SubscriptionStatus:
    """The status of one that was added at run time just now, as it is known without asking for it.

    Args:
        name: its id.
        sink: where its events go.
        all_feeds: whether it gets all feeds that there are.
    """
    return SubscriptionStatus(
        subscription=name,
        origin="run",
        sink=host_only(sink),
        state="active",
        paused_by=None,
        reason=None,
        since=None,
        until=None,
        handshake=None,
        delivered=0,
        failed=0,
        lag_entries=None,
        lag_seconds=None,
        parked=0,
        dead_letters=0,
        lost=0,
        all_feeds=all_feeds,
        feeds=(),
    )


async def subscription_statuses(
    client: Redis, settings: Settings, *, now: datetime, only: Collection[str] | None = None
) -> list[SubscriptionStatus]:
    """The status of every subscription, by id.

    Args:
        client: of the store.
        settings: the configuration.
        now: UTC.
        only: the ids of these alone.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    kept = await registry_of(settings, client).all()
    texts = dict(filed(settings)) | {name: bytes(one.settings) for name, one in kept.registered.items()}
    outlines = {name: _outline(text) for name, text in sorted(texts.items()) if only is None or name in only}
    pairs = [(name, feed) for name, one in outlines.items() for feed in one.feeds or settings.feed_ids]
    found = await backlogs(client, settings.redis.prefix, pairs, now=now)
    own: defaultdict[str, list[Backlog]] = defaultdict(list)
    for (name, _), backlog in found.items():
        own[name].append(backlog)
    return [_subscription_status(name, one, kept, tuple(own[name]), now) for name, one in outlines.items()]


def _subscription_status(
    name: str, outline: _Outline, kept: Subscriptions, feeds: tuple[Backlog, ...], now: datetime
) -> SubscriptionStatus:
    registered, pause, until = kept.registered.get(name), kept.paused.get(name), kept.until.get(name)
    health = health_in(kept, name)
    permission = stored_state(kept.handshakes.get(name)) if outline.handshake else None
    refusal = ungranted(permission)
    failing_since = health.failing_since if refusal is None else _since(permission)
    since = pause.at if pause else failing_since
    failing = refusal is not None or health.failing_since is not None
    return SubscriptionStatus(
        subscription=name,
        origin=registered.origin if registered else "file",
        sink=host_only(outline.sink),
        state="new" if not registered else "paused" if pause else "failing" if failing else "active",
        paused_by=pause.by if pause else None,
        reason=pause.reason if pause else None,
        since=_utc_text(since) if since else None,
        until=_utc_text(until) if until and until > now else None,
        handshake=_permission_text(permission),
        delivered=health.delivered,
        failed=health.failed,
        lag_entries=_sum([one.entries for one in feeds]),
        lag_seconds=max((one.seconds for one in feeds if one.seconds is not None), default=None),
        parked=sum(one.parked for one in feeds),
        dead_letters=sum(one.dead_letters for one in feeds),
        lost=sum(one.lost for one in feeds),
        all_feeds=outline.feeds is None,
        feeds=feeds,
        error=refusal or (health.error if health.failing_since else None),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _outline(text: bytes) -> _Outline:
    try:
        return msgspec.json.decode(text, type=_Outline)
    except msgspec.DecodeError:
        return _Outline()


def health_in(kept: Subscriptions, name: str) -> Health:
    """How a subscription does, over all of its feeds."""
    feeds = dict(kept.health.get(name, {}))
    subscription = health_of(feeds.pop(WHOLE, None))
    return of_subscription(subscription, map(health_of, feeds.values()))


def is_ungranted(kept: Subscriptions, name: str) -> bool | None:
    """Whether its sink has not granted events; None where it is not to be asked."""
    outline = _outline(bytes(kept.registered[name].settings))
    return ungranted(stored_state(kept.handshakes.get(name))) is not None if outline.handshake else None


def _permission_text(permission: HandshakeState | None) -> str | None:
    return None if permission is None else str(msgspec.to_builtins(permission)["state"])


def _since(permission: HandshakeState | None) -> datetime | None:
    return None if permission is None or isinstance(permission, Granted) else permission.since


def _utc_text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
