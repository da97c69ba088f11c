"""What other processes have noted of the feeds that are theirs, learnt while the store still has it.

A store that loses everything loses the leases and the list of processes too, and whoever comes first takes a feed. So
he must know already that there was one: without that he would take the store for empty and its first reading for the
first that anybody is told.

Law: what is known here is replaced by what goes further, and by nothing else; a note that is gone takes nothing away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from redis.asyncio import Redis

from poller.errors import StoreError
from poller.stopping import unless
from poller.store.remembering import Memory, notes

FIRST_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 60.0
_LATER: Final = 1.25
"""Each look comes so much later than the one before it: what is there is known before it is a quarter older."""


class Remembering(Protocol):
    """A feed's store; see :class:`poller.store.feed.FeedStore`."""

    held: bool
    memory: Memory


async def overhear(
    stop: asyncio.Event,
    client: Redis,
    key: str,
    stores: Iterable[tuple[str, Remembering]],
    *,
    pause: Callable[[asyncio.Event, float], Awaitable[object]] = unless,
) -> None:
    """Read the notes again and again, at once at first, then ever later, up to once a minute.

    Args:
        stop: ends it.
        client: of the store.
        key: of the notes.
        stores: of all feeds, by name; those that are held here know better.
        pause: waits for so many seconds, or for the stop.
    """
    feeds, seconds = list(stores), FIRST_SECONDS
    while not stop.is_set():
        await pause(stop, seconds)
        seconds = min(_LATER * seconds, LONGEST_SECONDS)
        try:
            noted = await notes(client, key)
        except StoreError:
            continue  # those who need it more say so
        for feed, store in feeds:
            if not store.held:
                store.memory.overheard(noted.get(feed))
