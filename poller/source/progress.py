"""How far a round has come: shown in the feed's state while it runs, and given up when it takes too long.

Invariants:

* A round that ends within :data:`SHOWN_AFTER` seconds writes nothing of it.
* What was read before a round is given up stays committed; the delta token stays where it was.

Time is the monotonic clock's: how long it has lasted so far is kept, and no moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Final

import msgspec

from poller.changes.commit import Tally
from poller.errors import OutOfTime
from poller.store.state import PROGRESS

SHOWN_AFTER: Final = 1.0  # seconds; and between two writes


class Progress(msgspec.Struct, frozen=True):
    """How far a round has come.

    Attributes:
        mode: what kind of reading it is.
        pages: how many were read and committed.
        records: how many these held.
        seconds: for how long it had run then.
    """

    mode: str
    pages: int
    records: int
    seconds: float


class RoundClock:
    """How long a round has run, and may."""

    def __init__(
        self,
        mode: str,
        longest: timedelta,
        tally: Callable[[], Tally],
        write: Callable[[Mapping[str, str | None]], Awaitable[None]],
    ) -> None:
        """Begin to count.

        Args:
            mode: what kind of reading the round is.
            longest: how long it may take.
            tally: what was committed so far.
            write: commits marks of the feed's state.
        """
        self.shown = False
        self._mode = mode
        self._longest = longest
        self._tally = tally
        self._write = write
        self._clock = asyncio.get_running_loop().time
        self._began = self._told = self._clock()

    @property
    def over(self) -> bool:
        """Whether the round has taken as long as it may."""
        return self._clock() - self._began >= self._longest.total_seconds()

    def given_up(self, pages: int) -> OutOfTime:
        """The error of a round that is over before everything was read."""
        return OutOfTime(
            f"the round is given up after {self._longest.total_seconds():g} s (max_round), {pages} pages and "
            f"{self._tally().records} records; what was read is kept; if a whole reading takes longer than that, "
            "make max_round longer"
        )

    async def tell(self, pages: int) -> None:
        """So many pages were read, and there are more.

        Raises:
            StoreError: see :meth:`poller.source.writing.RoundStore.commit`.
        """
        now = self._clock()
        if now - self._told < SHOWN_AFTER:
            return
        self._told, self.shown = now, True
        progress = Progress(self._mode, pages, self._tally().records, round(now - self._began, 3))
        await self._write({PROGRESS: msgspec.json.encode(progress).decode()})


def progress_of(text: str | None) -> Progress | None:
    """What a round has left in the feed's state; None where another version wrote it."""
    try:
        return msgspec.json.decode(text, type=Progress) if text else None
    except msgspec.MsgspecError:
        return None
