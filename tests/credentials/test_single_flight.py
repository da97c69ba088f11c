"""Laws of :mod:`poller.credentials.single_flight`."""

from __future__ import annotations

import asyncio

import pytest

from poller.credentials.single_flight import SingleFlight
from tests.harness.waiting import turns


class Work:
    """Counts how often it is begun, and ends when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.at_once = self.most_at_once = 0
        self.started, self.go = asyncio.Event(), asyncio.Event()
        self.fails = False
        self.flight = SingleFlight(self.run)

    async def run(self) -> int:
        self.begun += 1
        number = self.begun
        self.started.set()
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            await turns(3)  # as closing a connection takes some
            raise
        finally:
            self.at_once -= 1
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


@pytest.mark.parametrize("later", range(1, 6))
async def test_who_leaves_a_run_that_is_over_disturbs_nobody_in_the_next(later: int) -> None:
    """Law: whenever somebody is cancelled around the end of a run, the next one is still the only one."""
    work = Work()
    (leaving,) = await begun(work, 1)

    async def comes() -> int:
        await turns(later)
        leaving.cancel()
        work.go.clear()
        return await work.flight()

    next_ones = [asyncio.create_task(comes())]
    work.go.set()
    await turns(later + 5)
    next_ones.append(asyncio.create_task(work.flight()))
    await turns(5)
    work.go.set()
    assert set(await asyncio.gather(*next_ones)) <= {1, 2}
    await asyncio.wait({leaving})
    assert work.most_at_once == 1


@pytest.mark.parametrize("later", range(1, 6))
async def test_who_asks_while_the_work_is_being_ended_has_it_done_anew(later: int) -> None:
    """Law: work that nobody waited for takes some turns to end; who comes in one of these does not end with it."""
    work = Work()
    (leaving,) = await begun(work, 1)
    leaving.cancel()
    await turns(later)
    work.go.set()
    assert await work.flight() == 2
