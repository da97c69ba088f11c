"""How a subscription stands in this process, feed by feed, and what of it is not written down yet.

Written down is what others have to know: when the failing begins and when it ends at once, successes now and then, so
that no other process takes a sink for dead that takes events here.

How long it fails is the time between failed attempts that follow each other, whichever feed they are for. Between two
of this process it is what has passed by the monotonic clock. What lies between the last one of another process and the
first one here only the store's clock can tell, which may have been set meanwhile: it counts for a fifth of
``disable_after`` at most. No gap counts for more than the longest wait between two attempts: in what is longer nothing
was tried.

Law: of a feed that is delivered elsewhere nothing is written. Pure: the clocks are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from poller.delivery.health import (
    DISORDER,
    Health,
    after_failure,
    after_nothing_sent,
    after_success,
    after_success_elsewhere,
    resumed,
    whole,
)

NOTE_AFTER: Final = timedelta(minutes=1)
_PART: Final = 10
_PART_OF_A_GAP: Final = 5
_LONGEST: Final = timedelta(hours=24)


class Standing:
    """The feeds that are delivered here. A success costs the same however many there are."""

    def __init__(self, disable_after: timedelta, *, longest: timedelta = _LONGEST) -> None:
        """Nothing is delivered here yet.

        Args:
            disable_after: of the subscription; a tenth of it at most passes before a success is to be noted.
            longest: between two attempts that follow each other.
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
        """It is delivered here from now on; as it was noted last."""
        self._healths[feed] = self._noted[feed] = health
        if health.failing_since is not None:
            self._failing.add(feed)
            self._failing_seconds = max(self._failing_seconds, health.failing_seconds)

    def left(self, feed: str) -> None:
        """It is delivered elsewhere from now on."""
        for known in (self._healths, self._noted):
            known.pop(feed, None)
        self._failing.discard(feed)
        self._unnoted.discard(feed)
        if not self._failing:
            self._begin_anew()

    def succeeded(self, feed: str, at: datetime) -> None:
        """An attempt was taken."""
        self._healths[feed] = health = after_success(self._healths.get(feed, Health()), at)
        noted = self._noted.get(feed, Health())
        if noted.delivered_at is None or abs(at - noted.delivered_at) >= self._note_after:
            self._unnoted.add(feed)
        if self._failing:
            self._well_again(health)

    def failed(self, feed: str, at: datetime, error: str | None = None, *, clock: float | None = None) -> None:
        """An attempt was not.

        Args:
            feed: whose.
            at: when it ended, by the store's clock, UTC.
            error: in words, which are noted when they are others.
            clock: when it ended, in seconds that only go forward; by default as ``at`` has it.
        """
        self._sent_again(feed)
        clock = at.timestamp() if clock is None else clock
        self._failing_seconds += self._since_the_last(at, clock)
        self._failed = clock
        health = self._healths.get(feed, Health())
        self._fails(feed, after_failure(health, at, error, seconds=self._failing_seconds))

    def unsent(self, feed: str, at: datetime, error: str) -> None:
        """An attempt came to nothing by our own fault, which is that of all that fails here; ``error``: in words."""
        self._begin_anew()
        for one in {feed, *self._failing}:
            self._fails(one, after_nothing_sent(self._healths.get(one, Health()), at, error))

    def heard(self, others: Mapping[str, Health]) -> None:
        """What is noted of all feeds; of those that are delivered here more is known."""
        at = whole(one for name, one in others.items() if name not in self._healths).delivered_at
        last = max(filter(None, (self._healths[feed].failed_at for feed in self._failing)), default=None)
        if at is None or last is None or at > last + DISORDER:
            return
        for feed in self._failing:
            self._healths[feed] = after_success_elsewhere(self._healths[feed], at)
        self._failing_seconds = min(self._failing_seconds, max((last - at).total_seconds(), 0.0))

    @property
    def failing_for(self) -> timedelta | None:
        """How long nothing but failures came; None where nothing fails."""
        return timedelta(seconds=self._failing_seconds) if self._failing else None

    @property
    def failing_since(self) -> datetime | None:
        """The first failure here after the last success; None where there is none."""
        return min(filter(None, (self._healths[feed].failing_since for feed in self._failing)), default=None)

    @property
    def error(self) -> str | None:
        """How it fails here, in words; None where it does not."""
        texts = (self._healths[feed].error or "" for feed in sorted(self._failing))
        return next(texts, None)

    @property
    def unnoted(self) -> Iterable[tuple[str, Health]]:
        """What is to be written down."""
        return [(feed, self._healths[feed]) for feed in sorted(self._unnoted)]

    def noted(self, feed: str, health: Health) -> None:
        """This was written down."""
        self._noted[feed] = health
        if self._healths.get(feed) == health:
            self._unnoted.discard(feed)

    def counts(self, feed: str) -> Health | None:
        """The state of a feed where it is another one than was noted."""
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
        """The sink is reached again: of the other feeds it is not known to refuse anything."""
        for other in [one for one in self._failing if one != feed and self._healths[one].unsent]:
            self._healths[other] = msgspec.structs.replace(resumed(self._healths[other]), unsent=False)
            self._failing.discard(other)
            self._unnoted.add(other)

    def _since_the_last(self, at: datetime, clock: float) -> float:
        """The seconds that count between the last failed attempt, of any process, and one that ended now."""
        if self._failed is not None:
            return min(max(clock - self._failed, 0.0), self._longest)
        known = [one for one in map(self._healths.__getitem__, self._failing) if not one.unsent]
        moments = [moment for one in known if (moment := one.failed_at or one.failing_since) is not None]
        return min(max((at - max(moments)).total_seconds(), 0.0), self._longest_untold) if moments else 0.0

    def _begin_anew(self) -> None:
        """What is counted begins with the next failed attempt."""
        self._failing_seconds, self._failed = 0.0, None

    def _well_again(self, health: Health) -> None:
        self._begin_anew()
        for other in self._failing:
            if self._healths[other].failing_since is not None and self._healths[other] is not health:
                self._healths[other] = msgspec.structs.replace(resumed(self._healths[other]), unsent=False)
        self._unnoted |= self._failing
        self._failing.clear()
