"""Where a pair begins that nothing is known of: on fakeredis, Valkey and Redis."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest
from redis.asyncio import Redis

from poller.store.beginnings import SINCE, Beginning
from poller.store.keys import FeedKeys, PairKeys

FEED = FeedKeys.of("poller", "acme/contractTypes")
PAIR = PairKeys.of("poller", "acme/contractTypes", "a")
NOW = int(time.time() * 1000)
HOUR = 3_600_000


def beginning(client: Redis, *, subscribed: int) -> Beginning:
    since = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=subscribed)
    return Beginning(client, PAIR, FEED.events, FEED.state, since)


@pytest.mark.parametrize("start", ["now", "earliest"])
@pytest.mark.parametrize(
    ("anew", "subscribed", "lost"),
    [
        (None, NOW - HOUR, False),
        (NOW - HOUR, NOW - 2 * HOUR, True),
        (NOW - 2 * HOUR, NOW - HOUR, False),
        (NOW - 48 * HOUR, NOW - 96 * HOUR, False),
    ],
    ids=["never lost", "lost with its feed", "younger than the loss", "long after the loss"],
)
async def test_who_was_lost_with_its_feed_begins_where_that_does(
    store_client: Redis, start: Literal["now", "earliest"], anew: int | None, subscribed: int, *, lost: bool
) -> None:
    """Law: it gets everything of the feed's new beginning; who is new begins where it was asked to."""
    last = (await store_client.xadd(FEED.events, {"data": "{}"})).decode()  # type: ignore[union-attr] # bytes, as the client is set up
    if anew is not None:
        await store_client.hset(FEED.state, mapping={"generation": "g", "anew_at": str(anew)})
    place, since = await beginning(store_client, subscribed=subscribed).place(start)
    if lost and anew is not None:
        assert (place, since) == (f"{anew - 1}-18446744073709551615", 0)
    else:
        assert place == (last if start == "now" else "0-0")
        assert since == (anew or 0)


async def test_a_baseline_is_old_news_to_pairs_that_are_older(store_client: Redis) -> None:
    """Law: what counts is which beginning the pair has seen; where that is not kept, since when its subscription is."""
    one = beginning(store_client, subscribed=NOW - 3 * HOUR)
    assert await one.anew() is None
    await store_client.hset(FEED.state, mapping={"generation": "g", "anew_at": str(NOW)})
    assert await one.anew() == NOW
    await store_client.hset(PAIR.state, SINCE, str(NOW))
    assert await one.anew() is None
    await store_client.hset(PAIR.state, SINCE, str(NOW - 1))
    assert await one.anew() == NOW
    assert await Beginning(store_client, PAIR, FEED.events).anew() is None


async def test_a_feed_begun_anew_in_the_millisecond_in_which_a_pair_began_is_news_to_it(store_client: Redis) -> None:
    """Law: it began first, so its subscription was told before what that beginning tells."""
    old = beginning(store_client, subscribed=NOW - HOUR)
    _, seen = await old.place("earliest")
    await store_client.hset(PAIR.state, SINCE, str(seen))
    seconds, micros = await store_client.time()
    same = int(seconds) * 1000 + int(micros) // 1000
    await store_client.hset(FEED.state, mapping={"generation": "g", "anew_at": str(same)})
    assert await old.anew() == same


async def test_a_feed_that_is_lost_again_leaves_known_that_it_was_begun_anew(store_client: Redis) -> None:
    """Law: entries that were read before the second loss, and are looked at after it, are as old as they were."""
    one = beginning(store_client, subscribed=NOW - HOUR)
    await store_client.hset(FEED.state, mapping={"generation": "g", "anew_at": str(NOW)})
    await one.place("earliest")
    await store_client.delete(FEED.state)
    assert await one.anew() == NOW
    await store_client.hset(FEED.state, "generation", "another's")
    assert await one.anew() is None


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(0, "2000-0"), (500, "499"), (1500, "1499"), (2000, "1999"), (2001, "2000-0")],
    ids=["not known", "before all", "between", "in the last's millisecond", "a clock that was put back"],
)
async def test_what_was_published_since_it_was_asked_for_is_new(store_client: Redis, asked: int, expected: str) -> None:
    """Law: a pair begins with what came after its subscription, and not after whoever delivers it first."""
    for entry in ("1000-0", "2000-0"):
        await store_client.xadd(FEED.events, {"data": "{}"}, id=entry)
    place, _ = await Beginning(store_client, PAIR, FEED.events, FEED.state, asked=asked).place("now")
    assert place == (expected if "-" in expected else f"{expected}-18446744073709551615")
    assert (await Beginning(store_client, PAIR, FEED.events, asked=asked).place("earliest"))[0] == "0-0"
