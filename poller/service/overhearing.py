"""What other processes have noted of the feeds that are theirs, learnt while the store still has it.

A store that loses everything loses the leases and the list of processes too, and whoever comes first takes a feed. So
he must know already that there was one: without that he would take the store for empty and its first reading for the
first that anybody is told.

Law: what is known here is replaced by what goes further, and by nothing else; a note that is gone takes nothing away,
and is written again, for those who start after the store has lost it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from redis.asyncio import Redis

from poller.errors import StoreError
from poller.stopping import unless
from poller.store.losses import Remembered
from poller.store.remembering import Memory, notes

FIRST_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 60.0
SECONDS_UNKNOWN: Final = 5.0
"""While nothing is known of a feed of another process."""
_LATER: Final = 1.25
"""Each look comes so much later than the one before it, for feeds are first read when the processes start."""


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
    """Read the notes again and again, at once at first, then ever later, up to once a minute; see the constants.

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
        with suppress(StoreError):  # those who need it more say so
            await _exchange(feeds, await notes(client, key))
        unknown = any(store.memory.known is None and not store.held for _, store in feeds)
        seconds = min(_LATER * seconds, SECONDS_UNKNOWN if unknown else LONGEST_SECONDS)


async def _exchange(feeds: Sequence[tuple[str, Remembering]], noted: Mapping[str, Remembered]) -> None:
    """Learn what is noted; note what is known here alone."""
    for feed, store in feeds:
        if not store.held:
            store.memory.overheard(noted.get(feed))
    for feed, store in feeds:
        if feed not in noted and store.memory.known is not None:
            await store.memory.remind()
