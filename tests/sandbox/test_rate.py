"""Laws of :mod:`poller.sandbox.rate`, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.sandbox.rate import repeat


class Enough(Exception):
    """Ends an endless loop."""


class Clock:
    """Time passes only in ``sleep``, each time longer than asked by the next of ``overruns``."""

    def __init__(self, overruns: list[float]) -> None:
        self.now = 1000.0
        self.overruns = overruns

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if not self.overruns:
            raise Enough
        self.now += seconds + self.overruns.pop(0)


def run(clock: Clock, per_second: float) -> list[float]:
    done: list[float] = []
    with pytest.raises(Enough):
        asyncio.run(repeat(lambda: done.append(clock.now), per_second=per_second, clock=clock.time, sleep=clock.sleep))
    return done


@given(st.lists(st.floats(0, 0.5), max_size=30), st.floats(0.1, 300))
def test_each_is_done_when_due(overruns: list[float], rate: float) -> None:
    """However late the loop comes round, what was due by then is done, never earlier and none left out."""
    clock = Clock(overruns)
    done = run(clock, rate)
    elapsed = clock.now - 1000
    assert len(done) == pytest.approx(elapsed * rate, abs=1.001)
    for number, when in enumerate(done, start=1):
        assert (when - 1000) * rate >= number - 1e-6


def test_they_are_evenly_spaced() -> None:
    """On a punctual loop there is one every 1 / rate seconds."""
    done = run(Clock([0.0] * 8), 4)
    assert [later - earlier for earlier, later in pairwise(done)] == [0.25] * 7


def test_a_long_absence_is_caught_up_in_portions() -> None:
    """After a long absence other work gets its turn between portions, and the count is right in the end."""
    clock = Clock([10.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    done = run(clock, 100)
    assert len(done) >= 1000
    assert clock.now == pytest.approx(1010.0, abs=0.05)


async def test_no_rate_does_nothing() -> None:
    """At a rate of zero it returns without acting."""
    await repeat(lambda: pytest.fail("acted"), per_second=0)
