"""Draining listings: from the first request to the last page, everything given to the writer.

A listing that is refused as it is asked for is asked for with fewer parameters (:mod:`poller.source.learning`); what
that teaches holds for the rest of the round, and for later ones. Refuses to know: what a delta token is worth, what
kind of reading this is, what follows when a listing has ended.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import aclosing
from functools import partial
from typing import Protocol

import msgspec

from poller.errors import SourceRefused
from poller.failpoints import reach
from poller.source.feed import Feed, Mode
from poller.source.learning import REFUSING, Learnt, taken
from poller.source.paging import Drain, Query
from poller.source.progress import RoundClock
from poller.source.reading import Get, read_pages
from poller.source.writing import Noted, Writer


class Ahead(msgspec.Struct, frozen=True):
    """A first request: what it asks for, and the way to its answer."""

    query: Query
    get: Get


class Beside(Protocol):
    """What is read between the pages of a listing; see :class:`poller.source.deltas.Deltas`."""

    changed: set[str]

    async def between(self) -> Collection[str]:
        """There is another page, and it is on its way; the keys of what was read meanwhile."""
        ...


class Draining:
    """The listings of one round, one after the other.

    Attributes:
        query: what is asked for: the feed's query without what the API has refused.
        learnt: what is known of the API.
        pages: how many were committed.
    """

    def __init__(self, feed: Feed, writer: Writer, get: Get, learnt: Learnt, clock: RoundClock) -> None:
        """Take the feed as it is configured, what earlier rounds have learnt, and how long this one may take."""
        self.query = learnt.applied(feed.query)
        self.learnt = learnt
        self.pages = 0
        self._feed = feed
        self._writer = writer
        self._get = get
        self._clock = clock
        writer.asking_for(self.query.fields)

    async def drain(
        self,
        path: str,
        *,
        mode: Mode,
        since: str | None = None,
        seen: Noted | None = None,
        ahead: Ahead | None = None,
        beside: Beside | None = None,
    ) -> Drain:
        """Read one listing; no page was taken where it is unchanged.

        Args:
            path: of the listing.
            mode: the cause of what is published.
            since: the delta token to start from.
            seen: is told the keys of the records.
            ahead: the first request, where it is on its way already.
            beside: what else is read between its pages.

        Raises:
            SourceError: what went wrong; the pages before that are committed.
            StoreError: likewise.
        """
        before, first = self.pages, ahead or Ahead(self.query, self._get)
        try:
            return await self._read(path, mode, since, seen, first, beside=beside)
        except SourceRefused as refused:
            if since or self.pages > before or refused.status not in REFUSING:
                raise
            if first.query == self.query and not await self._narrowed(path):
                raise
        return await self._read(path, mode, since, seen, Ahead(self.query, self._get), beside=beside)

    async def _read(
        self, path: str, mode: Mode, since: str | None, seen: Noted | None, first: Ahead, *, beside: Beside | None
    ) -> Drain:
        drain = Drain(first.query, since)
        newer: Collection[str] = ()
        async with aclosing(read_pages(first.get, path, drain)) as pages:
            async for page in pages:
                reach("page.fetched")
                changed = beside.changed if beside else None
                await self._writer.page(page, mode=mode, path=path, seen=seen, changed=changed, newer=newer)
                self.pages += 1
                if drain.ending is not None:
                    continue
                if self._clock.over:
                    raise self._clock.given_up(self.pages)
                await self._clock.tell(self.pages)
                if beside is not None:
                    newer = await beside.between()
        if drain.pages:
            self.learnt = self.learnt.seeing(drain)
        return drain

    async def _narrowed(self, path: str) -> bool:
        """Whether there is a query that this listing takes; it is used from now on."""
        query = await taken(self.query, partial(self._takes, path))
        if query is None:
            return False
        self.query, self.learnt = query, self.learnt.refusing(self._feed.query, query)
        self._writer.asking_for(query.fields)
        return True

    async def _takes(self, path: str, query: Query) -> bool:
        try:
            await self._get(path, query.first(None))
        except SourceRefused as refused:
            if refused.status in REFUSING:
                return False
            raise
        return True
