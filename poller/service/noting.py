"""What is to be known of a subscription when the process that delivers it is no more, and what is announced of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Literal

import msgspec
import structlog

from poller.delivery.announcements import Announcement, Kind
from poller.delivery.health import Health
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

    async def health(self, subscription: str, health: Health) -> None:
        """How it is doing."""
        await self._registry.note_health(subscription, msgspec.json.encode(health))

    async def rest(self, subscription: str, *, by: Literal["sink", "failures"], reason: str, at: datetime) -> None:
        """It gets nothing more until somebody resumes it; announced."""
        if await self._registry.pause(subscription, Paused(by, reason, at)) is None:
            kind = Kind.SUBSCRIPTION_PAUSED if by == "sink" else Kind.SUBSCRIPTION_DISABLED
            _log.error("subscription paused", subscription=subscription, by=by, reason=reason)
            await self._announce(Announcement(kind, subscription, at, reason))

    async def recovered(self, subscription: str, at: datetime) -> None:
        """It took an event again; announced."""
        _log.info("subscription recovered", subscription=subscription)
        await self._announce(Announcement(Kind.SUBSCRIPTION_RECOVERED, subscription, at, "it took an event again"))

    async def _announce(self, announcement: Announcement) -> None:
        await announce(self._client, self._prefix, announcement)
