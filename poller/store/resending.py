"""Sending a script again until it is answered, where that is safe: it recognises what it has written before.

Law: it is sent again for as long as the lease it checks may last and no longer, for after that another may have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from redis.asyncio import Redis

from poller.errors import StoreUnavailable
from poller.store.scripts import answered

_FIRST_PAUSE: Final = 0.05  # seconds between tries; doubles up to
_LONGEST_PAUSE: Final = 1.0


async def until_answered(
    client: Redis,
    send: Callable[[], Awaitable[Any]],
    *,
    lease: timedelta,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Any:
    """The answer.

    Args:
        client: of the store.
        send: sends the script once.
        lease: how long it is worth sending.
        sleep: waits for so many seconds.

    Raises:
        StoreUnavailable: there was none for so long; it may or may not be written.
        StoreRefused: the server will say the same again.
    """
    clock = asyncio.get_running_loop().time
    deadline, pause = clock() + lease.total_seconds(), _FIRST_PAUSE
    while True:
        try:
            with answered(client):
                return await send()
        except StoreUnavailable:
            if clock() + pause >= deadline:
                raise
        await sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
