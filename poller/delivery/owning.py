"""Owning pairs: one process at a time delivers a feed's events to a subscription, and another takes over when it goes.

A pair is delivered for as long as its lease is held. A store that fails, or a lease that was lost, ends that; after a
moment it is taken up again, from what is written.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final, Protocol

import structlog

from poller.delivery.pair import Pair
from poller.errors import Fenced, StoreError
from poller.stopping import unless
from poller.store.feed import HeldElsewhere

_log = structlog.get_logger("poller.delivery")
_LOOK_AGAIN: Final = timedelta(seconds=1)


class Leased(Protocol):
    """The pair's lease; see :class:`poller.store.deliveries.PairStore`."""

    async def take(self) -> HeldElsewhere | None:
        """Take it; None: it is ours."""
        ...

    async def release(self) -> None:
        """Let it go."""
        ...


async def own(pair: Pair, store: Leased, *, subscription: str, stop: asyncio.Event) -> None:
    """Deliver whenever the lease can be had, until told to stop; then let it go."""
    failing: str | None = None
    while not stop.is_set():
        try:
            held = await store.take()
            if held is None:
                await pair.run()
                failing = None
                continue
            await unless(stop, min(held.remaining, _LOOK_AGAIN).total_seconds())
        except Fenced as error:
            _log.warning("lease lost", feed=pair.feed, subscription=subscription, error=str(error))
        except StoreError as error:
            if str(error) != failing:
                failing = str(error)
                _log.warning("not delivering", feed=pair.feed, subscription=subscription, error=failing)
            await unless(stop, _LOOK_AGAIN.total_seconds())
    await store.release()
