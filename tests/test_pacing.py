"""Laws of :mod:`poller.pacing`: bounds that change hold for those, too, who have waited since before."""

from __future__ import annotations

import asyncio
from fractions import Fraction

from poller.pacing import Pace, Slots, part_of
from poller.stopping import ended
from tests.harness.waiting import turns

HALF = Fraction(1, 2)


async def starting(pace: Pace, count: int) -> float:
    """Seconds from the first to the last of so many starts, all waited for at once."""
    clock, starts = asyncio.get_running_loop().time, list[float]()

    async def one() -> None:
        await pace.turn()
        starts.append(clock())

    await asyncio.gather(*(one() for _ in range(count)))
    return max(starts) - min(starts)


async def test_a_part_of_the_rate() -> None:
    """Law: n starts take n - 1 of the longer intervals, by the loop's clock; without a rate nobody waits."""
    pace = Pace(100)
    pace.change(HALF)
    assert await starting(pace, 5) >= 4 / 50 - 0.01
    free = Pace(None)
    free.change(HALF)
    await starting(free, 100)


async def test_who_waits_keeps_to_the_new_rate() -> None:
    """Law: those that have waited since before the change are no faster than those that come after it."""
    pace = Pace(1000)
    waiting = asyncio.create_task(starting(pace, 6))
    await turns(3)  # the first has started, the others wait
    pace.change(Fraction(1, 20))
    assert await waiting >= 4 / 50 - 0.01


class Held:
    """Some who hold a slot until they are let go."""

    def __init__(self, slots: Slots, count: int) -> None:
        self.inside = 0
        self._slots = slots
        self._let_go = [asyncio.Event() for _ in range(count)]
        self.tasks = [asyncio.create_task(self._hold(event)) for event in self._let_go]

    async def _hold(self, event: asyncio.Event) -> None:
        async with self._slots:
            self.inside += 1
            await event.wait()
            self.inside -= 1

    async def go(self, *numbers: int) -> int:
        """Let these go; how many are inside then."""
        for number in numbers:
            self._let_go[number].set()
        await turns(8)
        return self.inside


async def test_so_many_at_once_and_fewer_after_a_change() -> None:
    """Law: first come, first served; after a change nobody enters until there are fewer inside than it says."""
    slots = Slots(4)
    held = Held(slots, 8)
    assert await held.go() == 4
    slots.change(HALF)
    assert await held.go() == 4
    assert await held.go(0, 1) == 2
    assert await held.go(2) == 2
    slots.change(Fraction(1))
    assert await held.go() == 4
    assert await held.go(3, 4, 5, 6, 7) == 0


async def test_who_gives_up_waiting_takes_no_slot() -> None:
    """Law: cancelled while it waits, or in the instant in which its turn came, it leaves the slot to the next."""
    slots = Slots(1)
    held = Held(slots, 4)
    await held.go()
    await ended(held.tasks[1])
    held._let_go[0].set()
    await turns()  # the first is about to leave: the turn of the next comes in the same breath
    held.tasks[2].cancel()
    assert await held.go() == 1
    assert await held.go(3) == 0


def test_one_at_least() -> None:
    """Law: a part is rounded down, and is never nothing."""
    assert [part_of(8, Fraction(part, 10)) for part in (1, 2, 5, 10)] == [1, 1, 4, 8]
