"""Limits of rate and concurrency that may change while tasks wait for a turn.

A process has a part of what a source or a sink allows; the part changes whenever leases move.

**Invariants**

- After a change nothing starts faster than the new limit says, however long it has waited; what is under way may end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from fractions import Fraction
from math import exp2, sqrt
from typing import Final

from aiolimiter import AsyncLimiter

WHOLE: Final = Fraction(1)


class RateLimiter:
    """A rate: starts in a second, evenly spaced."""

    def __init__(self, rate: float | None) -> None:
        """``rate``: starts in a second; None for no limit."""
        self._rate = rate
        self._limiter = _limiter(rate, WHOLE)

    def change(self, part: Fraction) -> None:
        """Only this part of the rate from now on."""
        self._limiter = _limiter(self._rate, part)

    async def turn(self) -> None:
        """Wait until one may start."""
        passed = None
        while (limiter := self._limiter) is not None and limiter is not passed:  # else it was changed meanwhile
            await limiter.acquire()
            passed = limiter


def _limiter(rate: float | None, part: Fraction) -> AsyncLimiter | None:
    return AsyncLimiter(1, 1 / (rate * float(part))) if rate else None


class ConcurrencyLimit:
    """A limit on concurrent blocks, first come, first served.

    An async context manager: a slot for the time of the block.
    """

    def __init__(self, most: int) -> None:
        """``most``: how many may run at the same time."""
        self._whole = self._most = most
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def change(self, part: Fraction) -> None:
        """Only this part of them from now on, though one at least."""
        self._most = part_of(self._whole, part)
        self._admit()

    async def __aenter__(self) -> None:
        """Wait for a slot."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            else:
                with suppress(ValueError):
                    self._waiting.remove(turn)
            raise

    async def __aexit__(self, *_: object) -> None:
        """Give it back."""
        self._leave()

    def _leave(self) -> None:
        self._taken -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._taken < self._most:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)


def part_of(count: int, part: Fraction) -> int:
    """A part of a whole, rounded down, though one at least."""
    return max(1, int(count * part))


# The rate that a sink bears, found from ``429`` answers without ``Retry-After``. A refusal halves the rate of requests;
# it rises within seconds to just below the last good rate, and from there slowly.
#
# - Before the first refusal there is no bound. A bound that was not met for long is dropped.
# - A refusal of a request sent before the last halving belongs to the same burst, and changes nothing.
# - A burst pauses the sink once: for :data:`FIRST_PAUSE`, or :data:`LATER_PAUSE` where a bound was known; twice as long
#   each time nothing was taken in between, up to :data:`LONGEST_PAUSE`.
# - After each refusal the rate begins at half of what it was, or below.

FIRST_PAUSE: Final = 1.0
LATER_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 60.0

_LEAST: Final = 0.1  # requests a second
_MEASURED: Final = 1.0  # seconds, before the first refusal, in which what was taken says what the sink bears
_MOST_MEASURED: Final = 256
_RECOVERY: Final = 3.0  # seconds from half of the rate to just below it
_BELOW: Final = 0.97  # of what was borne: where the slow rise begins
_SLOPE: Final = 0.005  # a second
_CURVE: Final = 10.0  # seconds after which the slow rise becomes a fast one
_KEPT: Final = 0.9  # of the rate, at least, where something was taken between two refusals
_LATE: Final = 0.05  # of the time between two requests
_DROPPED: Final = 16.0  # times what was borne
_SEARCHED: Final = 10.0  # doublings


class AdaptiveRate:
    """Of one sink in one process."""

    def __init__(self) -> None:
        """Nothing is known; no bound."""
        self._latest: deque[float] = deque(maxlen=_MOST_MEASURED)
        self._taken = 0  # since the last refusal
        self._borne: float | None = None  # requests a second
        self._searching = False
        self._since = float("-inf")  # when the last refusal was heard
        self._resumed = float("-inf")  # when its pause ended
        self._pause = FIRST_PAUSE
        self._started = float("-inf")  # the last request

    def rate(self, now: float) -> float | None:
        """Requests a second at most; None: no bound."""
        if self._borne is None:
            return None
        seconds = max(now - self._resumed, 0.0)
        if self._searching:
            factor, most = exp2(min(seconds, _SEARCHED) - 1), exp2(_SEARCHED - 1)
        elif seconds < _RECOVERY:
            factor, most = _BELOW - (_BELOW - 0.5) * (1 - seconds / _RECOVERY) ** 3, _DROPPED
        else:
            beyond = seconds - _RECOVERY
            factor, most = _BELOW + _SLOPE * beyond + 0.1 * (beyond / _CURVE) ** 3, _DROPPED
        if factor >= most:
            self._borne = None
            return None
        return self._borne * factor

    def taken(self, now: float) -> None:
        """A request was answered with 2xx."""
        self._taken += 1
        if self._borne is None:
            self._latest.append(now)

    def refused(self, now: float, *, sent: float) -> float:
        """A request that was sent at this moment was refused; the seconds to pause, 0 where its burst has paused."""
        if sent <= self._since:
            return 0.0
        rate = self.rate(now)
        if rate is None:
            borne = max(1.0, sum(now - moment < _MEASURED for moment in self._latest) / _MEASURED)
            self._pause = FIRST_PAUSE
        elif not self._taken:
            borne = rate
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        else:
            # Between two refusals a sink that saves up what is not used has borne the mean, one that does not the rate.
            mean = self._taken / (now - self._since)
            borne = rate if self._searching else max(min(rate, sqrt(rate * mean)), rate * _KEPT)
            self._pause = LATER_PAUSE
        self._searching = rate is None or not self._taken
        self._borne = max(borne, _LEAST)
        self._taken = 0
        self._latest.clear()
        self._since, self._resumed = now, now + self._pause
        return self._pause

    def wait(self, now: float) -> float:
        """Seconds until the next request may start, as far as is known now: the rate may rise meanwhile."""
        rate = self.rate(now)
        return 0.0 if rate is None else max(self._started + 1 / rate - now, 0.0)

    def start(self, now: float) -> None:
        """A request starts."""
        rate = self.rate(now)
        if rate is None:
            self._started = now
            return
        due = self._started + 1 / rate
        self._started = due if now - due < _LATE / rate else now  # timers are a little late, each time
