"""Laws of :mod:`tests.harness.waiting`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.harness.waiting import PATIENCE, Deadline, blocking_until, turns, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


def looking(*answers: object) -> Callable[[], object]:
    """A condition that returns or raises these answers in turn; the last one from then on."""
    coming: Iterator[object] = iter(answers)

    def look() -> object:
        answer = next(coming, answers[-1])
        if isinstance(answer, Exception):
            raise answer
        return answer

    return look


async def _waiting(look: Callable[[], object], *despite: type[Exception], seconds: float = PATIENCE) -> object:
    return await until(look, "it", seconds=seconds, every=0.0, despite=despite)


async def _blocking(look: Callable[[], object], *despite: type[Exception], seconds: float = PATIENCE) -> object:
    return blocking_until(look, "it", seconds=seconds, every=0.0, despite=despite)


@pytest.mark.parametrize("wait", [_waiting, _blocking])
async def test_until_it_is_so(wait: Callable[..., Awaitable[object]]) -> None:
    """The wait returns the first true answer, ignores the listed errors and raises others."""
    assert await wait(looking(0, None, 3)) == 3
    assert await wait(looking(OSError("away"), "here"), OSError) == "here"
    with pytest.raises(ValueError, match="wrong"):
        await wait(looking(ValueError("wrong")), OSError)


@pytest.mark.parametrize("wait", [_waiting, _blocking])
async def test_in_vain(wait: Callable[..., Awaitable[object]]) -> None:
    """A wait that ends in vain says what it waited for, with the last error as its cause."""
    with pytest.raises(AssertionError, match=r"waited 0\.05 s for it") as failed:
        await wait(looking(OSError("away")), OSError, seconds=0.05)
    assert str(failed.value.__cause__) == "away"


def test_a_deadline_is_later_on_a_machine_that_becomes_busy() -> None:
    """A deadline checks the load again at its end and extends itself if the machine has become busy."""
    loads = iter([1.0, 1e6, 2.0])
    deadline = Deadline(0.01, lambda: next(loads))
    blocking_until(lambda: deadline.left > 1, "a later deadline")
    calm = iter([1.0])
    before = Deadline(PATIENCE, lambda: next(calm))
    assert 0 < before.left <= PATIENCE  # the load is read once
    over = Deadline(0.01, lambda: 1.0)
    blocking_until(lambda: over.left <= 0, "the end")


async def test_looks_that_are_awaited() -> None:
    """A condition may be awaitable, and one that hangs is cancelled at the deadline."""
    over = asyncio.Event()
    with pytest.raises(AssertionError, match="for it"):
        await until(over.wait, "it", seconds=0.01)
    over.set()
    assert await until(over.wait, "it") is True


async def test_turns_of_the_loop() -> None:
    """Each turn lets every ready task run one step."""
    steps = []

    async def stepping() -> None:
        while True:
            steps.append(1)
            await turns()

    task = asyncio.create_task(stepping())
    await turns(4)
    assert len(steps) == 4
    task.cancel()
