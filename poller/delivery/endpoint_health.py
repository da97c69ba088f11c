"""Health of an endpoint: how long it has failed, by feed, and what to store.

Each feed is delivered by one process at a time, which counts its attempts and stores the counts; the next owner
continues with them. The state of a subscription is the sum over its feeds. The beginning and the end of failing are
stored immediately, successes from time to time, so that no other process considers a sink dead that accepts events
here.

**Invariants**

* A subscription is paused when it has failed for ``disable_after`` without a success. The time between consecutive
  failed attempts of all feeds counts, from the first one after the last success. A success at any feed resets it for
  all.
* Between two attempts of this process the monotonic clock counts. Between the last attempt of another process and the
  first one here only the store's clock is available, which may have been set: that time counts for a fifth of
  ``disable_after`` at most. No gap counts for more than the longest wait between two attempts.
* Time without attempts, because a credential was missing, does not count.
* Nothing is stored for a feed that is delivered elsewhere.
* Pure: clocks are arguments. Attempts may end in another order than they began, so moments need not increase.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

NOTE_AFTER: Final = timedelta(minutes=1)
_PART: Final = 10
_PART_OF_A_GAP: Final = 5
_LONGEST: Final = timedelta(hours=24)


class EndpointHealth:
    """The health of the feeds delivered here. A success takes constant time."""

    def __init__(self, disable_after: timedelta, *, longest: timedelta = _LONGEST) -> None:
        """Begin without feeds.

        Args:
            disable_after: of the subscription; a success is stored after a tenth of it at most.
            longest: the longest wait between two attempts.
        """
        self._note_after = min(NOTE_AFTER, disable_after / _PART)
        self._longest = longest.total_seconds()
        self._longest_untold = min(longest, disable_after / _PART_OF_A_GAP).total_seconds()
        self._failing_seconds = 0.0
        self._failed: float | None = None  # when the last attempt failed here, by the monotonic clock
        self._healths: dict[str, Health] = {}
        self._noted: dict[str, Health] = {}
        self._failing: set[str] = set()
        self._unnoted: set[str] = set()

    def took(self, feed: str, health: Health) -> None:
        """Add a feed that is delivered here, with its stored health."""
        self._healths[feed] = self._noted[feed] = health
        if health.failing_since is not None:
            self._failing.add(feed)
            self._failing_seconds = max(self._failing_seconds, health.failing_seconds)

    def left(self, feed: str) -> None:
        """Remove a feed that is delivered elsewhere now."""
        for known in (self._healths, self._noted):
            known.pop(feed, None)
        self._failing.discard(feed)
        self._unnoted.discard(feed)
        if not self._failing:
            self._begin_anew()

    def succeeded(self, feed: str, at: datetime) -> None:
        """Record a successful attempt."""
        self._healths[feed] = health = after_success(self._healths.get(feed, Health()), at)
        noted = self._noted.get(feed, Health())
        if noted.delivered_at is None or abs(at - noted.delivered_at) >= self._note_after:
            self._unnoted.add(feed)
        if self._failing:
            self._well_again(health)

    def failed(self, feed: str, at: datetime, error: str | None = None, *, clock: float | None = None) -> None:
        """Record a failed attempt.

        Args:
            feed: of the event.
            at: the end of the attempt by the store's clock, UTC.
            error: in words; stored when it changes.
            clock: the end of the attempt by the monotonic clock; default: as ``at``.
        """
        self._sent_again(feed)
        clock = at.timestamp() if clock is None else clock
        self._failing_seconds += self._since_the_last(at, clock)
        self._failed = clock
        health = self._healths.get(feed, Health())
        self._fails(feed, after_failure(health, at, error, seconds=self._failing_seconds))

    def resume(self) -> None:
        """Forget the failures, as the operator's command does in the store."""
        self._begin_anew()
        for feed in self._failing:
            self._healths[feed] = resumed(self._healths[feed])
        self._failing.clear()

    def unsent(self, feed: str, at: datetime, error: str) -> None:
        """Record an attempt that was not sent, for a reason on this side, which ``error`` describes."""
        self._begin_anew()
        for one in {feed, *self._failing}:
            self._fails(one, after_nothing_sent(self._healths.get(one, Health()), at, error))

    def heard(self, others: Mapping[str, Health]) -> None:
        """Adopt the stored health of the feeds that are delivered elsewhere."""
        at = whole(one for name, one in others.items() if name not in self._healths).delivered_at
        last = max(filter(None, (self._healths[feed].failed_at for feed in self._failing)), default=None)
        if at is None or last is None or at > last + DISORDER:
            return
        for feed in self._failing:
            self._healths[feed] = after_success_elsewhere(self._healths[feed], at)
        self._failing_seconds = min(self._failing_seconds, max((last - at).total_seconds(), 0.0))

    @property
    def failing_for(self) -> timedelta | None:
        """How long all attempts have failed; None: they do not fail."""
        return timedelta(seconds=self._failing_seconds) if self._failing else None

    @property
    def failing_since(self) -> datetime | None:
        """The first failure here after the last success; None: no failure."""
        return min(filter(None, (self._healths[feed].failing_since for feed in self._failing)), default=None)

    @property
    def error(self) -> str | None:
        """The error here, in words; None: no failure."""
        texts = (self._healths[feed].error or "" for feed in sorted(self._failing))
        return next(texts, None)

    @property
    def unnoted(self) -> Iterable[tuple[str, Health]]:
        """The health to be stored."""
        return [(feed, self._healths[feed]) for feed in sorted(self._unnoted)] if self._unnoted else ()

    def noted(self, feed: str, health: Health) -> None:
        """Record that this health was stored."""
        self._noted[feed] = health
        known = self._healths.get(feed)
        if known is None or known == health or self._only_counts_more(known, health):
            self._unnoted.discard(feed)

    def _only_counts_more(self, known: Health, noted: Health) -> bool:
        """Whether the endpoint is as well as was stored, and has taken more since."""
        if known.delivered_at is None or noted.delivered_at is None or known.failing_since or noted.failing_since:
            return False
        same = (known.error, known.unsent) == (noted.error, noted.unsent)
        return same and abs(known.delivered_at - noted.delivered_at) < self._note_after

    def counts(self, feed: str) -> Health | None:
        """The health of a feed if it differs from the stored one."""
        health = self._healths.get(feed)
        return None if health == self._noted.get(feed) else health

    def _fails(self, feed: str, health: Health) -> None:
        noted = self._noted.get(feed, Health())
        self._healths[feed] = health
        longer = health.failing_seconds - noted.failing_seconds >= self._note_after.total_seconds() > 0
        if feed not in self._failing or longer or (health.error, health.unsent) != (noted.error, noted.unsent):
            self._failing.add(feed)
            self._unnoted.add(feed)

    def _sent_again(self, feed: str) -> None:
        """Record that requests reach the sink again; a missing credential does not count for other feeds any more."""
        for other in [one for one in self._failing if one != feed and self._healths[one].unsent]:
            self._healths[other] = msgspec.structs.replace(resumed(self._healths[other]), unsent=False)
            self._failing.discard(other)
            self._unnoted.add(other)

    def _since_the_last(self, at: datetime, clock: float) -> float:
        """The seconds that count between the last failed attempt of any process and one that ends now."""
        if self._failed is not None:
            return min(max(clock - self._failed, 0.0), self._longest)
        known = [one for one in map(self._healths.__getitem__, self._failing) if not one.unsent]
        moments = [moment for one in known if (moment := one.failed_at or one.failing_since) is not None]
        return min(max((at - max(moments)).total_seconds(), 0.0), self._longest_untold) if moments else 0.0

    def _begin_anew(self) -> None:
        """Restart the count with the next failed attempt."""
        self._failing_seconds, self._failed = 0.0, None

    def _well_again(self, health: Health) -> None:
        self._begin_anew()
        for other in self._failing:
            if self._healths[other].failing_since is not None and self._healths[other] is not health:
                self._healths[other] = msgspec.structs.replace(resumed(self._healths[other]), unsent=False)
        self._unnoted |= self._failing
        self._failing.clear()


