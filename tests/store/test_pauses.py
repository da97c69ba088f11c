"""Laws of :mod:`poller.store.pauses`: a paused feed is begun by nobody, and stays what it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from redis.asyncio import Redis

from poller.store.feed import FeedStore
from poller.store.keys import FeedKeys
from poller.store.orders import Order, give
from poller.store.pauses import Pause, pause, pause_of, resume
from poller.store.scripts import Scripts
from poller.store.state import FeedState

KEYS = FeedKeys.of("poller", "acme/contractTypes")
WANTED = Pause("anna on desk", "moving house", datetime(2026, 3, 2, 8, 15, tzinfo=UTC))


@pytest.fixture
def store(store_client: Redis) -> FeedStore:
    numbers = count()
    return FeedStore(
        store_client,
        Scripts(store_client),
        KEYS,
        nonce="me/1",
        lease=timedelta(seconds=60),
        draw=lambda: f"g{next(numbers)}",
        now_ms=lambda: 1_000,
    )


async def test_a_paused_feed_is_begun_by_nobody(store_client: Redis, store: FeedStore) -> None:
    """Law: who would begin a round is told of the pause, takes no lease and makes no state; resumed, it begins."""
    assert await pause(store_client, KEYS, WANTED) is None
    assert await store.begin() == WANTED
    assert not store.held
    assert not await store_client.exists(KEYS.lease, KEYS.state)
    assert await resume(store_client, KEYS) == WANTED
    assert isinstance(await store.begin(), FeedState)
    assert store.held


async def test_who_has_the_lease_keeps_it(store_client: Redis, store: FeedStore) -> None:
    """Law: a pause takes no lease away, so what is done under it, such as retention, goes on."""
    assert await store.take() is None
    await pause(store_client, KEYS, WANTED)
    assert await store.begin() == WANTED
    assert store.held
    assert await store_client.get(KEYS.lease) == b"me/1"


async def test_the_first_pause_counts(store_client: Redis) -> None:
    """Law: pausing what is paused changes nothing and tells the pause that it is in; so does resuming what is not."""
    await pause(store_client, KEYS, WANTED)
    assert await pause(store_client, KEYS, Pause("another", "", WANTED.at)) == WANTED
    assert await resume(store_client, KEYS) == WANTED
    assert await resume(store_client, KEYS) is None


async def test_a_feed_that_is_begun_anew_stays_paused(store_client: Redis, store: FeedStore) -> None:
    """Law: no order of another kind ends a pause, not even one that forgets all that is known."""
    await store.begin()
    await pause(store_client, KEYS, WANTED)
    assert await give(store_client, KEYS, Order.ANEW)
    assert await store.begin() == WANTED


@pytest.mark.parametrize("kept", [b"", b"1", b'{"by":7}', b"\xff"])
def test_what_another_version_wrote_is_a_pause(kept: bytes) -> None:
    """Law: whatever stands in the key, the feed is paused, and that can be told."""
    assert pause_of(kept).text.startswith("paused by another version")


def test_the_text_is_one_line() -> None:
    """Law: foreign words steer no terminal and break no log."""
    assert "\n" not in Pause("a\nb", "x\x1b[31m\ny", WANTED.at).text
    assert WANTED.text == "paused by anna on desk since 2026-03-02 08:15 UTC: moving house"
