"""Reading a subscription's entries: first what the group holds for us already, then what is new.

The law: whatever the store has handed out arrives. A reply that is lost may have held entries, which the group keeps
for us from then on; so after any failure the group is asked for what it holds before anything new. A group that is gone
is made again, and what comes once more is marked as known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol

import structlog

from poller.errors import GroupGone, StoreUnavailable
from poller.store.deliveries import Entry
from poller.store.entry_ids import place_of

_PAUSE: Final = 1.0  # seconds before a store that failed is asked again

_log = structlog.get_logger("poller.delivery")


class Entries(Protocol):
    """Where they come from; see :class:`poller.store.deliveries.PairStore`."""

    async def open(self, start: Literal["now", "earliest"]) -> None:
        """See to it that the group is there."""
        ...

    async def pending(self, after: str, *, most: int) -> list[Entry]:
        """Entries that the group holds."""
        ...

    async def read(self, *, most: int) -> list[Entry]:
        """Entries that nobody has read yet."""
        ...


class Intake:
    """The reading of one pair, from the moment on that its lease was taken."""

    def __init__(
        self, store: Entries, start: Literal["now", "earliest"], *, feed: str, clock: Callable[[], float]
    ) -> None:
        """Nothing is read yet.

        Args:
            store: of the pair.
            start: where a new group begins.
            feed: for the log.
            clock: seconds that only go forward.
        """
        self.known_to = ""
        self._store = store
        self._start = start
        self._feed = feed
        self._clock = clock
        self._opened = False
        self._unread = True
        self._held_after: str | None = "0"
        self._last = ""
        self._not_before = clock()

    def news(self) -> None:
        """There is something in the stream that was not there before."""
        self._unread = True

    @property
    def next_moment(self) -> float | None:
        """When to read again after a failure; None where nothing has failed, or it is over."""
        return self._not_before if self._unread and self._not_before > self._clock() else None

    @property
    def wanted(self) -> bool:
        """Whether there may be something to read."""
        return self._unread and self._clock() >= self._not_before

    async def read(self, most: int) -> Sequence[Entry]:
        """Some entries, in the order of the stream; those up to ``known_to`` have been given out before.

        A store that is away gives none; it is asked again a moment later.

        Raises:
            Fenced: the lease is another's.
            StoreRefused: the store does not do what it is asked.
        """
        self._unread = False  # what is told while the store answers counts
        try:
            entries = await self._some(most)
        except GroupGone as error:
            _log.warning("the consumer group is made again", feed=self._feed, error=str(error))
            self.known_to = self._last
            self._opened, self._held_after, self._unread = False, "0", True
            return ()
        except StoreUnavailable as error:
            _log.debug("not reading", feed=self._feed, error=str(error))  # the lease is lost soon, which is told
            self._held_after = "0" if self.known_to else self._last or "0"
            self._not_before, self._unread = self._clock() + _PAUSE, True
            return ()
        if entries:
            last = entries[-1][0]
            self._last = last if not self._last else max(self._last, last, key=place_of)
        return entries

    async def _some(self, most: int) -> list[Entry]:
        if not self._opened:
            await self._store.open(self._start)
            self._opened = True
        if self._held_after is not None:
            entries = await self._store.pending(self._held_after, most=most)
            self._held_after = entries[-1][0] if entries else None
            if entries:
                self._unread = True
                return entries
        entries = await self._store.read(most=most)
        if len(entries) == most:
            self._unread = True
        return entries
