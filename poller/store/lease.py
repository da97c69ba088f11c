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
_SIDE_BY_SIDE: Final = 100


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

    Many are renewed side by side: a busy event loop makes each answer wait, and in a row the last would come too late.
    A store that is away is no reason to stop: the leases run out there by themselves, and the rounds say what is wrong.
    Of a cluster one server may be away; the leases on the others are renewed.
    """
    while True:
        await sleep(ttl.total_seconds() / 3)
        held = [lease for lease in leases if lease.held]
        for first in range(0, len(held), _SIDE_BY_SIDE):
            renewing = (_renewed(lease) for lease in held[first : first + _SIDE_BY_SIDE])
            if not any(await asyncio.gather(*renewing)):
                break  # the others would wait for the same store


async def _renewed(lease: Lease) -> bool:
    """Whether the store answered."""
    try:
        await lease.renew()
    except StoreUnavailable:
        return False
    except StoreError:
        pass  # this one's next round says what is wrong
    return True


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
