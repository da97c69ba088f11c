"""What follows from a round for the process that ran it: who is told of it, and when the feed is worth another try.

Law: a round that a store's absence has cost is made up for when the store is back, however long the feed's interval is;
and a store that is away is not asked by each feed at each moment.

Pure but for those who are told.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Final

from poller.service.readiness import Readiness
from poller.service.watching import StoreWatch
from poller.source.feed import Mode
from poller.source.result import RoundResult
from poller.telemetry.rounds import KINDS, ROUNDS

LONGEST: Final = timedelta(seconds=10)
"""Between two tries of a feed while the store is away."""

_FIRST: Final = timedelta(seconds=1)


class AfterRound:
    """Told of each round of this process."""

    def __init__(self, watch: StoreWatch, readiness: Readiness) -> None:
        """Take who wants to know: ``watch`` what the store did, ``readiness`` how the feed does."""
        self.watch = watch
        self._readiness = readiness
        self._in_vain: dict[str, int] = defaultdict(int)

    def began(self, feed: str) -> None:
        """A round of it has begun: the store has answered, however long what follows may take."""
        self.watch.worked(feed)

    def __call__(self, result: RoundResult) -> timedelta | None:
        """Tell; after how long the next round is worth trying, where that may be sooner than its turn."""
        _count(result)
        if result.away:
            self.watch.failed(result.feed, result.error or "no answer")
            self._in_vain[result.feed] += 1
            pause: timedelta = _FIRST * 2 ** min(self._in_vain[result.feed] - 1, 8)
            return min(pause, LONGEST)
        self._in_vain.pop(result.feed, None)
        self.watch.worked(result.feed)
        self._readiness.round(result.feed, result.error)
        return result.wait

    def gone(self, feed: str) -> None:
        """It is another process's now: what it has met here is of no concern any more."""
        ROUNDS.gone(feed)
        self._in_vain.pop(feed, None)
        self.watch.worked(feed)
        self._readiness.round(feed, None)


def _count(result: RoundResult) -> None:
    skipped = result.ok and result.mode is Mode.SKIPPED
    ROUNDS.ended(
        result.feed,
        mode=result.mode.value,
        result="skipped" if skipped else "ok" if result.ok else "failed",
        seconds=result.seconds,
        pages=result.pages,
        kinds={kind: getattr(result, kind) for kind in KINDS},
    )
