"""The subscriptions of this process' file, against those of the store that it shares with others.

They are taken over at the start. From then on the registry is looked at for a disagreement: a process with another file
may have paused one of them, or brought one that is in no file of a process that is still there. What is to be done then
says :mod:`poller.store.settling`; here it is done, and told once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog
from redis.asyncio import Redis

from poller.config.settings import Settings
from poller.service.membership import Membership
from poller.service.subscribing import filed
from poller.store.keys import MemberKeys
from poller.store.members import members_now
from poller.store.registrations import Subscriptions
from poller.store.settling import REASON, Contested, contested
from poller.store.subscriptions import Registry

_ADVICE: Final = (
    "two configurations are in use on one store: this process has the subscription in its file, and that one, when it "
    "started, had not. Start every process of a store with the same file"
)

_log = structlog.get_logger("poller.delivery")


class Filing:
    """The file of one process. Used within one event loop."""

    def __init__(
        self, settings: Settings, registry: Registry, client: Redis, membership: Membership, *, role: str
    ) -> None:
        """Take what it works with.

        Args:
            settings: the configuration.
            registry: of the subscriptions.
            client: of the store.
            membership: this process among the others.
            role: what those do that deliver.
        """
        self.file = filed(settings)
        self._ids = frozenset(name for name, _ in self.file)
        self._registry = registry
        self._client = client
        self._keys = MemberKeys.of(settings.redis.prefix)
        self._membership = membership
        self._role = role
        self._of: Subscriptions | None = None
        self._contested = Contested()

    async def take_over(self, now: datetime) -> None:
        """Tell the registry what the file says. To be called when the others can see that this process is there.

        Raises:
            ConfigurationError: two subscriptions have one id.
            StoreError: the store is away.
        """
        synced = await self._registry.sync(self.file, now, member=self._membership.name)
        for name in synced.removed:
            _say_paused(name, "the configuration does not have it any more")

    async def keep_to(self, kept: Subscriptions, now: Callable[[], datetime]) -> None:
        """Bring back what another process has paused, and pause what another has left behind.

        Costs nothing while all files say the same.

        Args:
            kept: the registry, as it was read last.
            now: the store's clock, UTC.

        Raises:
            StoreError: the store is away.
        """
        if kept is not self._of:
            self._of, self._contested = kept, contested(kept, self._ids)
        if not self._pressing():
            return
        there = [name for name, roles in (await members_now(self._client, self._keys)).items() if self._role in roles]
        settled = await self._registry.settle(kept, self._contested, self._membership.name, there, now())
        for name, by in settled.returned.items():
            _log.warning("subscription brought back", subscription=name, without=by or "unknown", advice=_ADVICE)
        for name in settled.removed:
            _say_paused(name, REASON)

    def _pressing(self) -> bool:
        """Whether something is to be done, by the list of processes as it was seen last."""
        if not self._contested.brought:
            return bool(self._contested.silenced)
        there = self._membership.seen.doing(self._role)
        return bool(self._contested.silenced) or any(by not in there for by in self._contested.brought.values())


def _say_paused(subscription: str, reason: str) -> None:
    _log.warning(
        "subscription paused",
        subscription=subscription,
        by="removed",
        reason=reason,
        advice=f"poller subscriptions remove {subscription} drops it and what waits for it",
    )
