"""The end of a round without news: written if the feed is as the process knows it, on all stores."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from poller.changes.plan import Commit
from poller.clock import Clock, milliseconds_of
from poller.store.commands import FeedPause, RoundRequest, request_round
from poller.store.feed_state import DELTA_TOKEN, ROUND, Forms, IdleStart
from poller.store.keys import FEED_KEYS
from poller.store.recovery import HighWaterMark
from poller.store.snapshots import SAMPLES
from tests.store.records import unavailability
from tests.store.test_feed import KEYS, begun, everything, write
from tests.store.test_lost_parts import Process

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from poller.store.feed import FeedStore

_READ_AT = datetime(2026, 1, 2, tzinfo=UTC)
_CUT_ELSEWHERE = "redis.call('HDEL', KEYS[1], 'zz') return redis.call('HSET', KEYS[1], 'z', 'z9')"


async def started(one: Process) -> IdleStart:
    """What an idle round of a feed with some records starts from."""
    await one.round(*range(SAMPLES))
    await begun(one.store)  # which counts the tombstones, and so changes the state
    counting = one.store.state_digest
    state = await begun(one.store)
    assert (counting, len(one.store.state_digest)) == (b"", 40)
    return IdleStart(
        None, one.store.state_digest, state.generation, state.sequence, "d1", _READ_AT, None, (("limit", "10"),)
    )


def marks(start: IdleStart, **values: str | None) -> Commit:
    return Commit(start.generation, start.sequence, marks={ROUND: "{}", **values})


async def test_the_marks_are_written_and_the_next_one_follows(store_client: Redis) -> None:
    """Law: the marks are set and deleted, the lease is renewed, and the new state is the one that is known."""
    one = Process(store_client, "a")
    start = await started(one)
    await store_client.pexpire(KEYS.lease, 5_000)
    for token in ("d2", "d3"):
        start = msgspec.structs.replace(start, delta_token=token)
        assert await one.store.end_idle_round(start, marks(start, **{DELTA_TOKEN: token, "progress": None}))
        fields: Any = await store_client.hgetall(KEYS.state)
        assert (fields[b"delta_token"], fields[b"round"], b"progress" in fields) == (token.encode(), b"{}", False)
        assert await store_client.pttl(KEYS.lease) > 50_000
        following = one.store.idle_start
        assert following is not None
        assert (following.delta_token, following.digest != start.digest) == (token, True)
        start = following
    state = await begun(one.store)
    assert one.store.state_digest == start.digest  # as the beginning of a round computes it
    assert (state.delta_token, one.store.idle_start) == ("d3", None)


async def _paused(client: Redis) -> None:
    pause = FeedPause(by="op", reason="", at=_READ_AT)
    await client.set(KEYS.pause, msgspec.json.encode(pause))


@pytest.mark.parametrize(
    "meanwhile",
    [
        "another's lease",
        "no lease",
        "a pause",
        "an order",
        "another sequence",
        "another generation",
        "a field more",
        "a field less",
        "values that are swapped",
        "a name that is cut elsewhere",
        "snapshots lost",
        "dictionaries lost",
        "the stream lost",
        "all lost",
    ],
)
async def test_nothing_is_written_where_the_feed_is_another(store_client: Redis, meanwhile: str) -> None:
    """Law: whatever has happened to the feed, nothing is written, and the beginning of a round says what it was."""
    one, client = Process(store_client, "a"), store_client
    start = await started(one)
    await client.hset(KEYS.state, mapping={"x": "1", "y": "2", "zz": "9"})
    await begun(one.store)
    assert await _kept(one.store, msgspec.structs.replace(start, digest=one.store.state_digest))
    start = cast("IdleStart", one.store.idle_start)
    happens: dict[str, Any] = {
        "another's lease": lambda: client.set(KEYS.lease, "b", px=60_000),
        "no lease": lambda: client.delete(KEYS.lease),
        "a pause": lambda: _paused(client),
        "an order": lambda: request_round(client, KEYS, RoundRequest.RESYNC),
        "another sequence": lambda: client.hincrby(KEYS.state, "sequence", 1),
        "another generation": lambda: client.hset(KEYS.state, "generation", "zz"),
        "a field more": lambda: client.hset(KEYS.state, "z", ""),
        "a field less": lambda: client.hdel(KEYS.state, "x"),
        "values that are swapped": lambda: client.hset(KEYS.state, mapping={"x": "2", "y": "1"}),
        "a name that is cut elsewhere": lambda: client.eval(_CUT_ELSEWHERE, 1, KEYS.state),
        "snapshots lost": lambda: client.delete(KEYS.snapshots),
        "dictionaries lost": lambda: client.delete(KEYS.dictionaries),
        "the stream lost": lambda: client.delete(KEYS.events),
        "all lost": lambda: client.delete(*(getattr(KEYS, name) for name in FEED_KEYS)),
    }
    await happens[meanwhile]()
    before = await everything(client)
    assert not await one.store.end_idle_round(start, marks(start, **{DELTA_TOKEN: "d2"}))
    assert await everything(client) == before
    assert one.store.idle_start is None


async def test_the_order_of_the_fields_does_not_count(store_client: Redis) -> None:
    """Law: a hash that has the same fields is the same state."""
    one = Process(store_client, "a")
    start = await started(one)
    sequence = await store_client.hget(KEYS.state, "sequence")
    await store_client.hdel(KEYS.state, "sequence")
    await store_client.hset(KEYS.state, "sequence", sequence or b"")
    assert await one.store.end_idle_round(start, marks(start))


async def _kept(store: FeedStore, start: IdleStart) -> bool:
    assert await store.end_idle_round(start, marks(start))
    return store.idle_start is not None


async def test_a_pause_from_before_it_is_one_that_came_back(store_client: Redis) -> None:
    """Law: rounds without news count where a pause is found that is older than the last round."""
    now = Clock().now()
    one = Process(store_client, "a", now_ms=milliseconds_of(now))
    start = await started(one)
    one.store._polled_ms = 1  # the last ordinary round was long ago
    assert await _kept(one.store, start)
    pause = FeedPause(by="op", reason="", at=now - timedelta(minutes=1))
    await store_client.set(KEYS.pause, msgspec.json.encode(pause))
    assert isinstance(await one.store.open_round(), FeedPause)
    assert one.store.take_pause_back() is not None


@pytest.mark.parametrize(
    "meanwhile",
    [
        "lost",
        "asked for again",
        "overheard",
        "ordered",
        "a round",
        "a commit",
        "1",
        "1 2",
        "2",
        "2 after 1",
        "dictionary",
    ],
)
async def test_what_is_remembered_is_forgotten(store_client: Redis, meanwhile: str) -> None:
    """Law: it counts while the lease was kept, no other process knows more, and no operator has ordered anything."""
    one = Process(store_client, "a")
    start = await started(one)
    store = one.store
    assert await _kept(store, start)
    if meanwhile == "lost":
        store.lease.lose()
    elif meanwhile == "asked for again":
        assert await store.lease.acquire() is None
    elif meanwhile == "overheard":
        store.memory.overheard(HighWaterMark(start.generation, start.sequence + 1))
    elif meanwhile == "ordered":
        store.forget_idle_start()
    elif meanwhile[0].isdigit():
        store._stored_forms = cast("Forms", meanwhile)  # others read no other ones yet, as far as is known
    elif meanwhile == "dictionary":
        store.wants_dictionary = True
    elif meanwhile == "a round":
        await begun(store)
    else:
        await write(store, [unavailability(1, reason="other")], await begun(store))
        assert not store.state_digest
    assert store.idle_start is None