DISORDER: Final = timedelta(minutes=1)
"""Tolerance for attempts that end in another order than they began.

A success later than that was dated by a wrong clock.
"""


class Health(msgspec.Struct, frozen=True):
    """Health of a subscription, or of its attempts at one feed; new: ``Health()``.

    Attributes:
        failing_since: the first failure after the last success or resumption, UTC; None: no failure.
        delivered: the total number of successful attempts.
        failed: the total number of failed attempts.
        delivered_at: the last success, UTC.
        unwell: whether it was disabled and nothing has succeeded since, even after a resumption. Stored for the
                subscription, not for a feed.
            error: the last failure, in words; None: no failure.
            unsent: whether the failure is on this side: nothing was sent.
            failing_seconds: the counted time of failing.
            failed_at: the last failure, UTC; None: none, or stored by another version.
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
    """The health after a success. ``at``: the end of the attempt, UTC."""
    known = health.delivered_at
    latest = at if known is None or known > at + DISORDER else max(at, known)
    return Health(delivered=health.delivered + 1, failed=health.failed, delivered_at=latest)


def after_failure(health: Health, at: datetime, error: str | None = None, *, seconds: float = 0.0) -> Health:
    """The health after a failure.

    Args:
        health: before.
        at: the end of the attempt, UTC.
        error: in words.
        seconds: the counted time of failing.
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
    """The health after an attempt that was not sent; it does not count against the sink."""
    since = at if health.failing_since is None else health.failing_since
    return msgspec.structs.replace(
        health, failing_since=since, error=error, unsent=True, failing_seconds=0.0, failed_at=None
    )


