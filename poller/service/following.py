"""Following streams through whatever happens to the store.

Law: every entry after the starting places is given out once, in each stream's order. A store that goes away is waited
for, and reading goes on after the last entry that was given out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import timedelta
from typing import Final

from redis.asyncio import Redis

from poller.errors import StoreUnavailable
from poller.store.entry_ids import place_of
from poller.store.stream import Entry, follow

_FIRST_PAUSE: Final = 0.1  # seconds before the store is asked again; doubles up to
_LONGEST_PAUSE: Final = 2.0


async def followed(
    client: Redis,
    start: Mapping[str, str],
    *,
    block: timedelta,
    away: Callable[[StoreUnavailable], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[list[Entry]]:
    """Entries as they come, some at a time, the oldest first; an empty list where nothing came for ``block``.

    Args:
        client: for blocking reads, with room for ``block``.
        start: for each stream's key the id to start after.
        block: how long to wait before an empty list.
        away: told once each time that the store goes away.
        sleep: waits for so many seconds.

    Raises:
        StoreRefused: the store does not want us.
    """
    after = dict(start)
    pause = _FIRST_PAUSE
    while True:
        try:
            async with aclosing(follow(client, after, block=block)) as reading:
                async for entries in reading:
                    pause = _FIRST_PAUSE
                    after.update((entry.key, entry.id) for entry in entries)
                    yield sorted(entries, key=_place)
        except StoreUnavailable as error:
            if pause == _FIRST_PAUSE:
                away(error)
        await sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _place(entry: Entry) -> tuple[int, int]:
    return place_of(entry.id)
