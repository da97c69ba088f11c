"""Laws of :mod:`poller.limits`: a changed limit also applies to those already waiting."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from fractions import Fraction
from random import Random

import pytest

from poller.lifecycle import ended
from poller.limits import FIRST_PAUSE, LATER_PAUSE, LONGEST_PAUSE, AdaptiveRate, ConcurrencyLimit, RateLimiter, part_of
from tests.harness.waiting import turns

HALF = Fraction(1, 2)


async def starting(pace: RateLimiter, count: int) -> float:
    """Seconds from the first to the last of this many concurrent starts."""
    clock, starts = asyncio.get_running_loop().time, list[float]()

    async def one() -> None:
        await pace.turn()
        starts.append(clock())

    await asyncio.gather(*(one() for _ in range(count)))
    return max(starts) - min(starts)


async def test_a_part_of_the_rate() -> None:
    """At a fraction of the rate, n starts take n - 1 longer intervals; without a rate none waits."""
    pace = RateLimiter(100)
    pace.change(HALF)
    assert await starting(pace, 5) >= 4 / 50 - 0.01
    free = RateLimiter(None)
    free.change(HALF)
    await starting(free, 100)


async def test_who_waits_keeps_to_the_new_rate() -> None:
    """A start that waited before the change of rate is no faster than one that comes after it."""
    pace, clock, starts = RateLimiter(100), asyncio.get_running_loop().time, list[float]()

    async def one() -> None:
        await pace.turn()
        starts.append(clock())

    waiting = asyncio.gather(*(one() for _ in range(6)))
    await turns(3)
    pace.change(Fraction(1, 4))
    begun = len(starts)  # the first, and on a busy machine some of the others
    await waiting
    later = starts[begun:]
    assert max(later, default=0.0) - min(later, default=0.0) >= (len(later) - 1) / 25 - 0.01


class Held:
    """Tasks that hold a slot until they are released."""

    def __init__(self, slots: ConcurrencyLimit, count: int) -> None:
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
        """Release these; the number of slots then in use."""
        for number in numbers:
            self._let_go[number].set()
        await turns(8)
        return self.inside


async def test_so_many_at_once_and_fewer_after_a_change() -> None:
    """Slots are given in order; after a change none is given until fewer are in use than the new limit."""
    slots = ConcurrencyLimit(4)
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
    """A task cancelled while it waits, or as its turn comes, leaves the slot to the next one."""
    slots = ConcurrencyLimit(1)
    held = Held(slots, 4)
    await held.go()
    await ended(held.tasks[1])
    held._let_go[0].set()
    await turns()  # the first is about to leave, and the next gets its turn in the same step
    held.tasks[2].cancel()
    assert await held.go() == 1
    assert await held.go(3) == 0


async def test_no_more_than_the_bound_whatever_the_part() -> None:
    """A bound holds beside the part of a limit; the smaller one counts, and a greater one serves those that wait."""
    slots = ConcurrencyLimit(8)
    slots.bound(3)
    held = Held(slots, 8)
    assert await held.go() == 3
    slots.change(Fraction(1, 4))
    assert await held.go(0, 1) == 2
    slots.change(Fraction(1))
    assert await held.go() == 3
    slots.bound(8)
    assert await held.go() == 6
    assert await held.go(2, 3, 4, 5, 6, 7) == 0


def test_one_at_least() -> None:
    """A fraction of a limit is rounded down, and is at least one."""
    assert [part_of(8, Fraction(part, 10)) for part in (1, 2, 5, 10)] == [1, 1, 4, 8]


# Laws of :mod:`poller.limits`: simulated sinks with limits, over simulated minutes.

Allows = Callable[[float], bool]


def bucket(rate: float, burst: float) -> Allows:
    """A token bucket: ``rate`` tokens a second, at most ``burst`` saved."""
    tokens, last = burst, 0.0

    def allows(now: float) -> bool:
        nonlocal tokens, last
        tokens, last = min(burst, tokens + (now - last) * rate), now
        if tokens < 1:
            return False
        tokens -= 1
        return True

    return allows


def window(most: int, seconds: float) -> Allows:
    """At most this many in any span of this many seconds."""
    taken: deque[float] = deque()

    def allows(now: float) -> bool:
        while taken and now - taken[0] >= seconds:
            taken.popleft()
        if len(taken) >= most:
            return False
        taken.append(now)
        return True

    return allows


class Scene:
    """A sender with ``concurrency`` requests in flight and more to send than the sink accepts."""

    def __init__(self, allows: Allows, *, seed: int = 1, concurrency: int = 8) -> None:
        self.throttle = AdaptiveRate()
        self.now = 0.0
        self.taken: list[float] = []
        self.refused: list[float] = []
        self.pauses: list[tuple[float, float]] = []
        self._allows = allows
        self._random = Random(seed)
        self._free = concurrency
        self._until = 0.0
        self._flying: list[tuple[float, float, bool]] = []

    def run(self, until: float) -> None:
        while self.now < until:
            while self._flying and self._flying[0][0] <= self.now:
                self._answered(*heapq.heappop(self._flying))
            if self._free and self.now >= self._until and self.throttle.wait(self.now) < 1e-9:
                self.throttle.start(self.now)
                self._free -= 1
                answered = self.now + self._random.uniform(0.002, 0.02)
                heapq.heappush(self._flying, (answered, self.now, self._allows(self.now)))
                continue
            moments = [flying[0] for flying in self._flying[:1]]
            if self.now < self._until:
                moments.append(self._until)
            elif self._free:
                moments.append(self.now + min(self.throttle.wait(self.now), 0.1) + 1e-6)
            self.now = min(moments)

    def _answered(self, at: float, sent: float, taken: bool) -> None:
        self._free += 1
        if taken:
            self.taken.append(at)
            self.throttle.taken(at)
            return
        self.refused.append(at)
        if pause := self.throttle.refused(at, sent=sent):
            self.pauses.append((at, pause))
            self._until = at + pause


LIMITS: dict[str, tuple[float, Callable[[], Allows]]] = {
    "one at a time": (5, lambda: bucket(5, 1)),
    "two saved up": (5, lambda: bucket(5, 2)),
    "a second saved up": (5, lambda: bucket(5, 5)),
    "five seconds saved up": (5, lambda: bucket(5, 25)),
    "five in any second": (5, lambda: window(5, 1)),
    "one a second": (1, lambda: bucket(1, 2)),
    "fifty, a tenth of a second saved up": (50, lambda: bucket(50, 5)),
    "fifty, a second saved up": (50, lambda: bucket(50, 50)),
    "fifty in any second": (50, lambda: window(50, 1)),
    "five hundred": (500, lambda: bucket(500, 500)),
}


@pytest.mark.parametrize(("rate", "made"), LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("seed", range(3))
def test_within_a_minute_a_sink_gets_four_fifths_of_what_it_bears(
    rate: float, made: Callable[[], Allows], seed: int
) -> None:
    """In its first minute a sink gets 80 % of its limit with few refusals and pauses, and more later."""
    scene = Scene(made(), seed=seed)
    scene.run(60)
    assert len(scene.taken) >= 0.8 * 60 * rate
    assert len(scene.refused) <= 40
    assert len(scene.pauses) <= 15
    before = len(scene.taken)
    scene.run(180)
    assert len(scene.taken) - before >= 0.85 * 120 * rate


@pytest.mark.parametrize("first", [2.0, 20.0])
def test_a_sink_that_bears_more_or_less_than_before_is_followed(first: float) -> None:
    """When a sink's limit changes tenfold, it gets at least 80 % of the new limit after a minute."""
    then = {2.0: 20.0, 20.0: 2.0}[first]
    scene = Scene(bucket(first, first))
    scene.run(60)
    scene._allows = bucket(then, then)
    scene._allows(scene.now)
    scene.run(120)
    before = len(scene.taken)
    scene.run(180)
    assert len(scene.taken) - before >= 0.8 * 60 * then


