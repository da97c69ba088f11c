"""What is asked for once more: deliveries that others have parked, and replays. Looked for only when somebody says so.

The law: what is known here already is not taken up a second time. A store that is away for a moment costs nothing; it
is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from datetime import datetime
from typing import Final, Protocol

import structlog

from poller.delivery.books import Books
from poller.delivery.kept import Delivery, deliveries_of
from poller.errors import StoreError, StoreUnavailable
from poller.store.replays import ReplaySpan

_PAUSE: Final = 1.0  # seconds before a store that failed is asked again

_log = structlog.get_logger("poller.delivery")


class Asked(Protocol):
    """Where it stands; see :class:`poller.store.deliveries.PairStore`."""

    async def parked(self) -> Mapping[str, bytes]:
        """The deliveries that wait."""
        ...

    async def parked_besides(self, known: Container[str]) -> Mapping[str, bytes]:
        """Those of them that are not known."""
        ...

    async def replay(self) -> ReplaySpan | None:
        """What is to be delivered once more."""
        ...

    async def past(self, span: ReplaySpan, *, most: int) -> Sequence[tuple[str, bytes]]:
        """The first entries of it."""
        ...


class OnceMore:
    """That of one run of a pair."""

    def __init__(
        self,
        books: Books,
        store: Asked,
        *,
        window: int,
        where: Mapping[str, str],
        now: Callable[[], datetime],
        clock: Callable[[], float],
    ) -> None:
        """Nothing is known to be asked for.

        Args:
            books: take it up.
            store: of the pair.
            window: how many entries of a replay are read at once, and are here at most.
            where: feed and subscription, for the log.
            now: the store's clock, UTC.
            clock: seconds that only go forward; the loop's.
        """
        self._books = books
        self._store = store
        self._window = window
        self._where = where
        self._now = now
        self._clock = clock
        self._asked = False
        self._not_before = clock()

    def ask(self) -> None:
        """Somebody has parked deliveries, or asked for a replay."""
        self._asked = True

    @property
    def next_moment(self) -> float | None:
        """When to ask again after a failure; None where nothing has failed, or it is over."""
        return self._not_before if self._not_before > self._clock() else None

    async def load(self) -> None:
        """All that waits, at the beginning.

        Raises:
            StoreError: it cannot be read.
        """
        self._books.restore(_read(await self._store.parked()), now=self._now(), clock=self._clock())
        await self._follow()

    async def look(self) -> None:
        """What others have parked meanwhile, if somebody said so.

        Raises:
            StoreError: it cannot be read.
        """
        if not self._asked or self.next_moment is not None:
            return
        self._asked = False
        try:
            kept = _read(await self._store.parked_besides(self._books.known))
            self._books.join(kept, now=self._now(), clock=self._clock())
            await self._follow()
        except StoreUnavailable as error:
            self._asked = True
            self._failed(error)

    async def read(self) -> bool:
        """The next events of a replay, where there is one, and room for them; whether there were any.

        Raises:
            StoreRefused: the store does not do what it is asked.
        """
        span = self._books.replay.wants(self._window)
        if span is None or self.next_moment is not None:
            return False
        try:
            entries = await self._store.past(span, most=self._window)
        except StoreUnavailable as error:
            self._failed(error)
            return False
        self._books.replay.took(entries, most=self._window)
        self._books.take_again(entries)
        return True

    async def _follow(self) -> None:
        self._books.replay = self._books.replay.follows(await self._store.replay())

    def _failed(self, error: StoreUnavailable) -> None:
        _log.debug("not looked for what is asked for once more", **self._where, error=str(error))
        self._not_before = self._clock() + _PAUSE


def _read(parked: Mapping[str, bytes]) -> Mapping[str, Delivery]:
    try:
        return deliveries_of(parked)
    except ValueError as error:  # another version's; to go on without would break the order of a record
        raise StoreError(f"what waits for its next attempt cannot be read: {error}") from None
