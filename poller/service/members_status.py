"""The processes that share the work, with what each does and how much it has. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec
from redis.asyncio import Redis

from poller.service.feed_status import FeedStatus
from poller.service.subscription_status import SubscriptionStatus
from poller.store.keys import MemberKeys
from poller.store.members import members_now


class MemberStatus(msgspec.Struct, frozen=True):
    """One of the ``members`` of the last line of ``poller status --json``, key for key.

    Attributes:
        member: the process: machine, process id, and something random.
        roles: what it does: of ``poll`` and ``deliver``, in their order; none while it is leaving.
        feeds: how many it polls.
        deliveries: to how many feeds of subscriptions it delivers.
    """

    member: str
    roles: tuple[str, ...]
    feeds: int
    deliveries: int


async def member_statuses(
    client: Redis, prefix: str, feeds: Iterable[FeedStatus], subscriptions: Iterable[SubscriptionStatus]
) -> list[MemberStatus]:
    """All that are there, and those that still have something.

    Args:
        client: of the store.
        prefix: of the store's keys.
        feeds: as they were read just now.
        subscriptions: likewise.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    there = await members_now(client, MemberKeys.of(prefix))
    polling = Counter(one.owner for one in feeds if one.owner)
    delivering = Counter(feed.owner for one in subscriptions for feed in one.feeds if feed.owner)
    return [
        MemberStatus(name, tuple(sorted(there.get(name, ()), reverse=True)), polling[name], delivering[name])
        for name in sorted({*there, *polling, *delivering})
    ]
