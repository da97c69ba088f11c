"""Laws of a feed consumer while a record is erased: nothing of it is sent, scheduled or given up any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw
from redis.asyncio import Redis

from poller.clock import Clock
from poller.delivery.delivery_codec import Delivery, encode
from poller.delivery.sinks.base import Outcome, OutcomeKind
from poller.lifecycle import ended
from poller.redis.client import commands
from poller.store.consumer_state import ConsumerStore, ErasedRecords
from poller.store.erasure import FeedErasure
from poller.store.keys import FeedKeys
from tests.delivery.pairs import EVENTS, FAILED, FEED, KEYS, TAKEN, Scripted, delivering, publish
from tests.harness.waiting import turns, until

REJECTED = Outcome(OutcomeKind.REJECTED, seconds=0.1, error="it is not accepted")
LATER = 9_000_000_000_000  # an id after those that the server gives now
FEED_KEYS = FeedKeys.of("poller", FEED)


@pytest.fixture
async def valkey(store_url: str) -> AsyncIterator[Redis]:
    async with commands(store_url) as client:
        yield client


def erasure(client: Redis) -> FeedErasure:
    return FeedErasure(client, FEED_KEYS, clock=Clock())


async def begin(client: Redis, key: str = "a") -> int:
    return (await erasure(client).place_tombstone([key], key)).number


async def known(client: Redis, number: int) -> bool:
    return not await erasure(client).unaware([KEYS], number)


async def kept(client: Redis) -> int:
    """How many deliveries are scheduled, given up, or held by the group."""
    pending = await client.xpending(EVENTS, "sub:rostering")
    return int(await client.hlen(KEYS.parked)) + int(await client.hlen(KEYS.letters)) + int(pending["pending"])


class Gate:
    """An answer that waits for the test, of the first event; others are accepted."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.opened = asyncio.Event()

    async def __call__(self, number: int) -> Outcome:
        if number > 1:
            return TAKEN
        await self.opened.wait()
        return self.outcome


@pytest.mark.parametrize("schedule", [timedelta(hours=1), timedelta(0)])
@pytest.mark.parametrize("outcome", [FAILED, REJECTED, TAKEN])
@pytest.mark.parametrize("is_informed", [False, True])
async def test_what_is_in_flight_is_the_last_of_an_erased_record(
    valkey: Redis, is_informed: bool, outcome: Outcome, schedule: timedelta
) -> None:
    """Law: whatever the sink answers, nothing of it is kept, its later events are not sent, and others go on.

    That does not depend on whether the process was informed: its settlement is refused until it knows. Until then
    it may send once more what it has read, where the schedule is to wait for nothing.
    """
    gate = Gate(outcome)
    sink = Scripted(gate)
    await publish(valkey, "a", "a", "b", "a")
    async with delivering(valkey, sink, schedule=schedule) as pair:
        await sink.until(lambda sent: {1, 3} <= set(sent))
        number = await begin(valkey)
        if is_informed:
            pair.reload()
            await until(lambda: known(valkey, number), "the process to know")
        gate.opened.set()
        await publish(valkey, "b", start=LATER)
        pair.news()
        await sink.until(lambda sent: LATER in sent)
        await until(lambda: known(valkey, number), "the process to know")
        attempts = sink.sent.count(1)

        async def is_clean() -> bool:
            return not await kept(valkey)

        await until(is_clean, "nothing to be kept")
    assert sorted(sink.sent) == [1] * attempts + [3, LATER]
    assert attempts == 1 or (outcome is FAILED and not schedule and not is_informed)


class SlowlyInformed(ConsumerStore):
    """Reads which records were erased, and tells it when the test says so."""

    told: asyncio.Event
    has_read: asyncio.Event

    async def erasures(self) -> ErasedRecords:
        found = await super().erasures()
        if found.number:
            self.has_read.set()
            await self.told.wait()
        return found


