"""How a subscription is doing over its attempts, and when that is too long.

The attempts at each feed are counted for themselves, for each feed is delivered by one process at a time, which writes
down what it knows; the next one goes on from there. What a subscription does is the sum of it.

The law: a subscription is to rest when ``disable_after`` has gone by with failures and no success in it. What is
counted is the time between failed attempts that follow each other (:mod:`poller.delivery.standing`), from the first one
after the last success; where that success was another process', from the success. A success at any
feed is the sink's: it ends the failing of all. Time in which nothing was sent, for what signs or proves it could not be
had, is none of it: that is our own fault, is told as failing, and the sink's is counted anew from what comes after it.

Pure: states in, states out. Attempts may end in another order than they began, so moments need not rise.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

DISORDER: Final = timedelta(minutes=1)
"""By so much attempts may end in another order than they began; a success later than that was told by a wrong clock."""


class Health(msgspec.Struct, frozen=True):
    """The state of a subscription, or of its attempts at one feed; a new one is ``Health()``.

    Attributes:
        failing_since: the first failure after the last success, UTC; None where there is none, or none since it was
            resumed.
        delivered: attempts that succeeded, in all.
        failed: attempts that did not, in all.
        delivered_at: the last success, UTC.
        unwell: whether it was disabled and nothing has succeeded since; outlives being resumed. Kept for the
            subscription, not for a feed.
        error: how the last failure came about, in words; None where nothing fails.
        unsent: whether it is our own: nothing was sent.
        failing_seconds: how long it has failed, as far as that is counted.
        failed_at: the last failure, UTC; None where there is none, or another version has written this.
    """

    failing_since: datetime | None = None
    delivered: int = 0
    failed: int = 0
    delivered_at: datetime | None = None
    unwell: bool = False
    error: str | None = None
    unsent: bool = False
    failing_seconds: float = 0.0
    failed_at: datetime | None = None


def after_success(health: Health, at: datetime) -> Health:
    """The next state. ``at``: when the attempt ended, UTC."""
    known = health.delivered_at
    latest = at if known is None or known > at + DISORDER else max(at, known)
    return Health(delivered=health.delivered + 1, failed=health.failed, delivered_at=latest)


def after_failure(health: Health, at: datetime, error: str | None = None, *, seconds: float = 0.0) -> Health:
    """The next state.

    Args:
        health: the one before.
        at: when the attempt ended, UTC.
        error: how, in words.
        seconds: how long it has failed now, as far as that is counted.
    """
    since = at if health.failing_since is None or health.unsent else health.failing_since
    return msgspec.structs.replace(
        health,
        failing_since=since,
        failed=health.failed + 1,
        error=error,
        unsent=False,
        failing_seconds=seconds,
        failed_at=at,
    )


def after_nothing_sent(health: Health, at: datetime, error: str) -> Health:
    """The next state where an attempt came to nothing by our own fault; no attempt at the sink is counted."""
    since = at if health.failing_since is None else health.failing_since
    return msgspec.structs.replace(
        health, failing_since=since, error=error, unsent=True, failing_seconds=0.0, failed_at=None
    )


def after_success_elsewhere(health: Health, at: datetime | None) -> Health:
    """The next state where another process has delivered something then; None: it has not."""
    if at is None or health.failing_since is None or health.failing_since >= at:
        return health
    return msgspec.structs.replace(health, failing_since=at)


def whole(healths: Iterable[Health]) -> Health:
    """What the states of the feeds come to."""
    found = tuple(healths)
    delivered_at = max((one.delivered_at for one in found if one.delivered_at), default=None)
    since = min((one.failing_since for one in found if one.failing_since), default=None)
    return Health(
        failing_since=max(since, delivered_at) if since and delivered_at else since,
        delivered=sum(one.delivered for one in found),
        failed=sum(one.failed for one in found),
        delivered_at=delivered_at,
        unwell=any(one.unwell for one in found),
        error=next((one.error for one in found if one.failing_since and one.error), None),
    )


def after_no_start(health: Health, at: datetime, error: str) -> Health:
    """The next state of a subscription that cannot even begin, for its settings cannot be used here.

    Args:
        health: what is kept of the whole subscription.
        at: when that was found, UTC.
        error: why, in words.
    """
    since = health.failing_since if health.unsent and health.failing_since else at
    return msgspec.structs.replace(health, failing_since=since, error=error, unsent=True)


def after_start(health: Health) -> Health:
    """The next state of a subscription that could begin."""
    return msgspec.structs.replace(health, failing_since=None, error=None, unsent=False) if health.unsent else health


def of_subscription(subscription: Health, feeds: Iterable[Health]) -> Health:
    """What the states of the feeds come to, with what keeps the whole subscription from beginning.

    Where one process delivers, it does not count that another one cannot.
    """
    found = whole((subscription if not subscription.unsent else after_start(subscription), *feeds))
    since = subscription.failing_since
    if not subscription.unsent or since is None or (found.delivered_at and found.delivered_at > since):
        return found
    return msgspec.structs.replace(found, failing_since=since, error=subscription.error)


def resumed(health: Health) -> Health:
    """The state after an operator has resumed it: it is tried again, for another ``disable_after``."""
    return msgspec.structs.replace(health, failing_since=None, failing_seconds=0.0, failed_at=None)


def health_of(kept: bytes | None) -> Health:
    """As it is kept; what cannot be read is another version's, and counts as new."""
    try:
        return msgspec.json.decode(kept, type=Health) if kept else Health()
    except msgspec.DecodeError:
        return Health()
