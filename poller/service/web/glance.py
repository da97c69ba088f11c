"""What the page shows, read from the store.

Law: however many look, the store is asked once in :data:`FRESH` seconds and for a bounded part. A store that is away is
shown as a reason like any other: the page is there all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from poller.errors import StoreError
from poller.hiding import without_credentials
from poller.service.feed_status import FeedStatus, feed_statuses
from poller.service.readiness import Readiness
from poller.service.subscription_status import SubscriptionStatus, subscription_statuses
from poller.service.web.backing import Backing

FRESH: Final = 2.0
MOST: Final = 100
"""Feeds, and subscriptions."""


class Glance(msgspec.Struct, frozen=True):
    """How it is.

    Attributes:
        at: when that was, UTC.
        ready: whether this process does its work.
        reasons: why it does not, or why there is nothing to be shown.
        feeds: how they do, as many as are shown.
        subscriptions: likewise.
        feeds_left_out: how many more there are.
        subscriptions_left_out: likewise.
    """

    at: datetime
    ready: bool
    reasons: tuple[str, ...] = ()
    feeds: tuple[FeedStatus, ...] = ()
    subscriptions: tuple[SubscriptionStatus, ...] = ()
    feeds_left_out: int = 0
    subscriptions_left_out: int = 0


class Glances:
    """The latest one, for all who look."""

    def __init__(self, backing: Backing, readiness: Readiness, *, clock: Callable[[], float]) -> None:
        """Take what is looked at, and seconds that only go forward."""
        self._backing = backing
        self._readiness = readiness
        self._clock = clock
        self._turn = asyncio.Lock()
        self._seen: tuple[float, Glance] | None = None

    async def latest(self) -> Glance:
        """How it is, or was a moment ago."""
        async with self._turn:
            if self._seen is None or self._clock() - self._seen[0] >= FRESH:
                seen = await self._look()
                self._seen = self._clock(), seen
            return self._seen[1]

    async def _look(self) -> Glance:
        report, now = await self._readiness.report(), self._backing.now()
        reasons = tuple(f"{one.name}: {one.text}" for one in report.reasons)
        try:
            feeds, more_feeds = await self._feeds(now)
            subscriptions, more = await self._subscriptions(now)
        except StoreError as error:
            return Glance(now, report.ready, reasons or (f"store: {without_credentials(str(error))}",))
        return Glance(now, report.ready, reasons, tuple(feeds), tuple(subscriptions), more_feeds, more)

    async def _feeds(self, now: datetime) -> tuple[Sequence[FeedStatus], int]:
        names = self._backing.settings.feed_ids
        found = await feed_statuses(self._backing.client, self._backing.settings, now=now, feeds=names[:MOST])
        return found, max(len(names) - MOST, 0)

    async def _subscriptions(self, now: datetime) -> tuple[Sequence[SubscriptionStatus], int]:
        settings = self._backing.settings
        kept = await self._backing.registry.all()
        names = sorted({*kept.registered, *(one.id for one in settings.subscriptions)})
        found = await subscription_statuses(self._backing.client, settings, now=now, only=names[:MOST])
        return found, max(len(names) - MOST, 0)
