"""How often somebody may be wrong about the admin token.

Law: :data:`MOST` wrong tokens from one address within :data:`WINDOW`, then the next ones are neither answered as such
nor logged until that time is over. Whoever has the right one is let in all the same: behind a proxy all have one
address, and nobody may lock the operators out. What is remembered is bounded: beyond :data:`ADDRESSES` the oldest is
forgotten.

Pure, but for what it remembers: the clock is an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MOST: Final = 30
WINDOW: Final = 60.0
"""Seconds."""

ADDRESSES: Final = 1000


class Guesses:
    """Wrong tokens by address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Take seconds that only go forward."""
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until a wrong token from there is taken for a slip again; 0: it is now."""
        since, count = self._wrong.get(address, (0.0, 0))
        left = since + WINDOW - self._clock()
        return left if count >= MOST and left > 0 else 0.0

    def wrong(self, address: str) -> None:
        """There was one more."""
        since, count = self._wrong.pop(address, (self._clock(), 0))
        if self._clock() - since >= WINDOW:
            since, count = self._clock(), 0
        self._wrong[address] = (since, count + 1)
        while len(self._wrong) > ADDRESSES:
            self._wrong.popitem(last=False)
