"""Laws of :mod:`poller.credentials.single_flight`."""

from __future__ import annotations

import asyncio

import pytest

from poller.credentials.single_flight import SingleFlight


class Work:
    """Counts how often it is begun, and ends when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.started, self.go = asyncio.Event(), asyncio.Event()
        self.fails = False
        self.flight = SingleFlight(self.run)

    async def run(self) -> int:
        self.begun += 1
        number = self.begun
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails:
            raise ValueError(f"failure {number}")
        return number


async def begun(work: Work, callers: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(work.flight()) for _ in range(callers)]
    await work.started.wait()  # the work is a task of its own, begun after all of these have asked for it
    return tasks


async def test_callers_at_the_same_time_share_one_run() -> None:
    """One result for all; who comes afterwards has it done again."""
    work = Work()
    callers = await begun(work, 5)
    work.go.set()
    assert await asyncio.gather(*callers) == [1] * 5
    assert await work.flight() == 2


async def test_a_failure_is_everybodys() -> None:
    """One failure for all, and none of the next run."""
    work = Work()
    work.fails = True
    callers = await begun(work, 3)
    work.go.set()
    assert [str(error) for error in await asyncio.gather(*callers, return_exceptions=True)] == ["failure 1"] * 3
    work.fails = False
    assert await work.flight() == 2


async def test_a_caller_that_is_cancelled_leaves_the_others_undisturbed() -> None:
    """The first one too, which began the work."""
    work = Work()
    callers = await begun(work, 3)
    callers[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await callers[0]
    work.go.set()
    assert await asyncio.gather(*callers[1:]) == [1, 1]
    assert work.cancelled == 0


async def test_work_that_nobody_waits_for_is_ended() -> None:
    """When the last caller is gone so is the work, and the next one begins anew."""
    work = Work()
    callers = await begun(work, 2)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert work.cancelled == 1
    assert len(asyncio.all_tasks()) == 1
    work.go.set()
    assert await work.flight() == 2
