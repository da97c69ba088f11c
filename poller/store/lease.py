"""Keeping leases alive between and during rounds.

A process keeps the lease of each feed that it polls from its first round to its end, renewed every third of its
lifetime, so that no other process polls in between. It may lose one all the same (a pause, a store that was away): it
learns so here or from its next commit, and takes it again with its next round if nobody else has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Final, Protocol

from poller.errors import StoreError, StoreUnavailable

RELEASE_SECONDS: Final = 1.5


class Lease(Protocol):
    """What is to be kept; see :class:`poller.store.feed.FeedStore`."""

    @property
    def held(self) -> bool:
        """Whether it is ours, as far as is known."""
        ...

    async def renew(self) -> bool:
        """Keep it for another term."""
        ...

    async def release(self) -> None:
        """Let it go."""
        ...


async def keep_renewed(leases: Iterable[Lease], *, ttl: timedelta, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Renew those that are held, every third of their lifetime, until cancelled.

    A store that is away is no reason to stop: the leases run out there by themselves, and the rounds say what is wrong.
    """
    while True:
        await sleep(ttl.total_seconds() / 3)
        for lease in leases:
            if lease.held:
                try:
                    await lease.renew()
                except StoreUnavailable:
                    break  # the others would wait for the same store
                except StoreError:
                    continue  # this one's next round says what is wrong


async def release_all(leases: Iterable[Lease], *, within: float = RELEASE_SECONDS) -> None:
    """Let go of those that are held, so that another process can go on at once.

    A store that does not answer ends it, at the latest after so many seconds: leases run out by themselves.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            for lease in leases:
                if lease.held:
                    try:
                        await lease.release()
                    except StoreUnavailable:
                        return
                    except StoreError:
                        continue
