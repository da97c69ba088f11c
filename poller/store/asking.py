"""What was asked of a feed and is not answered yet, and the answers: how a command and a daemon speak to each other.

The order itself stands beside the feed's state (:mod:`poller.store.orders`, :mod:`poller.store.pauses`) and holds
without anything of this. Here is who waits for it: any process that polls the feed finds it, carries it out, and says
so. One that dies in between leaves it to whoever takes the feed after it.

Law: an order that was asked is answered for good once; until then it is found again.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, cast

import msgspec
from redis.asyncio import Redis

from poller.store.connection import translated
from poller.store.keys import FeedKeys, answer_key, orders_key
from poller.store.orders import Order, stands

KEPT: Final = timedelta(hours=1)
"""For how long an order waits for somebody who carries it out, and an answer for somebody who reads it."""

# KEYS: orders, answer. ARGV: the order's id, the answer, for how many ms it is kept, '1' where it is the last one.
# Answers 1 where the order was waiting.
_ANSWER: Final = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
if ARGV[4] == '1' then redis.call('HDEL', KEYS[1], ARGV[1]) end
return 1
"""


# KEYS: orders, answer. ARGV: the order's id. Answers 1 where nobody is at it, and it waits no more.
_FORGET: Final = """
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
"""


class AskedOrder(msgspec.Struct, frozen=True):
    """An order that waits for its answer.

    Attributes:
        id: drawn by whoever asks.
        feed: ``SOURCE/NAME``.
        order: which one; a word of :class:`poller.service.ordering.Order`.
        at: when it was asked, UTC.
    """

    id: str
    feed: str
    order: str
    at: datetime


class OrderAnswer(msgspec.Struct, frozen=True):
    """What the process says that has the feed.

    Attributes:
        member: its name.
        done: whether nothing more will be said.
        text: in words.
        round: the round that carried it out, as ``poller once --json`` prints it; None where there was none.
    """

    member: str
    done: bool
    text: str
    round: dict[str, str | int | float | bool | None] | None = None


class Asking:
    """The orders of one store that wait. Each method may raise StoreError."""

    def __init__(self, client: Redis, prefix: str) -> None:
        """Take where they are."""
        self._client = client
        self._prefix = prefix
        self._key = orders_key(prefix)

    async def ask(self, order: AskedOrder) -> None:
        """Let it be found."""
        with translated(self._client):
            await self._client.hset(self._key, order.id, msgspec.json.encode(order))

    async def waiting(self) -> list[AskedOrder]:
        """All that wait; what another version wrote in another form waits for that one."""
        with translated(self._client):
            kept = cast("dict[bytes, bytes]", await self._client.hgetall(self._key))
        return [order for order in map(_order, kept.values()) if order is not None]

    async def stands(self, order: AskedOrder) -> bool:
        """Whether it is one for a round, and no round has carried it out yet."""
        kind = Order.__members__.get(order.order.upper())
        return kind is not None and await stands(self._client, FeedKeys.of(self._prefix, order.feed), kind)

    async def paused(self, order: AskedOrder) -> bool:
        """Whether its feed is."""
        with translated(self._client):
            return bool(await self._client.exists(FeedKeys.of(self._prefix, order.feed).pause))

    async def keep(self, order: AskedOrder) -> None:
        """Somebody is at it still: what was said of it stays, and it is not forgotten."""
        with translated(self._client):
            await self._client.pexpire(answer_key(self._prefix, order.id), KEPT)

    async def forget(self, order: AskedOrder) -> bool:
        """Let it wait no more, unless somebody is at it; whether it does not."""
        with translated(self._client):
            keys = (self._key, answer_key(self._prefix, order.id))
            return bool(await self._client.eval(_FORGET, 2, *keys, order.id))

    async def answer(self, order: AskedOrder, said: OrderAnswer) -> None:
        """Say it to whoever waits; to nobody, where it was answered for good."""
        kept_ms, last = int(KEPT.total_seconds() * 1000), "1" if said.done else ""
        keys = (self._key, answer_key(self._prefix, order.id))
        with translated(self._client):
            await self._client.eval(_ANSWER, 2, *keys, order.id, msgspec.json.encode(said), kept_ms, last)

    async def answered(self, order: AskedOrder) -> OrderAnswer | None:
        """What was said last; None: nothing yet."""
        with translated(self._client):
            said = await self._client.get(answer_key(self._prefix, order.id))
        try:
            return msgspec.json.decode(said, type=OrderAnswer) if said else None
        except msgspec.MsgspecError:
            return None


def _order(kept: bytes) -> AskedOrder | None:
    try:
        return msgspec.json.decode(kept, type=AskedOrder)
    except msgspec.MsgspecError:
        return None
