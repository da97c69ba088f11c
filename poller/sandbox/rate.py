"""Something done so and so many times a second.

Law: number *n* is due *n* / rate seconds after the start by the loop's clock. What is late is caught up at once, so the
count is right whenever the loop comes round, however long it was away; nothing is ever early.

It does not know: what is done.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_MOST_AT_ONCE = 200
"""When far behind: how many before the loop may do something else."""


async def repeat(
    act: Callable[[], object],
    *,
    per_second: float,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Call ``act`` at a rate until cancelled or until it raises; at a rate of 0 return at once.

    Args:
        act: what to do; it must not take long.
        per_second: how often, on average over any time.
        clock: monotonic seconds; default the running loop's.
        sleep: waits so many seconds.
    """
    if per_second <= 0:
        return
    clock = clock or asyncio.get_running_loop().time
    start, done = clock(), 0
    while True:
        owed = int((clock() - start) * per_second) - done
        for _ in range(min(owed, _MOST_AT_ONCE)):
            act()
            done += 1
        await sleep(max(0.0, start + (done + 1) / per_second - clock()))