def test_a_sink_that_refuses_everything_is_asked_less_and_less() -> None:
    """Pauses double up to their limit, and after each a single request tries the sink."""
    scene = Scene(lambda _: False)
    scene.run(600)
    assert [pause for _, pause in scene.pauses[:7]] == [FIRST_PAUSE * 2**nth for nth in range(6)] + [LONGEST_PAUSE]
    assert len(scene.refused) <= 8 + len(scene.pauses)
    scene._allows = bucket(5, 5)
    scene._allows(scene.now)
    scene.run(700)
    before = len(scene.taken)
    scene.run(760)
    assert len(scene.taken) - before >= 0.8 * 60 * 5


def test_a_burst_counts_once() -> None:
    """A refusal of a request sent before the rate was halved changes nothing, however late it comes."""
    throttle = AdaptiveRate()
    for moment in range(10):
        throttle.taken(100 + moment / 100)
    assert throttle.rate(100.1) is None
    assert throttle.refused(100.1, sent=100.0) == FIRST_PAUSE
    rate = throttle.rate(101.1)
    assert rate == pytest.approx(5)
    assert [throttle.refused(100.1 + late, sent=100.05) for late in (0, 1, 9)] == [0, 0, 0]
    assert throttle.rate(101.1) == rate


def test_each_refusal_halves_the_rate() -> None:
    """Each refusal halves the rate, and every later pause is short."""
    throttle = AdaptiveRate()
    throttle.refused(0, sent=0)
    now, pauses = 10.0, []
    for _ in range(5):
        throttle.taken(now)
        before = throttle.rate(now)
        pause = throttle.refused(now, sent=now)
        after = throttle.rate(now + pause)
        assert before is not None
        assert after is not None
        assert after <= before / 2 + 1e-9
        pauses.append(pause)
        now += 8
    assert set(pauses) == {LATER_PAUSE}


def test_a_bound_that_is_not_met_for_long_is_dropped() -> None:
    """Without refusals the rate never falls, and after some minutes it is unlimited."""
    throttle = AdaptiveRate()
    throttle.refused(0, sent=0)
    throttle.taken(2)
    throttle.refused(4, sent=3)
    rates = [throttle.rate(moment / 10) for moment in range(45, 3000)]
    known = [rate for rate in rates if rate is not None]
    assert known == sorted(known)
    assert rates[-1] is None
    assert throttle.wait(300) == 0
