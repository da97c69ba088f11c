"""How often somebody may be wrong about the admin token.

Law: :data:`MOST` wrong tokens from one address within :data:`WINDOW`, then none is looked at any more, right or wrong,
until that time is over. What is remembered is bounded: beyond :data:`ADDRESSES` the oldest is forgotten.

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
        """Seconds until a token from there is looked at; 0: it is now."""
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
