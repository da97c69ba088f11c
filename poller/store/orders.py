"""What an operator asks of a feed while the daemon runs: written beside its state, carried out by its next round.

An order is a field of the feed's state. It needs no lease, for it changes nothing by itself; the round that carries it
out deletes it in the same commit as its result, and only if it was there when that round began.
"""

from __future__ import annotations

from enum import Enum

from redis.asyncio import Redis

from poller.store.connection import translated
from poller.store.keys import FeedKeys
from poller.store.scripts import ORDER
from poller.store.state import HELD, RELEASED, RESYNC


class Order(Enum):
    """What may be asked; the value is the field that says so and the field that must be there for it to make sense."""

    RELEASE = (RELEASED, HELD)
    RESYNC = (RESYNC, "generation")
    ANEW = ("anew", "generation")


async def give(client: Redis, keys: FeedKeys, order: Order) -> bool:
    """Leave an order for a feed. False: it makes no sense (nothing is held, or the feed was never read).

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        return bool(await client.eval(ORDER, 1, keys.state, *order.value))


async def stands(client: Redis, keys: FeedKeys, order: Order) -> bool:
    """Whether no round has carried it out yet.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        return bool(await client.hexists(keys.state, order.value[0]))
