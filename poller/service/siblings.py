"""The feeds of one source that this process has, and what they mean for one another.

A feed that lists by qualification learns from the others which there are, so it begins when those of them that are
here have had their first round; for what another process polls nobody waits. And of the source's rate and concurrency
a process uses the part that its feeds are of all.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from typing import Final

from poller.source.feed import Feed, Mode
from poller.source.result import RoundResult

_FRUITLESS: Final = 12  # rounds that found nobody; each has twice the wait of the one before

Share = Callable[[Fraction], None]
"""Uses this part of a source's rate and concurrency; see :meth:`poller.source.client.ApiClient.share`."""


class Siblings:
    """The feeds of one source. Used within one event loop."""

    def __init__(self, count: int, share: Share) -> None:
        """``count``: how many feeds the source has, wherever they are polled."""
        self._count = count
        self._share = share
        self._here: dict[str, Feed] = {}
        self._waited_for: set[str] = set()
        self._fruitless: dict[str, int] = {}

    def came(self, feed: Feed) -> None:
        """It is polled here from now on."""
        self._here[feed.id] = feed
        self._fruitless[feed.id] = 0
        if not feed.discover:
            self._waited_for.add(feed.id)
        self._shared()

    def went(self, feed: Feed) -> tuple[str, ...]:
        """It is not polled here any more; the feeds that need not wait any longer."""
        self._here.pop(feed.id, None)
        self._shared()
        return self._no_more(feed)

    def begins_at_once(self, feed: Feed) -> bool:
        """Whether its first round need not wait for others."""
        return not (feed.discover and self._waited_for)

    def polled(self, feed: Feed) -> tuple[str, ...]:
        """It has had a round; the feeds that need not wait any longer."""
        return self._no_more(feed)

    def again(self, feed: Feed, result: RoundResult) -> timedelta | None:
        """After how long a round is worth repeating that found no qualification: others may be naming the first ones.

        None: it found some, or nobody has named any for long.
        """
        found = not (feed.discover and result.ok and result.mode is Mode.BASELINE and not result.pages)
        turns = self._fruitless.get(feed.id, 0)
        if found or turns >= _FRUITLESS:
            return None
        self._fruitless[feed.id] = turns + 1
        return timedelta(seconds=2**turns)

    def _no_more(self, feed: Feed) -> tuple[str, ...]:
        if feed.id not in self._waited_for:
            return ()
        self._waited_for.discard(feed.id)
        return () if self._waited_for else tuple(name for name, one in self._here.items() if one.discover)

    def _shared(self) -> None:
        if self._here:
            self._share(Fraction(len(self._here), max(self._count, len(self._here))))
