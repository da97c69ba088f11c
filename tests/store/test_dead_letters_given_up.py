"""Letters of events: one suite over fakeredis, Valkey and Redis."""

from __future__ import annotations

from redis.asyncio import Redis

from poller.store.dead_letters import (
    MOST_WAITING,
    Moved,
    Owner,
    drop_events,
    entries,
    letters,
    newest_events,
    pairs_of,
    redeliver,
)
from poller.store.keys import ConsumerKeys

FEED = "acme/contractTypes"
PAIRS = pairs_of("poller", [FEED, "acme/achievements"], ["a", "b"])
OWNER = Owner(FEED, "a")
KEYS = PAIRS[OWNER]


async def give_up(client: Redis, *numbers: int, keys: ConsumerKeys = KEYS) -> None:
    for number in numbers:
        await client.hset(keys.letters, f"{number}-0", f"letter {number}")
        await client.zadd(keys.letter_times, {f"{number}-0": number})


async def test_the_newest_of_all(store_client: Redis) -> None:
    """Law: over all pairs the newest are named, the newest last, and all are counted."""
    other = Owner("acme/achievements", "b")
    await give_up(store_client, 1, 3, 5)
    await give_up(store_client, 2, 4, keys=PAIRS[other])
    marks, total = await newest_events(store_client, PAIRS, most=3)
    assert [(mark.at, mark.owner, mark.entry) for mark in marks] == [
        (3, OWNER, "3-0"),
        (4, other, "4-0"),
        (5, OWNER, "5-0"),
    ]
    assert total == 5
    assert await newest_events(store_client, {}, most=3) == ([], 0)


async def test_a_letter_is_moved_once_and_as_it_was_seen(store_client: Redis) -> None:
    """Law: of two that redeliver a letter one moves it; one that has become another letter meanwhile stays."""
    await give_up(store_client, 1)
    seen = {"letter": b"letter 1", "delivery": b"d"}
    assert await redeliver(store_client, KEYS, "1-0", letter=b"another", delivery=b"d") is Moved.ABSENT
    assert not await store_client.exists(KEYS.parked)
    assert await redeliver(store_client, KEYS, "1-0", **seen) is Moved.MOVED
    assert await redeliver(store_client, KEYS, "1-0", **seen) is Moved.ABSENT
    assert await store_client.hgetall(KEYS.parked) == {b"1-0": b"d"}
    assert not await store_client.exists(KEYS.letters, KEYS.letter_times)


async def test_so_many_may_wait(store_client: Redis) -> None:
    """Law: where so many wait already a letter stays where it is, whole."""
    await give_up(store_client, 1)
    await store_client.hset(KEYS.parked, mapping={f"9-{number}": "d" for number in range(MOST_WAITING)})
    assert await redeliver(store_client, KEYS, "1-0", letter=b"letter 1", delivery=b"d") is Moved.FULL
    assert await letters(store_client, [(KEYS, "1-0"), (KEYS, "2-0")]) == [b"letter 1", None]
    assert await entries(store_client, KEYS) == ["1-0"]


async def test_dropped(store_client: Redis) -> None:
    """Law: what is dropped is gone from both places, however many; what is not there is not counted."""
    await give_up(store_client, *range(1200))
    assert await drop_events(store_client, KEYS, [*(await entries(store_client, KEYS))[:1100], "9999-0"]) == 1100
    assert len(await entries(store_client, KEYS)) == await store_client.hlen(KEYS.letters) == 100
    assert await drop_events(store_client, KEYS, []) == 0
