"""Where a pair begins that nothing is known of, and what is news to it: on fakeredis, Valkey and Redis."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest
from fakeredis import FakeAsyncRedis
from redis.asyncio import Redis

from poller.store.beginnings import BEGINNING, Beginning
from poller.store.connection import commands
from poller.store.deliveries import PairStore
from poller.store.delivery_scripts import DeliveryScripts
from poller.store.entry_ids import place_of
from poller.store.keys import PairKeys
from poller.store.orders import Order, give
from tests.store.test_feed import KEYS, begun
from tests.store.test_lost_parts import FEED, Process
from tests.stores import flushed

PAIR = PairKeys.of("poller", FEED, "a")
NOW = int(time.time() * 1000)
HOUR = 3_600_000
Start = Literal["now", "earliest"]


@pytest.fixture
async def real(any_store: str) -> AsyncIterator[Redis]:
    """A client of an empty server, of each kind."""
    client = commands(any_store)
    yield client
    await client.aclose()


def beginning(client: Redis, *, subscribed: int, asked: int = 0) -> Beginning:
    return Beginning(client, PAIR, KEYS.events, KEYS.state, moment(subscribed), asked)


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


def pair(client: Redis, *, subscribed: int, asked: int = 0) -> PairStore:
    return PairStore(
        client,
        DeliveryScripts(client, shebang="#!lua\n"),
        PAIR,
        events=KEYS.events,
        subscription="a",
        nonce="n",
        lease=timedelta(seconds=60),
        feed_state=KEYS.state,
        since=moment(subscribed),
        asked=asked,
    )


async def opened(client: Redis, start: Start, *, subscribed: int, asked: int = 0) -> PairStore:
    """A pair that has its lease and its group."""
    found = pair(client, subscribed=subscribed, asked=asked)
    await found.take()
    await found.open(start)
    return found


async def told(found: PairStore) -> int:
    """How many of the entries that the pair reads are news to it; all of them are baselines."""
    entries = await found.read(most=100)
    anew = await found.anew()
    return sum(anew is None or place_of(entry) <= place_of(anew) for entry, _ in entries)


async def set_back(client: Redis, hours: int) -> None:
    """As if the server's clock had been so much ahead when the feed was begun."""
    for name in ("anew_at", "begun_at"):
        await client.hincrby(KEYS.state, name, hours * HOUR)


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
@pytest.mark.parametrize("after", [None, "5-3"], ids=["by an older version", "by this one"])
async def test_who_was_lost_with_its_feed_begins_where_that_does(
    store_client: Redis, start: Start, after: str | None, anew: int | None, subscribed: int, *, lost: bool
) -> None:
    """Law: it gets everything of the feed's new beginning; who is new begins where it was asked to."""
    last = (await store_client.xadd(KEYS.events, {"data": "{}"})).decode()  # type: ignore[union-attr] # bytes, as the client is set up
    begun_at = {} if after is None else {"begun_at": str(anew), "begun_after": after}
    since = {} if anew is None else {"anew_at": str(anew)} | begun_at
    state: Any = {"generation": "g"} | since
    await store_client.hset(KEYS.state, mapping=state)
    found, name = await beginning(store_client, subscribed=subscribed).place(start)
    if lost and anew is not None:
        assert (found, name) == (after or f"{anew - 1}-18446744073709551615", "")
    else:
        assert found == (last if start == "now" else "0-0")
        assert name == ("g" if after or anew is None else f"g@{anew}")


async def test_a_baseline_is_old_news_to_pairs_that_are_older(store_client: Redis) -> None:
    """Law: what counts is the beginning that the pair began with; where that is not kept, its subscription's age."""
    one = beginning(store_client, subscribed=NOW - 3 * HOUR)
    assert await one.anew() is None
    await store_client.hset(
        KEYS.state, mapping={"generation": "g", "anew_at": str(NOW), "begun_at": str(NOW), "begun_after": "7-0"}
    )
    assert await one.anew() == "7-0"
    for name, anew in (("g", None), ("f", "7-0"), ("", "7-0")):
        await store_client.hset(PAIR.state, BEGINNING, name)
        assert await one.anew() == anew
    assert await Beginning(store_client, PAIR, KEYS.events).anew() is None


@pytest.mark.parametrize("hours", [0, -1, 1], ids=["as it was", "an hour ahead", "an hour behind"])
async def test_who_was_there_is_told_no_baseline_of_what_was_begun_anew(real: Redis, hours: int) -> None:
    """Law: whatever the clock says, and however soon after the pair it was."""
    one = Process(real, "a")
    await one.round(1)
    there = await opened(real, "earliest", subscribed=NOW - 3 * HOUR)
    assert await told(there) == 1
    for _ in range(2):
        await give(real, KEYS, Order.ANEW)
        await one.round(1)
        await set_back(real, -hours)
        assert await told(there) == 0


async def test_a_baseline_that_was_not_delivered_yet_is_owed_all_the_same(real: Redis) -> None:
    """Law: a feed begun anew takes nothing back of what was published before; nor where the clock was put back."""
    ahead = NOW + HOUR
    await real.xadd(KEYS.events, {"data": '{"sequence":"00000000000000000000"}'}, id=f"{ahead}-0")
    one = Process(real, "a")
    await one.round(1, 2)
    there = await opened(real, "earliest", subscribed=ahead + HOUR)
    await give(real, KEYS, Order.ANEW)
    await begun(one.store)
    assert await told(there) == 3