def after_success_elsewhere(health: Health, at: datetime | None) -> Health:
    """The health after another process has delivered an event; None: it has not."""
    if at is None or health.failing_since is None or health.failing_since >= at:
        return health
    return msgspec.structs.replace(health, failing_since=at)


def whole(healths: Iterable[Health]) -> Health:
    """The sum of the health of all feeds."""
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
    """The health of a subscription that cannot start because its settings are unusable here.

    Args:
        health: the stored health of the subscription.
        at: the present moment, UTC.
        error: the reason, in words.
    """
    since = health.failing_since if health.unsent and health.failing_since else at
    return msgspec.structs.replace(health, failing_since=since, error=error, unsent=True)


def after_start(health: Health) -> Health:
    """The health of a subscription that has started."""
    return msgspec.structs.replace(health, failing_since=None, error=None, unsent=False) if health.unsent else health


def of_subscription(subscription: Health, feeds: Iterable[Health]) -> Health:
    """The health of a subscription: the sum of its feeds, and a reason that prevents its start.

    If one process delivers, the failed start of another one does not count.
    """
    found = whole((subscription if not subscription.unsent else after_start(subscription), *feeds))
    since = subscription.failing_since
    if not subscription.unsent or since is None or (found.delivered_at and found.delivered_at > since):
        return found
    return msgspec.structs.replace(found, failing_since=since, error=subscription.error)


def resumed(health: Health) -> Health:
    """The health after a resumption: failing counts from the start, for another ``disable_after``."""
    return msgspec.structs.replace(health, failing_since=None, failing_seconds=0.0, failed_at=None)


def health_of(kept: bytes | None) -> Health:
    """The stored health; an unreadable one is another version's, and counts as new."""
    try:
        return msgspec.json.decode(kept, type=Health) if kept else Health()
    except ValueError:  # also of bytes that are no UTF-8
        return Health()
