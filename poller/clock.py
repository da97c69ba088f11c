"""The clock of one process: wall clock, monotonic clock, sleep, random numbers.

**Invariants**

- Long-running code takes one :class:`Clock`; pure functions take moments as values.
- Moments that processes share come from :class:`poller.store.clock.StoreClock`, which is a clock too.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

_QUARTER: Final = 0.25  # seconds
_EARLY: Final = 0.02  # of a second or a quarter; a timer may run a little early and has then reached its moment
_PHASES: Final = 61
_STAYS: Final = 60.0  # seconds
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Clock:
    """The clock of this process.

    Attributes:
        random: the source of all random numbers; fit for secrets.
    """

    def __init__(self) -> None:
        """Use the system's clocks and its source of random numbers."""
        self.random: random.Random = random.SystemRandom()

    _phase = os.getpid() % _PHASES / _PHASES
    _phase_until = -math.inf

    def now(self) -> datetime:
        """The wall clock, UTC."""
        return datetime.now(UTC)

    monotonic = staticmethod(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic
    )
    """Seconds that never go back, and go on while the machine sleeps: leases end meanwhile."""

    async def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for the event, at most this many seconds. True: it is set."""
        try:
            async with asyncio.timeout(seconds):
                return await event.wait()
        except TimeoutError:
            return event.is_set()

    def aligned(self, seconds: float) -> float:
        """At most this many seconds, or 20 ms more: rounded to the end of a second, below one to that of a quarter.

        All regular work then falls on the same moments, and wakes a process at rest rarely. They are those of its
        rounds (:meth:`align`); before the first one, each process of a machine has other moments. Times below a quarter
        of a second stay as they are.
        """
        if seconds < _QUARTER:
            return seconds
        unit = 1.0 if seconds >= 1 else _QUARTER
        now = asyncio.get_running_loop().time() + self._phase
        return math.floor((now + seconds) / unit + _EARLY) * unit - now

    def align(self, late: float) -> None:
        """Let regular work come whole seconds after the moment at which a round was due, ``late`` seconds ago.

        A feed that is polled every second or every few seconds has its rounds there, so the process wakes up once for
        both. Other feeds have theirs elsewhere: a moment stays for a minute, so that regular work stays together.
        """
        moment = asyncio.get_running_loop().time() - late
        if moment >= self._phase_until:
            self._phase, self._phase_until = -moment, moment + _STAYS

    def call_after(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Call this function after this many seconds, perhaps a little earlier, unless the timer is cancelled."""
        return asyncio.get_running_loop().call_later(seconds, callback)


def milliseconds_of(moment: datetime) -> int:
    """Milliseconds since 1970."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def moment_of(milliseconds: int) -> datetime:
    """The moment this many milliseconds after 1970 began, UTC.

    Raises:
        OverflowError: it is beyond the year 9999.
    """
    return _EPOCH + timedelta(milliseconds=milliseconds)


def rfc3339(moment: datetime) -> str:
    """A UTC moment as RFC 3339 with milliseconds, e.g. ``2026-01-31T09:30:00.125Z``."""
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
