"""How fast and how many at once, where that may change while somebody waits for a turn.

A process has a part of what a source or a sink allows, and its part is another one whenever the work is shared out
anew.

Law: after a change nothing starts faster than the new bound says, whoever has waited since before it; what is under way
then may end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from fractions import Fraction
from typing import Final

from aiolimiter import AsyncLimiter

WHOLE: Final = Fraction(1)


class Pace:
    """So many starts in a second, evenly spaced."""

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


class Slots:
    """So many at once, first come, first served. An async context manager: a slot for the time of the block."""

    def __init__(self, most: int) -> None:
        """``most``: how many at once."""
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
    """A part of so many, rounded down, though one at least."""
    return max(1, int(count * part))
