"""The clocks of a simulated host, and what libraries are told of the system.

**Invariants**

- The program takes its time from its :class:`poller.clock.Clock`, and a host's is a :class:`SimulatedClock`.
- Libraries that read the system's clock themselves get the clock of the host whose code runs, by
  :func:`system_of_hosts`; code of no host sees the true time of the simulation. The program's own modules are left
  alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from poller.clock import Clock

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop


class SimulatedClock(Clock):
    """The clock of one host.

    Attributes:
        skew: how far the wall clock is ahead of the true time.
        drift: seconds that both clocks gain in a second.
    """

    def __init__(
        self, loop: SimulatedLoop, random: Random, *, skew: timedelta = timedelta(0), drift: float = 0.0
    ) -> None:
        """Begin now: the monotonic clock stands at some hours, as on a machine that was switched on before."""
        self.random = random
        self.skew = skew
        self.drift = drift
        self._loop = loop
        self._began = loop.time()
        self._monotonic = 1000.0 + random.random() * 100_000

    def now(self) -> datetime:
        """The wall clock, UTC."""
        return self._loop.true_time() + self.skew + timedelta(seconds=(self._loop.time() - self._began) * self.drift)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return self._monotonic + (self._loop.time() - self._began) * (1 + self.drift)

    def jump(self, by: timedelta) -> None:
        """Set the wall clock forward or back."""
        self.skew += by

    def aligned(self, seconds: float) -> float:
        """As many seconds as are given: hosts do not wake at the same moments."""
        return seconds

    async def sleep(self, seconds: float) -> None:
        """Wait for this many seconds of this clock."""
        await asyncio.sleep(seconds / (1 + self.drift))

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for the event, at most this many seconds of this clock."""
        return await super().wait(event, seconds / (1 + self.drift))

    def call_after(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call this function after this many seconds of this clock."""
        return super().call_after(seconds / (1 + self.drift), callback)
