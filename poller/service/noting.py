"""What is to be known of a subscription when the process that delivers it is no more, and what is announced of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Literal

import msgspec
import structlog

from poller.delivery.announcements import Announcement, Kind
from poller.delivery.health import Health, health_of
from poller.service.announcing import announce
from poller.service.opening import OpenStore
from poller.store.registrations import Paused
from poller.store.subscriptions import Registry

_log = structlog.get_logger("poller.delivery")


class RegistryNotes:
    """What outlives a process, written into the registry and announced.

    See :class:`poller.delivery.subscriber.Notes`.
    """

    def __init__(
        self,
        registry: Registry,
        store: OpenStore,
        prefix: str,
        *,
        beside: Callable[[str, datetime], Iterable[str]] = lambda _, __: (),
    ) -> None:
        """Take where to write.

        Args:
            registry: of the subscriptions.
            store: where announcements go.
            prefix: of the store's keys.
            beside: told of a subscription whose sink wants nothing before a moment, tells the others of that sink and
                names them.
        """
        self._registry = registry
        self._beside = beside
        self._client = store.client
        self._prefix = prefix

    async def until(self, subscription: str, moment: datetime) -> None:
        """The sink wants nothing before then, whichever subscription it is for."""
        for name in (*self._beside(subscription, moment), subscription):
            await self._registry.note_until(name, moment)

    async def health(self, subscription: str, feed: str, health: Health) -> None:
        """How it is doing at a feed."""
        await self._registry.note_health(subscription, feed, msgspec.json.encode(health))

    async def healths(self, subscription: str) -> Mapping[str, Health]:
        """How it is doing at each feed, whoever delivers it."""
        kept = await self._registry.healths(subscription)
        return {feed: health_of(health) for feed, health in kept.items()}

    async def rest(self, subscription: str, *, by: Literal["sink", "failures"], reason: str, at: datetime) -> None:
        """It gets nothing more until somebody resumes it; announced."""
        renewed = _unwell if by == "failures" else None
        if await self._registry.pause(subscription, Paused(by, reason, at), renewed) is None:
            kind = Kind.SUBSCRIPTION_PAUSED if by == "sink" else Kind.SUBSCRIPTION_DISABLED
            _log.error("subscription paused", subscription=subscription, by=by, reason=reason)
            await self._announce(Announcement(kind, subscription, at, reason))

    async def recovered(self, subscription: str, at: datetime) -> None:
        """It took an event again; announced by the first process that says so."""
        if not await self._registry.renew_health(subscription, _well):
            return
        _log.info("subscription recovered", subscription=subscription)
        await self._announce(Announcement(Kind.SUBSCRIPTION_RECOVERED, subscription, at, "it took an event again"))

    async def _announce(self, announcement: Announcement) -> None:
        await announce(self._client, self._prefix, announcement)


def _unwell(kept: bytes) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(health_of(kept), unwell=True))


def _well(kept: bytes) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(health_of(kept), unwell=False))
