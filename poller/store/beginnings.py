"""Where a pair begins that nothing is known of, and since when it is there: is it new, or was it lost with its feed?

Law: a subscription that was delivered before its feed was lost gets everything that was published since, but for the
baseline that the loss led to: that would tell it what it was told before. Who comes new gets what every new one gets.

What a lost pair looks like: its feed was begun anew, lately, and its subscription is older than that. What a pair that
is there has seen: it remembers which beginning of its feed was the last when it began itself; any other came later. No
clock tells that, for both may happen within a millisecond.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, cast

import msgspec
from redis.asyncio import Redis

from poller.store.keys import PairKeys
from poller.store.losses import LATELY
from poller.store.registrations import milliseconds_of
from poller.store.scripts import answered
from poller.store.state import ANEW_AT, GENERATION
from poller.store.stream import EARLIEST, last_id

SINCE: Final = "since"
_HIGHEST: Final = 2**64 - 1  # the second number of an entry's id

# KEYS: any of the pair's, for it decides which server is asked. Answers the clock of that one in milliseconds.
_NOW: Final = "local time = redis.call('TIME') return time[1] * 1000 + math.floor(time[2] / 1000)"


class Beginning(msgspec.Struct):
    """What a pair's beginning is told by.

    Attributes:
        client: of the store.
        keys: of the pair.
        events: the key of the feed's stream.
        feed_state: the key of the feed's state; empty where nothing is asked of it.
        since: when the subscription was first known, UTC; None: that does not matter.
        asked: since when it wants this feed, in milliseconds of the store's clock; 0: since now.
    """

    client: Redis
    keys: PairKeys
    events: str
    feed_state: str = ""
    since: datetime | None = None
    asked: int = 0
    _last: int | None = None  # when the feed was begun anew, as it was seen last

    async def place(self, start: Literal["now", "earliest"]) -> tuple[str, int]:
        """After which entry the pair begins, and the last beginning of its feed that is not news to it.

        That is when the feed was begun anew, in milliseconds of the server's clock; 0: it never was, or the pair is
        older.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        with answered(self.client):
            now = int(await self.client.eval(_NOW, 1, self.keys.state))
        anew, subscribed = await self._feed_anew(), self._subscribed
        if anew is not None and subscribed is not None and subscribed < anew and now - anew < LATELY:
            return _before(anew), 0
        return EARLIEST if start == "earliest" else await self._new(), anew or 0

    async def anew(self) -> int | None:
        """When the feed was begun anew, if the pair is older than that; milliseconds, as of entries.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        anew = await self._feed_anew()
        if anew is None:
            return None
        with answered(self.client):
            kept = cast("bytes | None", await self.client.hget(self.keys.state, SINCE))
        since = int(kept) if kept is not None else self._subscribed
        return anew if since is not None and since < anew else None

    async def _new(self) -> str:
        """After what was there when it was asked for: it may be long until somebody delivers."""
        last = await last_id(self.client, self.events)
        # Where the server's clock was put back since, the last entry counts: a moment to come would pass over events.
        return _before(self.asked) if 0 < self.asked <= int(last.partition("-")[0]) else last

    @property
    def _subscribed(self) -> int | None:
        return None if self.since is None else milliseconds_of(self.since)

    async def _feed_anew(self) -> int | None:
        """Of a feed that was lost again and is not begun yet, what was known before."""
        if not self.feed_state:
            return None
        with answered(self.client):
            found = await self.client.hmget(self.feed_state, [GENERATION, ANEW_AT])
        generation, anew = cast("list[bytes | None]", found)
        if generation is not None:
            self._last = None if anew is None else int(anew)
        return self._last


def _before(moment: int) -> str:
    """The place before all entries of a millisecond."""
    return f"{moment - 1}-{_HIGHEST}"
