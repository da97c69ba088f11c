"""Rounds of feeds, counted by those that this process ran.

Law: a feed that is not polled here any more has no series here. There may be thousands of feeds, so each is a few
numbers and not a few objects of the library; they become series when somebody asks.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator, Mapping
from typing import Final

from poller.telemetry.catalogue import declared, histogram, labelled

KINDS: Final = ("created", "modified", "removed", "unchanged", "quarantined")
"""What becomes of a record."""

_ROUNDS: Final = declared(
    "poller_rounds_total",
    "counter",
    "Rounds that this process ended, by their mode; the result is ok, failed or skipped.",
    "feed",
    "mode",
    "result",
)
_PAGES: Final = declared("poller_pages_total", "counter", "Pages that rounds have read and committed.", "feed")
_RECORDS: Final = declared(
    "poller_records_total",
    "counter",
    f"What became of the records that rounds have met: {', '.join(KINDS[:-1])} or {KINDS[-1]}.",
    "feed",
    "kind",
)
_ROUND_SECONDS: Final = histogram(
    "poller_round_duration_seconds",
    "How long rounds took, in seconds, without those that were skipped.",
    "source",
    "mode",
    bounds=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)


class _Tally:
    """Of one feed."""

    __slots__ = ("kinds", "pages", "rounds")

    def __init__(self) -> None:
        self.rounds: Counts[tuple[str, str]] = Counts()
        self.pages = 0
        self.kinds = [0] * len(KINDS)


class Rounds:
    """The rounds of one process. Told of by its loop, written by any thread."""

    def __init__(self) -> None:
        self._feeds: dict[str, _Tally] = {}

    def ended(self, feed: str, *, mode: str, result: str, seconds: float, pages: int, kinds: Mapping[str, int]) -> None:
        """One has ended.

        Args:
            feed: ``SOURCE/NAME``.
            mode: of the round.
            result: ``ok``, ``failed`` or ``skipped``.
            seconds: how long it took.
            pages: how many it has read.
            kinds: how many records of each of :data:`KINDS` it has met.
        """
        tally = self._feeds.get(feed)
        if tally is None:
            tally = self._feeds[feed] = _Tally()
        tally.rounds[mode, result] += 1
        tally.pages += pages
        for place, kind in enumerate(KINDS):
            tally.kinds[place] += kinds[kind]
        if result != "skipped":
            _ROUND_SECONDS.labels(feed.partition("/")[0], mode).observe(seconds)

    def gone(self, feed: str) -> None:
        """It is not polled here any more."""
        self._feeds.pop(feed, None)

    def blocks(self, *, openmetrics: bool) -> Iterator[str]:
        """The series as text."""
        feeds = list(self._feeds.items())  # in one breath: the loop may go on meanwhile
        rounds = (
            (labelled(feed=feed, mode=mode, result=result), count)
            for feed, one in feeds
            for (mode, result), count in list(one.rounds.items())
        )
        yield _ROUNDS.block(rounds, openmetrics=openmetrics)
        yield _PAGES.block(((labelled(feed=feed), one.pages) for feed, one in feeds), openmetrics=openmetrics)
        records = (
            (labelled(feed=feed, kind=kind), count)
            for feed, one in feeds
            for kind, count in zip(KINDS, one.kinds, strict=True)
        )
        yield _RECORDS.block(records, openmetrics=openmetrics)


ROUNDS: Final = Rounds()
