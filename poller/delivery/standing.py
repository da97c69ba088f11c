"""How a subscription stands in this process, feed by feed, and what of it is not written down yet.

Written down is what others have to know: when the failing begins and when it ends at once, successes now and then, so
that no other process takes a sink for dead that takes events here.

Law: of a feed that is delivered elsewhere nothing is written. Pure: the clock is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from poller.delivery.health import (
    Health,
    after_failure,
    after_nothing_sent,
    after_success,
    after_success_elsewhere,
    whole,
)

NOTE_AFTER: Final = timedelta(minutes=1)
_PART: Final = 10


class Standing:
    """The feeds that are delivered here. A success costs the same however many there are."""

    def __init__(self, disable_after: timedelta) -> None:
        """``disable_after``: of the subscription; a tenth of it at most passes before a success is to be noted."""
        self._note_after = min(NOTE_AFTER, disable_after / _PART)
        self._healths: dict[str, Health] = {}
        self._noted: dict[str, Health] = {}
        self._failing: set[str] = set()
        self._unnoted: set[str] = set()

    def took(self, feed: str, health: Health) -> None:
        """It is delivered here from now on; as it was noted last."""
        self._healths[feed] = self._noted[feed] = health
        if health.failing_since is not None:
            self._failing.add(feed)

    def left(self, feed: str) -> None:
        """It is delivered elsewhere from now on."""
        for known in (self._healths, self._noted):
            known.pop(feed, None)
        self._failing.discard(feed)
        self._unnoted.discard(feed)

    def succeeded(self, feed: str, at: datetime) -> None:
        """An attempt was taken."""
        self._healths[feed] = health = after_success(self._healths.get(feed, Health()), at)
        noted = self._noted.get(feed, Health())
        if noted.delivered_at is None or at - noted.delivered_at >= self._note_after:
            self._unnoted.add(feed)
        if self._failing:
            self._well_again(health)

    def failed(self, feed: str, at: datetime, error: str | None = None) -> None:
        """An attempt was not; ``error``: in words, which are noted when they are others."""
        self._sent_again(feed)
        self._fails(feed, after_failure(self._healths.get(feed, Health()), at, error))

    def unsent(self, feed: str, at: datetime, error: str) -> None:
        """An attempt came to nothing by our own fault, which is that of all that fails here; ``error``: in words."""
        for one in {feed, *self._failing}:
            self._fails(one, after_nothing_sent(self._healths.get(one, Health()), at, error))

    def heard(self, others: Mapping[str, Health]) -> None:
        """What is noted of all feeds; of those that are delivered here more is known."""
        at = whole(one for name, one in others.items() if name not in self._healths).delivered_at
        for feed in self._failing:
            self._healths[feed] = after_success_elsewhere(self._healths[feed], at)

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
        if feed not in self._failing or (health.error, health.unsent) != (noted.error, noted.unsent):
            self._failing.add(feed)
            self._unnoted.add(feed)

    def _sent_again(self, feed: str) -> None:
        """The sink is reached again: of the other feeds it is not known to refuse anything."""
        for other in [one for one in self._failing if one != feed and self._healths[one].unsent]:
            self._healths[other] = msgspec.structs.replace(self._healths[other], failing_since=None, unsent=False)
            self._failing.discard(other)
            self._unnoted.add(other)

    def _well_again(self, health: Health) -> None:
        for other in self._failing:
            if self._healths[other].failing_since is not None and self._healths[other] is not health:
                self._healths[other] = msgspec.structs.replace(self._healths[other], failing_since=None, unsent=False)
        self._unnoted |= self._failing
        self._failing.clear()
