"""The store's clock as one process knows it: the reference for all shared moments.

Theory of operation
-------------------
The wall clock of a process may be wrong, may jump, and differs from that of the next process. So a moment that is
stored, or compared with one that another process has stored, is the store's (``TIME``). The process keeps how far that
clock is ahead of its own monotonic one; between two replies time passes by the monotonic clock alone.

A reply says that the store read its clock at some moment between the question and the answer. What is known is changed
only where it contradicts that, and by no more than it does: a slow reply makes nothing worse, and a store whose clock
was set, or another primary with another clock, is believed with the first reply.

**Invariants**

- Only :meth:`StoreClock.ask` requests the time alone, once when a store is opened. Later replies come with the members'
  beat, once a second at least.
- Before the first reply the wall clock is used; nothing is stored by it, because no store has answered.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from redis.asyncio import Redis

from poller.clock import Clock
from poller.redis.errors import translated
from poller.store.scripts import lua

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_ASK: Final = lua("read_clock")


class StoreClock(Clock):
    """The clock of one store: its moments, and the rest of this process. Used within one event loop.

    Attributes:
        process: the clock of this process.
    """

    def __init__(self, key: str = "poller", *, process: Clock) -> None:
        """Begin with the wall clock.

        Args:
            key: any of the store's; in a cluster it decides whose clock counts.
            process: the clock of this process.
        """
        self._key = key
        self.process = process
        self.random = process.random
        # Not methods around them: a delivery reads the clock forty times.
        self.monotonic, self.sleep, self.wait = process.monotonic, process.sleep, process.wait  # type: ignore[method-assign] # for its cost
        self.aligned = process.aligned  # type: ignore[method-assign] # a simulated one has no such moments
        self.align = process.align  # type: ignore[method-assign] # it is the process that wakes up
        self.call_after = process.call_after  # type: ignore[method-assign] # likewise
        self._ahead: float | None = None  # seconds since 1970 at the monotonic clock's zero

    def now(self) -> datetime:
        """What the store's clock shows now, UTC; the wall clock's moment while no store has answered."""
        if self._ahead is None:
            return self.process.now()
        return datetime.fromtimestamp(self.monotonic() + self._ahead, UTC)

    def now_ms(self) -> int:
        """The same in milliseconds since 1970."""
        return (self.now() - _EPOCH) // timedelta(milliseconds=1)

    def asked(self) -> float:
        """To be called before a script is sent whose reply has the time in it; see :meth:`learn`."""
        return self.process.monotonic()

    def learn(self, milliseconds: int, *, asked: float) -> None:
        """A reply has come: the store's clock showed this at some moment since ``asked``."""
        least, most = milliseconds / 1000 - self.process.monotonic(), (milliseconds + 1) / 1000 - asked
        ahead = (least + most) / 2 if self._ahead is None else self._ahead
        self._ahead = min(max(ahead, least), most)

    async def ask(self, client: Redis) -> None:
        """Ask for the time alone.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        asked = self.asked()
        with translated(client):
            self.learn(int(await client.eval(_ASK, 1, self._key)), asked=asked)
