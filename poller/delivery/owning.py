"""Owning pairs: one process at a time delivers a feed's events to a subscription, and another takes over when it goes.

A pair is delivered for as long as its lease is held. A store that fails, or a lease that was lost, ends that; after a
moment it is taken up again, from what is written. So does anything that was not foreseen: it costs a pause, no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol

import structlog

from poller.errors import Fenced, StoreError, StoreUnavailable
from poller.stopping import unless
from poller.store.feed import HeldElsewhere
from poller.store.lease import Lease, release_all

_log = structlog.get_logger("poller.delivery")
_SHORTEST: Final = timedelta(milliseconds=20)
_LOOK_AGAIN: Final = timedelta(seconds=1)
# Whoever removes a subscription takes its leases away. Who delivers it learns of that at his next look at the registry,
# and must not have begun anew by then.
_AFTER_LOSS: Final = timedelta(seconds=2)
_AFTER_FAULT: Final = timedelta(seconds=5)


class Leased(Lease, Protocol):
    """The pair's lease; see :class:`poller.store.deliveries.PairStore`."""

    async def take(self) -> HeldElsewhere | None:
        """Take it; None: it is ours."""
        ...


class Watch(Protocol):
    """Who tells of a store that is away, once for all; see :class:`poller.service.watching.StoreWatch`."""

    @property
    def away(self) -> bool:
        """Whether that is known and told already."""
        ...

    def failed(self, who: str, text: str) -> None:
        """It did not do what ``who`` asked."""
        ...

    def worked(self, who: str) -> None:
        """It did, or nobody asks any more."""
        ...


class Runs(Protocol):
    """What is done while the lease is held; see :class:`poller.delivery.pair.Pair`."""

    feed: str

    async def run(self) -> None:
        """Do it until told to stop."""
        ...


async def own(
    pair: Runs,
    store: Leased,
    *,
    subscription: str,
    stop: asyncio.Event,
    watch: Watch,
    pause: Callable[[asyncio.Event, float], Awaitable[object]] = unless,
) -> None:
    """Deliver whenever the lease can be had, until told to stop; then let it go.

    Args:
        pair: is stopped by whoever sets ``stop``.
        store: its lease.
        subscription: for the log.
        stop: ends it.
        watch: told when the store is away.
        pause: waits for so many seconds, or for the stop.
    """
    log = _log.bind(feed=pair.feed, subscription=subscription)
    failing: str | None = None
    who = f"{subscription} {pair.feed}"
    try:
        while not stop.is_set():
            wait = _LOOK_AGAIN
            try:
                held = await store.take()
                watch.worked(who)
                if held is None:
                    await pair.run()
                    return
                wait = min(max(held.remaining, _SHORTEST), _LOOK_AGAIN)
                failing = None
            except Fenced as error:
                (log.debug if watch.away else log.warning)("lease lost", error=str(error))
                wait = _AFTER_LOSS
            except StoreUnavailable as error:
                watch.failed(who, str(error))
            except StoreError as error:
                if str(error) != failing:
                    failing = str(error)
                    log.warning("not delivering", error=failing)
            except Exception:  # here a task ends: a fault of ours costs this pair a pause, and the others nothing
                log.exception("not delivering")
                wait = _AFTER_FAULT
            await pause(stop, wait.total_seconds())
    finally:
        watch.worked(who)
        await release_all([store])
