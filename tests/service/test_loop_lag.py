"""Laws of :mod:`poller.service.loop_lag`: what is late is measured, and one who slept is told so first."""

from __future__ import annotations

import asyncio

from poller.service.loop_lag import ASLEEP, measured
from tests.harness.waiting import patience, turns


async def test_a_loop_that_was_kept_busy_is_late_by_so_long() -> None:
    """By the clock that is given; a loop that runs is hardly late, and nothing is measured after the block."""
    seen: list[float] = []
    slept: list[int] = []
    looked = asyncio.Event()
    times = iter([0.0, 0.001, 0.001, 0.402, 0.402, 0.413 + ASLEEP])

    def observe(late: float) -> None:
        seen.append(late)
        looked.set()

    with measured(observe, overslept=lambda: slept.append(len(seen)), every=0.001, clock=lambda: next(times, 2.0)):
        async with patience("three looks"):
            while len(seen) < 3:
                looked.clear()
                await looked.wait()
    assert [round(late, 3) for late in seen[:3]] == [0.0, 0.4, 0.01 + ASLEEP]
    assert slept == [3]
    count = len(seen)
    await turns()
    assert len(seen) == count