async def test_a_pair_that_was_lost_reads_all_since_whatever_the_clock(real: Redis) -> None:
    """Law: its place is one in the stream, so a clock that was put back since hides nothing."""
    one = Process(real, "a")
    await one.round(1)
    await flushed(real)
    await begun(one.store)
    await set_back(real, 1)
    await one.round(1, 2)
    await one.round(1, reason="a change")
    there = await opened(real, "earliest", subscribed=NOW - HOUR)
    assert len(await there.read(most=10)) == 3


async def test_no_place_is_beyond_the_end_of_the_stream(store_client: Redis) -> None:
    """Law: one that was lost by itself since may count from lower ids, where the clock was put back."""
    state = {"generation": "g", "anew_at": str(NOW), "begun_at": str(NOW), "begun_after": f"{NOW}-0"}
    await store_client.hset(KEYS.state, mapping=dict[Any, Any](state))
    await store_client.xadd(KEYS.events, {"data": "{}"}, id="5-0")
    assert (await beginning(store_client, subscribed=NOW - HOUR).place("now"))[0] == "5-0"


async def test_a_pair_that_is_lost_again_before_its_feed_is_begun_misses_nothing(real: Redis) -> None:
    """Law: it begins at the end of what is there, not where an earlier loss was, which may be ahead of the clock."""
    one = Process(real, "a")
    await one.round(1)
    await flushed(real)
    await one.round(1)
    await set_back(real, 1)
    there = await opened(real, "now", subscribed=NOW - HOUR)
    await flushed(real)
    await there.take()
    await there.open("now")
    await one.round(1)
    await one.round(1, reason="a change")
    assert len(await there.read(most=10)) == 2


async def test_what_is_read_before_a_loss_is_as_old_after_it(real: Redis) -> None:
    """Law: also where the group was there before, and so nobody had to ask how the feed began."""
    one = Process(real, "a")
    await one.round(1)
    await (await opened(real, "earliest", subscribed=NOW - HOUR)).release()
    await give(real, KEYS, Order.ANEW)
    await one.round(1)
    there = await opened(real, "earliest", subscribed=NOW - HOUR)
    assert len(await there.read(most=10)) == 2
    await flushed(real)
    assert await there.anew() is not None


async def test_of_another_installations_feed_no_baseline_is_told(real: Redis) -> None:
    """Law: a pair that stands in it is older than the moment from which it is ours."""
    one = Process(real, "a")
    await one.round(1)
    there = await opened(real, "earliest", subscribed=NOW - 3 * HOUR)
    assert await told(there) == 1
    await real.hset(KEYS.state, "anew_at", str(NOW - HOUR))  # as the marks of a replaced feed have it
    assert await there.anew() == f"{NOW - HOUR - 1}-18446744073709551615"


async def test_the_stores_clock_says_who_is_older(store_client: Redis) -> None:
    """Law: where it is known when the feed was asked for; a process' own clock may be far from the store's."""
    await store_client.hset(KEYS.state, mapping={"generation": "g", "anew_at": str(NOW - HOUR)})
    _, name = await beginning(store_client, subscribed=NOW - 2 * HOUR, asked=NOW).place("earliest")
    assert name == f"g@{NOW - HOUR}"
    _, name = await beginning(store_client, subscribed=NOW, asked=NOW - 2 * HOUR).place("earliest")
    assert name == ""


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(0, "2000-0"), (500, "499"), (1500, "1499"), (2000, "1999"), (2001, "2000-0")],
    ids=["not known", "before all", "between", "in the last's millisecond", "a clock that was put back"],
)
async def test_what_was_published_since_it_was_asked_for_is_new(store_client: Redis, asked: int, expected: str) -> None:
    """Law: a pair begins with what came after its subscription, and not after whoever delivers it first."""
    for entry in ("1000-0", "2000-0"):
        await store_client.xadd(KEYS.events, {"data": "{}"}, id=entry)
    place, _ = await Beginning(store_client, PAIR, KEYS.events, KEYS.state, asked=asked).place("now")
    assert place == (expected if "-" in expected else f"{expected}-18446744073709551615")
    assert (await Beginning(store_client, PAIR, KEYS.events, asked=asked).place("earliest"))[0] == "0-0"


class Meanwhile(FakeAsyncRedis):
    """A store in which a feed is begun anew, and publishes, after the first question about the end of its stream."""

    asked = 0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        answer = await super().execute_command(*args, **options)  # type: ignore[no-untyped-call] # redis-py's has no types
        if str(args[0]) in ("HMGET", "XREVRANGE", "XINFO STREAM"):
            self.asked += 1
            if self.asked == 1:
                state = {"generation": "g", "anew_at": str(NOW), "begun_at": str(NOW), "begun_after": "5-0"}
                await self.hset(KEYS.state, mapping=dict[Any, Any](state))
                await self.xadd(KEYS.events, {"data": "{}"}, id="6-0")
        return answer


async def test_a_feed_that_is_begun_while_a_pair_begins_loses_it_nothing() -> None:
    """Law: what is published between the questions for the stream's end and for the feed's beginning comes after it."""
    async with Meanwhile() as client:
        await client.xadd(KEYS.events, {"data": "{}"}, id="5-0")
        found, _ = await beginning(client, subscribed=NOW - HOUR).place("now")
        assert client.asked >= 2
        assert place_of(found) <= (5, 0)
