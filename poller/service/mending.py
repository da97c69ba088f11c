"""The registry of subscriptions once the store has lost it: what this process remembers against what is there now.

A version that is lower than the one that was seen means that the registry is gone, or is an older one; the same version
with fewer subscriptions, that a part of it is.

Law: those of the file are back at once, as old and as paused as they were, so that none of them is taken for a new one
that has to be told everything. One that was added at run time does not come back: who added it knows what it is for,
and its secret may be known to nobody else. It is told by name, for this process remembers that it was there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import structlog

from poller.delivery.announcements import Announcement, Kind
from poller.errors import ConfigurationError
from poller.store.registrations import Subscriptions
from poller.store.subscriptions import Registry

_log = structlog.get_logger("poller.delivery")


async def mend(
    registry: Registry,
    file: Sequence[tuple[str, bytes]],
    before: Subscriptions,
    *,
    now: datetime,
    announce: Callable[[Announcement], Awaitable[None]],
    member: str = "",
) -> Subscriptions:
    """Bring back what can be brought back, and tell the rest; what there is then.

    Args:
        registry: of the store.
        file: the subscriptions of the configuration, as :meth:`~poller.store.subscriptions.Registry.sync` takes them.
        before: what was there when it was looked at last.
        now: UTC.
        announce: tells whoever listens.
        member: the process whose file it is.

    Raises:
        StoreError: nothing was told yet.
    """
    try:
        await registry.sync(file, now, before, member=member)
    except ConfigurationError as error:  # an older registry has one that was added then and stands in the file now
        _log.error("subscriptions of the file are not brought back", error=str(error))
    kept = await registry.all()
    lost = sorted(before.registered.keys() - kept.registered.keys())
    log, event = (_log.error, "subscriptions lost") if lost else (_log.warning, "subscriptions brought back")
    log(
        event,
        lost=lost,
        version=kept.version,
        version_before=before.version,
        advice="the store has lost its registry of subscriptions, or holds an older one. Those of the configuration "
        "are back; " + (f"add again what was added at run time: {', '.join(lost)}" if lost else "no other is missing"),
    )
    reason = "the store has lost it, and it is in no configuration file; add it again"
    for name in lost:
        await announce(Announcement(Kind.SUBSCRIPTION_LOST, name, now, reason))
    return kept