@pytest.mark.parametrize("outcome", [FAILED, REJECTED])
@pytest.mark.parametrize("is_informed", [False, True])
async def test_an_answer_that_comes_while_erasures_are_read_leaves_nothing(
    valkey: Redis, is_informed: bool, outcome: Outcome
) -> None:
    """Law: it is drafted before the process knows and written afterwards, and must not be kept either."""

    class Informed(SlowlyInformed):
        told, has_read = asyncio.Event(), asyncio.Event()

    gate = Gate(outcome)
    sink = Scripted(gate)
    await publish(valkey, "a", "b")
    async with delivering(valkey, sink, stored=Informed) as pair:
        await sink.until(lambda sent: {1, 2} <= set(sent))
        number = await begin(valkey)
        if is_informed:
            pair.reload()
        else:
            await publish(valkey, "b", start=LATER)
            pair.news()  # its settlement is refused
        await Informed.has_read.wait()
        gate.opened.set()
        await turns()
        Informed.told.set()
        await until(lambda: known(valkey, number), "the process to know")

        async def is_clean() -> bool:
            return not await kept(valkey)

        await until(is_clean, "nothing to be kept")


async def test_a_run_that_follows_another_one_knows_what_was_erased(valkey: Redis) -> None:
    """Law: what was in flight when the lease was lost is not sent again once its record is erased."""
    stores = list[ConsumerStore]()

    def made(*arguments: Any, **named: Any) -> ConsumerStore:
        stores.append(ConsumerStore(*arguments, **named))
        return stores[0]

    sink = Scripted(Gate(TAKEN))
    await publish(valkey, "a", "b")
    async with delivering(valkey, sink, stored=made) as pair:
        await sink.until(lambda sent: {1, 2} <= set(sent))
        number = await begin(valkey)
        pair.reload()
        await until(lambda: known(valkey, number), "the process to know")
    pair.ready()
    assert await stores[0].lease.acquire() is None
    running = asyncio.create_task(pair.run())

    async def is_clean() -> bool:
        return not await kept(valkey)

    try:
        await until(is_clean, "nothing to be kept", seconds=5)
    finally:
        await ended(running)
        await stores[0].lease.release()
    assert sink.sent.count(1) == 1


async def test_a_scheduled_retry_that_the_process_has_read_is_not_sent(valkey: Redis) -> None:
    """Law: it is gone from the store, and the process that had it in memory makes no dead letter of it."""
    fails = {1}

    async def answer(number: int) -> Outcome:
        return FAILED if number in fails else TAKEN

    sink = Scripted(answer)
    await publish(valkey, "a", "b")
    async with delivering(valkey, sink, schedule=timedelta(seconds=0.3), retries=9) as pair:
        await until(lambda: valkey.hlen(KEYS.parked), "a scheduled retry")
        begun = await erasure(valkey).place_tombstone(["a"], "a")
        fails.clear()
        assert await erasure(valkey).erase_retries(KEYS, begun.place, lambda _: True) <= 1
        pair.reload()
        await until(lambda: known(valkey, begun.number), "the process to know")
        before = sink.sent.count(1)
        await publish(valkey, "a", start=LATER)
        pair.news()
        await sink.until(lambda sent: LATER in sent)
        assert sink.sent.count(1) == before
        assert not await valkey.exists(KEYS.letters)


async def test_a_scheduled_event_of_a_backfill_is_erased(valkey: Redis) -> None:
    """Law: a backfilled event that waits for its next attempt goes with its record, if it stands before the place."""
    begun = await erasure(valkey).place_tombstone(["a"], "a")
    told = encode(Delivery("a", event=Raw(b"{}"), repeat="b"))
    await valkey.hset(KEYS.parked, mapping={"1-0+0f": told, f"{LATER}-0+0f": told})
    assert await erasure(valkey).erase_retries(KEYS, begun.place, lambda _: True) == 1
    assert await valkey.hkeys(KEYS.parked) == [b"%d-0+0f" % LATER]


async def test_a_record_that_comes_back_is_delivered(valkey: Redis) -> None:
    """Law: what is published after the erasure is delivered like any other, also by a process that starts then."""
    sink = Scripted()
    await publish(valkey, "a")
    async with delivering(valkey, sink):
        await sink.until_count(1)
    await begin(valkey)
    async with delivering(valkey, sink) as pair:
        await publish(valkey, "a", start=LATER)
        pair.news()
        await sink.until(lambda sent: sent[-1] == LATER)
        await turns()
    assert sink.sent == [1, LATER]
