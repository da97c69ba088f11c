"""The deltas of a feed that is being read in full: read beside that, between its pages, so that nothing waits for it.

Theory of operation
-------------------
A full reading of many pages takes long. So deltas go on meanwhile: one after the first page, for the feed's turn has
come, one at each interval, and one after the last page. Each is committed whole before its token is. The token of the
full reading itself is not used: from that one on nobody would be told what changed before it and slipped over the edge
of a page.

The page that is on its way while a delta is read may have been answered before it. What the delta has brought is left
out of that page, for no later delta would bring it again; whatever changes after a delta stands in the next one.

What the full reading brings and no delta does is late (:mod:`poller.changes.confirmation`): whatever changed while it
ran stands in one of them.

Deltas that fail do not fail the reading: it says more than they do. After one that failed none is read any more in its
round. Where none worked, the token of the full reading takes the place of theirs; where the API has refused theirs,
that is a resync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta

from poller.changes.events import recorded_time
from poller.errors import RoundTimeExceeded, SourceError, SourceRefused
from poller.source.drain import SubstreamDrain
from poller.source.feed import Feed, RoundMode
from poller.source.writer import RoundWriter, SeenKeysObserver
from poller.store.feed_state import DELTA_TOKEN, DELTA_TOKEN_AT


class DeltaReader:
    """The deltas beside one full reading.

    Attributes:
        token: from which the next one starts.
        worked: whether one of them came to its end.
        failed: whether one of them did not.
        refused: whether the API has refused their token.
        changed: is told the keys of what the full reading publishes.
    """

    def __init__(
        self,
        feed: Feed,
        draining: SubstreamDrain,
        writer: RoundWriter,
        token: str,
        *,
        seen: SeenKeysObserver | None,
        now: Callable[[], datetime],
    ) -> None:
        """Take what they work with.

        Args:
            feed: whose deltas they are.
            draining: reads a listing.
            writer: keeps the token.
            token: from which the first one starts.
            seen: is told the keys of their records, too: what a delta brings is there.
            now: the store's clock, UTC.
        """
        self.token = token
        self.worked = self.failed = self.refused = False
        self.changed: set[str] = set()
        self._feed = feed
        self._draining = draining
        self._writer = writer
        self._seen = seen
        self._now = now
        self._brought: set[str] = set()
        self._latest: set[str] = set()
        self._clock = asyncio.get_running_loop().time
        self._due = self._clock()

    def update(self, keys: Iterable[str]) -> None:
        """Note that a delta has brought these records."""
        listed = list(keys)
        self._brought.update(listed)
        self._latest.update(listed)
        if self._seen is not None:
            self._seen.update(listed)

    @property
    def late(self) -> int | None:
        """How many records the full reading brought late; None where the deltas cannot tell."""
        return None if self.failed else len(self.changed - self._brought)

    async def between(self) -> Collection[str]:
        """Read one between two pages, if it is due; the keys of what it has brought."""
        if self._clock() < self._due:
            return ()
        self._latest = set()
        await self.read()
        return self._latest

    async def read(self) -> None:
        """Read one, and keep its token.

        Raises:
            OutOfTime: the round has taken too long.
            StoreError: see :meth:`poller.source.writing.RoundStore.commit`.
        """
        if self.failed:
            return
        slot = self._feed.slot or timedelta.max
        self._due = self._clock() + slot.total_seconds()
        pages, path = self._draining.pages, self._feed.resource.path
        try:
            drain = await self._draining.drain(path, mode=RoundMode.DELTA, since=self.token, seen=self)
        except RoundTimeExceeded:
            raise
        except SourceError as failure:
            if isinstance(failure, SourceRefused) and pages == self._draining.pages:
                self.refused = failure.status in self._feed.expired_statuses
            self.failed = True
            return
        self.worked = True
        if drain.delta_token:
            self.token = drain.delta_token
            await self._writer.marks({DELTA_TOKEN: self.token, DELTA_TOKEN_AT: recorded_time(self._now())})
