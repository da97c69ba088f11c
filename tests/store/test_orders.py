"""Orders are left for the next round, where they make sense."""

from __future__ import annotations

from typing import cast

from redis.asyncio import Redis

from poller.store.keys import FeedKeys
from poller.store.orders import Order, give
from poller.store.state import FeedState, state_of

KEYS = FeedKeys.of("poller", "acme/contractTypes")


async def state(client: Redis) -> FeedState:
    return state_of(cast("dict[bytes, bytes]", await client.hgetall(KEYS.state)))


async def test_only_what_is_held_can_be_released(store_client: Redis) -> None:
    """Law: releasing a feed that holds nothing says so and leaves nothing that would let a later fault through."""
    assert not await give(store_client, KEYS, Order.RELEASE)
    await store_client.hset(KEYS.state, "generation", "g")
    assert not await give(store_client, KEYS, Order.RELEASE)
    assert not (await state(store_client)).released
    await store_client.hset(KEYS.state, "held", "2 of 2 are missing")
    assert await give(store_client, KEYS, Order.RELEASE)
    assert (await state(store_client)).released


async def test_a_feed_that_was_read_can_be_read_again(store_client: Redis) -> None:
    """Law: a resync is asked of a feed that exists; one that does not is not made to."""
    assert not await give(store_client, KEYS, Order.RESYNC)
    assert not await store_client.exists(KEYS.state)
    await store_client.hset(KEYS.state, "generation", "g")
    assert not await give(store_client, FeedKeys.of("poller", "acme/other"), Order.ANEW)
    assert await give(store_client, KEYS, Order.RESYNC)
    assert (await state(store_client)).resync
