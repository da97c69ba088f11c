"""Commits stay in order, overlap with planning, and stop at the first that fails."""

from __future__ import annotations

import asyncio

import pytest

from poller.source.committing import in_order


class Store:
    """Takes numbers; each waits at the gate until it is opened."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.begun: list[int] = []
        self.written: list[int] = []
        self.gate = asyncio.Event()
        self.started = asyncio.Event()
        self._fails_at = fails_at

    async def commit(self, number: int) -> None:
        self.begun.append(number)
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.written.append(number)  # as the real one does: what is on its way is finished
            raise
        if number == self._fails_at:
            raise ValueError(f"{number} is refused")
        self.written.append(number)


async def test_all_are_written_in_their_order() -> None:
    """Law: leaving the block means that everything is written, in the order given."""
    store = Store()
    store.gate.set()
    async with in_order(store.commit) as put:
        for number in range(20):
            await put(number)
    assert store.written == list(range(20))


async def test_the_next_is_planned_while_one_is_on_its_way() -> None:
    """Law: one may be on its way and one waiting before whoever plans has to wait."""
    store = Store()
    async with in_order(store.commit) as put:
        await put(1)
        await put(2)
        assert (store.begun, store.written) == ([1], [])
        third = asyncio.ensure_future(put(3))
        store.gate.set()
        await third
    assert store.written == [1, 2, 3]


async def test_none_is_written_after_one_that_failed() -> None:
    """Law: the failure comes out, and what was to follow is not written."""
    store = Store(fails_at=2)
    store.gate.set()
    with pytest.raises(ValueError, match="2 is refused"):
        async with in_order(store.commit) as put:
            for number in range(1, 9):
                await put(number)
    assert store.written == [1]
    assert store.begun == [1, 2]


async def test_a_failure_of_the_last_one_comes_out_too() -> None:
    """Law: leaving the block raises what the last commit raised."""
    store = Store(fails_at=1)
    store.gate.set()
    with pytest.raises(ValueError, match="1 is refused"):
        async with in_order(store.commit) as put:
            await put(1)


async def test_cancelled_it_finishes_what_is_on_its_way_and_drops_the_rest() -> None:
    """Law: a round that is told to stop leaves no task, and no commit half done."""
    store = Store()

    async def round_() -> None:
        async with in_order(store.commit) as put:
            for number in range(1, 9):
                await put(number)

    running = asyncio.create_task(round_())
    await store.started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert store.written == [1]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_error_of_the_planner_stops_it_too() -> None:
    """Law: what raises inside the block is raised by the block, with nothing left running."""
    store = Store()
    with pytest.raises(KeyError):
        async with in_order(store.commit) as put:
            await put(1)
            raise KeyError
    assert asyncio.all_tasks() == {asyncio.current_task()}
