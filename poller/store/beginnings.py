"""Where a pair begins that nothing is known of, and which baselines tell it something.

Law: a subscription that was delivered before its feed was lost gets everything that was published since, but for the
baseline that the loss led to: that would tell it what it was told before. Who comes new gets what every new one gets.

What a lost pair looks like: its feed was begun anew, lately, and its subscription is older than that. A pair that is
there remembers the beginning of its feed that it began with, by name; under another one, it is older. Clocks may be put
back, and much may happen within a millisecond; so places in the stream say what came before and after a beginning.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, cast

import msgspec
from redis.asyncio import Redis

from poller.store.entry_ids import before, place_of
from poller.store.keys import PairKeys
from poller.store.registrations import milliseconds_of
from poller.store.scripts import answered
from poller.store.state import ANEW_AT, BEGUN_AFTER, BEGUN_AT, GENERATION
from poller.store.stream import EARLIEST, last_id

BEGINNING: Final = "beginning"
_OLDER: Final = ""  # than any beginning
_LATELY: Final = 24 * 3600 * 1000  # milliseconds; later a subscription may have been given a feed that it never had

# KEYS: any of the pair's, for it decides which server is asked. Answers the clock of that one in milliseconds.
_NOW: Final = "local time = redis.call('TIME') return time[1] * 1000 + math.floor(time[2] / 1000)"


class _Feed(msgspec.Struct, frozen=True):
    """What a feed's state says of how it began; see :class:`poller.store.state.FeedState`."""

    generation: str
    anew_at: int | None
    begun_at: int | None
    begun_after: str | None

    @property
    def name(self) -> str:
        """Of the beginning. That another's feed is ours from some moment on is one, too."""
        return self.generation if self.anew_at in (None, self.begun_at) else f"{self.generation}@{self.anew_at}"

    @property
    def after(self) -> str | None:
        """The entry after which everything was published since; None where the feed was not begun anew."""
        if self.anew_at is None:
            return None
        return (self.begun_after if self.anew_at == self.begun_at else None) or before(f"{self.anew_at}-0")


class Beginning(msgspec.Struct):
    """What a pair's beginning is told by.

    Attributes:
        client: of the store.
        keys: of the pair.
        events: the key of the feed's stream.
        feed_state: the key of the feed's state; empty where nothing is asked of it.
        since: when the subscription was first known, UTC; None: that does not matter.
        asked: since when it wants this feed, in milliseconds of the store's clock; 0: since it is known.
    """

    client: Redis
    keys: PairKeys
    events: str
    feed_state: str = ""
    since: datetime | None = None
    asked: int = 0
    _seen: _Feed | None = None

    async def place(self, start: Literal["now", "earliest"]) -> tuple[str, str]:
        """After which entry the pair begins, and the name of the beginning of its feed that it begins with.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        last = await last_id(self.client, self.events)  # first: what is begun and published meanwhile comes after it
        feed = await self.look()
        if feed is not None and feed.after is not None and feed.anew_at is not None and self._older(feed.anew_at):
            with answered(self.client):
                now = int(await self.client.eval(_NOW, 1, self.keys.state))
            if now - feed.anew_at < _LATELY:
                return min(feed.after, last, key=place_of), _OLDER
        return EARLIEST if start == "earliest" else self._new(last), _OLDER if feed is None else feed.name

    async def look(self) -> _Feed | None:
        """How the feed began that is there now; None where there is none.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        if not self.feed_state:
            return None
        with answered(self.client):
            found = await self.client.hmget(self.feed_state, [GENERATION, ANEW_AT, BEGUN_AT, BEGUN_AFTER])
        generation, anew, begun, after = (None if value is None else value.decode() for value in _bytes(found))
        if generation is None:
            return None
        self._seen = _Feed(generation, int(anew) if anew else None, int(begun) if begun else None, after)
        return self._seen

    async def anew(self) -> str | None:
        """The entry after which the feed was begun anew, if the pair is older than that.

        Of a feed that was lost again and is not begun yet, what was seen of it last counts.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        feed = await self.look() or self._seen
        if feed is None or feed.anew_at is None:
            return None
        with answered(self.client):
            began = cast("bytes | None", await self.client.hget(self.keys.state, BEGINNING))
        older = self._older(feed.anew_at) if began is None else began.decode() != feed.name
        return feed.after if older else None

    def _new(self, last: str) -> str:
        """After what was there when it was asked for: it may be long until somebody delivers."""
        # Where the server's clock was put back since, the last entry counts: a moment to come would pass over events.
        return before(f"{self.asked}-0") if 0 < self.asked <= place_of(last)[0] else last

    def _older(self, moment: int) -> bool:
        """Whether the subscription wanted the feed before that, by the store's clock where it is known."""
        wanted = self.asked or (milliseconds_of(self.since) if self.since else None)
        return wanted is not None and wanted < moment


def _bytes(found: object) -> list[bytes | None]:
    """What HMGET answers, as the client is set up."""
    return cast("list[bytes | None]", found)
