"""Laws of :mod:`poller.delivery.feed_consumer` and :mod:`poller.delivery.dispatcher` on a real Valkey."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from poller.clock import Clock
from poller.delivery.delivery_codec import Delivery, deliveries_of, encode, letter_of
from poller.delivery.endpoint import EndpointState
from poller.delivery.endpoint_health import Health
from poller.delivery.feed_consumer import MOST_PARKED, EntryReader, FeedConsumer
from poller.delivery.filters import Batching
from poller.delivery.retry import RetryPolicy, Tries
from poller.delivery.sinks.base import Failure, Outcome
from poller.errors import Fenced, StoreUnavailable
from poller.redis.client import commands
from poller.store.consumer_state import ConsumerScripts, ConsumerStore, Entry, Settlement
from poller.store.keys import ConsumerKeys, FeedKeys
from tests.delivery.events import spelled
from tests.delivery.ledger import Ledger
from tests.delivery.outcomes import answered, unanswered
from tests.delivery.scene import OK, PATIENCE, Noted, Posted, delivering, subscriber, subscription
from tests.delivery.sinks import sink_of
from tests.harness.clock import StubClock
from tests.harness.waiting import limited, patience, strain, until
from tests.proxy import proxied
from tests.receiver import Received, Reply, receiving
from tests.test_limits import bucket

EVENTS = FeedKeys.of("p", "acme/a").events
KEYS = ConsumerKeys.of("p", "acme/a", "s")
BROKEN = answered(500)


@dataclass
class Scene:
    url: str
    client: Redis
    posted: Posted = field(default_factory=Posted)

    async def store(self, nonce: str = "one", *, client: Redis | None = None, seconds: float = 30) -> ConsumerStore:
        mine = client or self.client
        store = ConsumerStore(
            mine,
            ConsumerScripts(mine, shebang="#!lua\n"),
            KEYS,
            events=EVENTS,
            subscription="s",
            nonce=nonce,
            lease=timedelta(seconds=seconds),
            clock=Clock(),
        )
        assert await store.lease.acquire() is None
        return store

    async def add(self, *ids: str) -> None:
        """Publish events; the first letter of an id is its record."""
        for one in ids:
            await self.client.xadd(EVENTS, {"data": spelled(id=one, partitionkey=one[0])})

    async def settled(self) -> bool:
        """Whether the group holds nothing and no retry is scheduled."""
        pending = await self.client.xpending(EVENTS, "sub:s")
        return not pending["pending"] and not await self.client.hlen(KEYS.parked)

    async def until_settled(self) -> None:
        await until(self.settled, "all events to be settled")

    async def until_parked(self, count: int = 1) -> None:
        await until(lambda: self._has_parked(count), f"{count} scheduled retries")

    async def until_held(self, *, anything: bool) -> None:
        """Wait until the group holds something, or nothing."""
        await until(lambda: self._holds(anything=anything), f"the group to hold {'some' if anything else 'no'} entry")

    async def _has_parked(self, count: int) -> bool:
        return bool(await self.client.hlen(KEYS.parked) >= count)

    async def _holds(self, *, anything: bool) -> bool:
        return bool((await self.client.xpending(EVENTS, "sub:s"))["pending"]) is anything


@pytest.fixture
async def scene(valkey: str) -> AsyncIterator[Scene]:
    client = commands(valkey)
    yield Scene(valkey, client)
    await client.aclose()


def failing(*ids: str) -> Callable[[bytes], Outcome]:
    return lambda body: BROKEN if any(f'"id": "{one}"'.encode() in body for one in ids) else OK


def turns(outcomes: list[Outcome]) -> Callable[[bytes], Outcome]:
    return lambda _: outcomes.pop(0) if outcomes else OK


async def test_everything_arrives_once_and_in_order(scene: Scene) -> None:
    """Existing and later events are delivered once, and those of one record in order."""
    await scene.add(*(f"{key}{number}" for number in range(30) for key in "abc"))
    async with delivering(await scene.store(), subscriber(scene.posted)) as (pair, _):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 90)
        await scene.add("d0")
        pair.news()
        await scene.posted.until(lambda: len(scene.posted.bodies) == 91)
    for key in "abc":
        assert [one for one in scene.posted.ids() if one[0] == key] == [f"{key}{number}" for number in range(30)]
    assert await scene.settled()


async def test_a_failing_record_holds_back_only_itself(scene: Scene) -> None:
    """A failing event holds back the later events of its record, and no others."""
    scene.posted.answer = failing("a0")
    await scene.add(*(f"a{number}" for number in range(200)), "b0")
    patience = RetryPolicy([timedelta(milliseconds=1), timedelta(hours=1)], 0)
    async with delivering(await scene.store(), subscriber(scene.posted, patience=patience)):
        await scene.posted.until(lambda: "b0" in scene.posted.ids())
    assert set(scene.posted.ids()) == {"a0", "b0"}
    assert await scene.client.hlen(KEYS.parked) == 200


async def test_too_many_retries_are_logged_once_with_the_record_that_has_most(scene: Scene) -> None:
    """At the limit of scheduled retries nothing is read; the log says so once, and again after half were gone."""
    others = [str(number) for number in range(400)]

    async def park(millisecond: int, *keys: str) -> list[str]:
        ids = {key: f"{key}-{millisecond}" for key in keys}
        events = {key: msgspec.Raw(spelled(id=one, partitionkey=key)) for key, one in ids.items()}
        parked = {f"{millisecond}-{at}": encode(Delivery(key, event=events[key])) for at, key in enumerate(keys)}
        await scene.client.hset(KEYS.parked, mapping=dict[Any, Any](parked))
        return list(ids.values())

    def said() -> list[tuple[str, int, int]]:
        lines = [line for line in logs if line["event"].startswith("not reading")]
        return [(line["record"], line["of_record"], line["waiting"]) for line in lines]

    often, full = ["k"] * (MOST_PARKED - len(others)), ("k", MOST_PARKED - len(others), MOST_PARKED)
    hold = asyncio.get_running_loop().create_future()
    scene.posted.answer = lambda body: hold if b'"k-' in body else OK
    await park(1, *often, *others)
    with capture_logs() as logs:
        async with delivering(await scene.store(), subscriber(scene.posted)) as (pair, _):
            await scene.add("o0")
            await scene.posted.until(lambda: {*others} <= {one.partition("-")[0] for one in scene.posted.ids()})
            assert said() == [full]
            again = await park(2, *others)
            pair.reload()
            await scene.posted.until(lambda: {*again} <= {*scene.posted.ids()})
            assert said() == [full]  # though the limit was reached again
            hold.set_result(OK)
            await scene.posted.until(lambda: "o0" in scene.posted.ids())
            await scene.until_settled()
            await park(3, *often, *others)
            pair.reload()
            await until(lambda: said() == [full, full], "the limit to be logged again")


async def test_what_is_given_up_is_kept_and_its_record_goes_on(scene: Scene) -> None:
    """A dead letter holds the event and its attempts, and the next event of its record is delivered."""
    scene.posted.answer = failing("a0")
    await scene.add("a0", "a1")
    async with delivering(await scene.store(), subscriber(scene.posted)):
        await scene.posted.until(lambda: "a1" in scene.posted.ids())
        await scene.until_settled()
    assert scene.posted.ids() == ["a0"] * 4 + ["a1"]
    (letter,) = [letter_of(one) for one in (await scene.client.hgetall(KEYS.letters)).values()]
    assert bytes(letter.event) == spelled(id="a0", partitionkey="a")
    assert [one.status for one in letter.attempts] == [500] * 4


async def test_a_successor_goes_on_where_it_was(scene: Scene) -> None:
    """A new owner of the lease delivers what was in flight and what waits for a retry, and nothing that was settled."""
    await scene.add("a0", "b0", "b1", "c0")
    hold = asyncio.get_running_loop().create_future()
    scene.posted.answer = lambda body: BROKEN if b"b0" in body else hold if b"c0" in body else OK
    patience = RetryPolicy([timedelta(hours=1)], 0)
    first = subscriber(scene.posted, patience=patience)
    async with delivering(await scene.store(), first) as (_, task):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 3)
        await scene.until_parked(2)
        task.cancel()
    assert first._free == first.subscription.concurrency
    await scene.client.delete(KEYS.lease)
    heir = Posted()
    async with delivering(await scene.store("two"), subscriber(heir)):  # with a shorter schedule
        await heir.until(lambda: len(heir.bodies) == 3)
        await scene.until_settled()
    assert sorted(heir.ids()) == ["b0", "b1", "c0"]
    assert heir.ids().index("b0") < heir.ids().index("b1")


async def test_told_to_stop_it_writes_what_has_ended_on_the_way(scene: Scene) -> None:
    """A request that ends while the consumer stops is settled, and the next owner does not repeat it."""
    await scene.add("a0", "a1")
    hold = asyncio.get_running_loop().create_future()
    scene.posted.answer = lambda _: hold
    async with delivering(await scene.store(), subscriber(scene.posted)) as (pair, task):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 1)
        pair.stop()
        hold.set_result(OK)
        await task
    await scene.client.delete(KEYS.lease)
    heir = Posted()
    async with delivering(await scene.store("two"), subscriber(heir)):
        await heir.until(lambda: len(heir.bodies) == 1)
        await scene.until_settled()
    assert heir.ids() == ["a1"]


async def test_without_the_lease_nothing_is_sent(scene: Scene) -> None:
    """A consumer without the lease ends before it sends anything."""
    await scene.add("a0")
    store = await scene.store(seconds=0.001)
    async with delivering(store, subscriber(scene.posted)) as (_, task), patience("the consumer to end", 5):
        with pytest.raises(Fenced):
            await task
    assert scene.posted.bodies == []


async def test_news_ends_it_where_another_has_taken_the_lease(scene: Scene) -> None:
    """A consumer at rest that has lost its lease reads nothing when news comes, and ends."""
    await scene.add("a0")
    async with delivering(await scene.store(), subscriber(scene.posted)) as (pair, task):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 1)
        await scene.until_settled()
        await scene.client.set(KEYS.lease, "two")
        await scene.add("a1")
        pair.news()
        async with patience("the consumer to end", 5):
            with pytest.raises(Fenced):
                await task
    assert scene.posted.ids() == ["a0"]


async def test_a_lease_that_another_has_taken_ends_it(scene: Scene) -> None:
    """A consumer that has lost its lease settles nothing, so that the new owner delivers the event again."""
    hold = asyncio.get_running_loop().create_future()
    scene.posted.answer = lambda _: hold
    await scene.add("a0")
    async with delivering(await scene.store(), subscriber(scene.posted)) as (_, task):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 1)
        await scene.client.set(KEYS.lease, "two")
        hold.set_result(OK)
        with pytest.raises(Fenced):
            await task
    assert not await scene.settled()


async def test_a_store_that_hiccups_ends_nothing_and_doubles_nothing(scene: Scene) -> None:
    """When replies of reads and writes are lost, each event is still sent once."""
    async with proxied(scene.url) as proxy:
        client = commands(proxy.url)
        await scene.add("a0", "a1", "b0")
        store = await scene.store(client=client)
        async with delivering(store, subscriber(scene.posted)) as (pair, _):
            await scene.posted.until(lambda: len(scene.posted.bodies) == 3)
            await scene.until_settled()
            for number in range(1, 4):
                await scene.add(f"a{number}1", f"b{number}1")
                proxy.lose_reply(to=b"EVALSHA", skip=number - 1)
                pair.news()
                await scene.posted.until(lambda wanted=number: len(scene.posted.bodies) == 3 + 2 * wanted)  # type: ignore[misc] # mypy cannot infer it
                await scene.until_settled()
        await client.aclose()
    assert len(set(scene.posted.ids())) == len(scene.posted.ids()) == 9


async def test_a_group_that_is_gone_doubles_nothing_while_the_process_lives(scene: Scene) -> None:
    """A destroyed group is created again at its position, and a living process sends no event twice."""
    patience = RetryPolicy([timedelta(hours=1)], 0)
    hold = asyncio.get_running_loop().create_future()
    scene.posted.answer = lambda body: hold if b"a0" in body else BROKEN if b"b0" in body else OK
    await scene.add("a0", "b0", "c0")
    async with delivering(await scene.store(), subscriber(scene.posted, patience=patience)) as (pair, _):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 3)
        await scene.until_parked()
        await scene.client.xgroup_destroy(EVENTS, "sub:s")
        await scene.add("d0")
        pair.news()
        await scene.posted.until(lambda: len(scene.posted.bodies) == 4)
        hold.set_result(OK)
        await scene.until_held(anything=False)
    assert scene.posted.ids() == ["a0", "b0", "c0", "d0"]


async def test_what_is_published_with_an_older_id_after_a_failover_is_not_taken_for_settled(scene: Scene) -> None:
    """If the store gives out ids that were passed, it has lost reads: the run ends, and the next one sends them all.

    The new primary's clock may be behind the old one's. An event of a record that is still in flight looks settled.
    """
    hold = asyncio.get_running_loop().create_future()
    scene.posted.answer = lambda body: hold if b"a1" in body else OK
    await scene.client.xadd(EVENTS, {"data": spelled(id="a0", partitionkey="a")}, id="1000-0")
    await scene.client.xgroup_create(EVENTS, "sub:s", id="0")
    replica = await scene.client.dump(EVENTS)
    await scene.client.xadd(EVENTS, {"data": spelled(id="a1", partitionkey="a")}, id="2000-0")
    store = await scene.store()
    async with delivering(store, subscriber(scene.posted)) as (pair, running):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 2)
        await scene.client.restore(EVENTS, 0, replica or b"", replace=True)
        await scene.client.xadd(EVENTS, {"data": spelled(id="a2", partitionkey="a")}, id="1500-0")
        pair.news()
        with pytest.raises(Fenced, match="lost what was read"):
            await asyncio.wait_for(running, PATIENCE)
    async with delivering(store, subscriber(scene.posted)):
        await scene.posted.until(lambda: "a2" in scene.posted.ids())
        await scene.until_settled()
    assert scene.posted.ids() == ["a0", "a1", "a0", "a2"]


@pytest.mark.parametrize("noticed_by", ["the next settlement", "a renewal of the lease"])
@pytest.mark.parametrize("answer", [OK, BROKEN], ids=["accepted", "failed"])
async def test_what_comes_again_after_a_failover_comes_in_order(scene: Scene, noticed_by: str, answer: Outcome) -> None:
    """If the store has lost a settlement, all that was sent since comes again: the last event of a record stays last.

    Were the result of the event in flight written, the one before it would come again alone, and after it.
    """
    holds = [asyncio.get_running_loop().create_future() for _ in range(2)]
    outcomes = list(holds)
    scene.posted.answer = lambda _: outcomes.pop(0) if outcomes else OK
    await scene.add("a0", "a1")
    store, to = await scene.store(), subscriber(scene.posted, patience=RetryPolicy([timedelta(hours=1)], 0))
    async with delivering(store, to) as (_, run):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 1)
        replica = {key: await scene.client.dump(key) or b"" for key in (EVENTS, KEYS.state)}
        holds[0].set_result(OK)
        await scene.posted.until(lambda: len(scene.posted.bodies) == 2)
        for key, value in replica.items():
            await scene.client.restore(key, 0, value, replace=True)
        if noticed_by == "a renewal of the lease":
            assert not await store.lease.renew()
        holds[1].set_result(answer)
        with pytest.raises(Fenced):
            await asyncio.wait_for(run, PATIENCE)
    assert await store.lease.acquire() is None
    async with delivering(store, to):
        await scene.until_settled()
    assert scene.posted.ids() == ["a0", "a1", "a0", "a1"]


async def test_what_an_earlier_owner_settled_is_missed_too(scene: Scene) -> None:
    """A run notices that the store loses what was settled before it began: that comes again, and in order."""
    holds = [asyncio.get_running_loop().create_future() for _ in range(2)]
    outcomes = list(holds)
    scene.posted.answer = lambda _: outcomes.pop(0) if outcomes else OK
    await scene.add("a0", "a1")
    former, to = await scene.store(), subscriber(scene.posted)
    async with delivering(former, to) as (pair, run):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 1)
        replica = {key: await scene.client.dump(key) or b"" for key in (EVENTS, KEYS.state)}
        pair.stop()
        holds[0].set_result(OK)
        await run
    await former.lease.release()
    store = await scene.store("two")
    async with delivering(store, to) as (_, run):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 2)
        for key, value in replica.items():
            await scene.client.restore(key, 0, value, replace=True)
        holds[1].set_result(OK)
        with pytest.raises(Fenced):
            await asyncio.wait_for(run, PATIENCE)
    assert await store.lease.acquire() is None
    async with delivering(store, to):
        await scene.until_settled()
    assert scene.posted.ids() == ["a0", "a1", "a0", "a1"]


async def test_a_settlement_of_an_earlier_run_that_arrives_late_writes_nothing(scene: Scene) -> None:
    """What an earlier run of a process sent, and the network delivers during the next one, schedules nothing again."""
    hold = asyncio.get_running_loop().create_future()
    scene.posted.answer = lambda _: hold
    await scene.add("a0")
    late, store = await scene.store(), await scene.store()  # one process: the first settlement of each has one serial
    async with delivering(store, subscriber(scene.posted)):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 1)
        ((entry, _),) = await late.pending("0", most=9)
        await late.settle(Settlement([entry], {entry: b"p"}), now_ms=1)
        assert await late.parked() == {}
        hold.set_result(OK)
        await scene.until_settled()


async def test_a_pause_of_the_sink_is_written_before_anything_else(scene: Scene) -> None:
    """A pause by Retry-After is stored before the retry, and holds for all records."""
    noted = Noted()
    scene.posted.answer = lambda _: answered(503, retry_after="60")
    await scene.add("a0")
    async with delivering(await scene.store(), subscriber(scene.posted, noted)) as (pair, _):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 1)
        await scene.until_parked()
        assert "until" in noted.names()
        await scene.add("b0")
        pair.news()
        await scene.until_held(anything=True)
    assert len(scene.posted.bodies) == 1


@pytest.mark.parametrize("began", [-3600, 3600], ids=["of another sink", "by a clock that was ahead"])
async def test_an_event_that_waits_for_a_pause_ends_its_wait_with_it(scene: Scene, began: int) -> None:
    """Law: where the sink is in no pause, what waits for one is sent; what waits by the schedule keeps its wait."""
    at = round((time.time() + began) * 1000)
    waits: dict[str, Any] = {"due": at + 86_400_000, "tries": Tries(2, 1, timedelta(days=1))}
    schedule = RetryPolicy([timedelta(days=1)], 1.0)
    parked = {
        "1-0": Delivery("a", event=msgspec.Raw(spelled(id="a0", partitionkey="a")), paused=at, **waits),
        "1-1": Delivery("b", event=msgspec.Raw(spelled(id="b0", partitionkey="b")), **waits),
    }
    await scene.client.hset(KEYS.parked, mapping={entry: encode(one) for entry, one in parked.items()})
    await scene.add("a1", "b1")
    async with delivering(await scene.store(), subscriber(scene.posted, patience=schedule)):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 2)
        await scene.until_parked(2)  # the one behind the scheduled one is stored with it
    assert scene.posted.ids() == ["a0", "a1"]


@pytest.mark.parametrize("after", ["1", None], ids=["with Retry-After", "without"])
async def test_a_refusal_lengthens_no_wait_by_a_part_of_the_schedule(scene: Scene, after: str | None) -> None:
    """Law: an event that met a pause is sent when the pause is over, however long the schedule's first wait is."""
    refused = [answered(429, retry_after=after) if after else answered(429)]
    scene.posted.answer = lambda _: refused.pop() if refused else OK
    await scene.add("a0")
    schedule = RetryPolicy([timedelta(days=1)], 1.0)
    async with delivering(await scene.store(), subscriber(scene.posted, patience=schedule)):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 2)
    assert scene.posted.ids() == ["a0", "a0"]


async def test_a_sink_that_only_says_429_is_delivered_what_it_bears(scene: Scene) -> None:
    """A sink that answers 429 without Retry-After gets all events at the rate that it accepts, in order per record.

    The 429s use up no attempt: otherwise an event would wait for an hour.
    """
    allows, clock = bucket(50, 10), asyncio.get_running_loop().time
    began = clock()
    refused: list[float] = []

    def answer(request: Received) -> Reply:
        if allows(request.at - began):
            return Reply()
        refused.append(request.at)
        return Reply(429)

    await scene.add(*(f"{key}{number:03}" for number in range(20) for key in "abcdefghij"))
    noted = Noted()
    async with receiving(answer) as receiver, sink_of(receiver.url) as sink:
        to = subscriber(cast("Posted", sink), noted, patience=RetryPolicy([timedelta(hours=1)], 0))
        async with delivering(await scene.store(seconds=300), to):
            await receiver.until(lambda: receiver.count - len(refused) >= 200)
            await scene.until_settled()
        ids = [json.loads(one.body)["id"] for one in receiver.requests if one.at not in refused]
    assert refused
    assert sorted(ids) == sorted(set(ids))
    for key in "abcdefghij":
        assert [one for one in ids if one[0] == key] == [f"{key}{number:03}" for number in range(20)]
    assert await scene.client.hlen(KEYS.letters) == 0
    assert "until" not in noted.names()  # a pause that the sink did not ask for is not stored


async def test_a_sink_that_is_gone_gets_nothing_more(scene: Scene) -> None:
    """After 410 the subscription is paused, and its events wait."""
    noted = Noted()
    scene.posted.answer = lambda _: answered(410)
    await scene.add("a0", "a1", "b0")
    sink = subscriber(scene.posted, noted, concurrency=1)
    async with delivering(await scene.store(), sink):
        await scene.posted.until(lambda: "rest" in noted.names())
    assert len(scene.posted.bodies) == 1
    assert sink.resting
    assert (await scene.client.xpending(EVENTS, "sub:s"))["pending"] == 3


async def test_what_the_stream_has_lost_becomes_a_dead_letter(scene: Scene) -> None:
    """An event that the stream lost while it waited becomes a dead letter; the next event of its record is sent."""
    scene.posted.answer = turns([BROKEN])
    await scene.add("a0")
    sink = subscriber(scene.posted, patience=RetryPolicy([timedelta(seconds=1)], 0), batching=Batching(5))
    async with delivering(await scene.store(), sink) as (pair, _):
        await scene.until_parked()
        (entry,) = await scene.client.hkeys(KEYS.parked)
        await scene.client.xdel(EVENTS, entry)
        await scene.add("a1", "b0")
        pair.news()
        await scene.posted.until(lambda: len(scene.posted.bodies) == 3)
        await scene.until_settled()
    assert await scene.client.hkeys(KEYS.letters) == [entry]
    assert sorted(scene.posted.ids()) == ["a0", "a1", "b0"]


async def test_places_are_not_exceeded_and_all_are_given_back(scene: Scene) -> None:
    """The limit of requests in flight is never exceeded, and each slot is released after every kind of failure."""
    outcomes = [BROKEN, unanswered(Failure.TIMEOUT), OK] * 10
    scene.posted.answer = turns(outcomes)
    await scene.add(*(f"{key}{number}" for number in range(3) for key in "abcdef"))
    sink = subscriber(scene.posted, concurrency=3, patience=RetryPolicy([timedelta(milliseconds=1)] * 9, 0))
    async with delivering(await scene.store(), sink):
        await scene.posted.until(lambda: len(scene.posted.bodies) >= 18)
        await scene.until_settled()
    assert scene.posted.most_in_flight <= 3
    assert sink._free == 3


async def test_a_batch_waits_for_more_and_not_for_ever(scene: Scene) -> None:
    """A batch is sent when it is full or when its time is over."""
    await scene.add("a0", "a1", "b0")
    sink = subscriber(scene.posted, batching=Batching(2, 1000, timedelta(milliseconds=30)))
    async with delivering(await scene.store(), sink):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 2)
        await scene.until_settled()
    assert [body.count(b'"id"') for body in scene.posted.bodies] == [2, 1]


async def test_with_nothing_to_do_it_sleeps(scene: Scene) -> None:
    """A consumer whose sink is paused sleeps, even with a batch that is due."""
    await scene.add("a0")
    sink = subscriber(scene.posted, batching=Batching(3, 1000, timedelta(seconds=0.2 * min(strain(), 4))))
    clock = asyncio.get_running_loop().time
    async with delivering(await scene.store(), sink) as (pair, _):
        async with limited(PATIENCE):
            while pair._requests.next_moment is None:
                await scene.client.ping()
        sink.pause(timedelta(hours=1))
        while clock() < pair._requests.next_moment:
            await scene.client.ping()
        looks = 0
        start = pair._requests.start

        def counted() -> None:
            nonlocal looks
            looks += 1
            start()

        pair._requests.start = counted  # type: ignore[method-assign] # counts, and does the same
        for _ in range(200):  # turns of the loop, in each of which the consumer could start requests
            await scene.client.ping()
        assert looks <= 3
    assert scene.posted.bodies == []


class AlmostOver(EndpointState):
    """An endpoint whose breath is over right after a look at it, as if a timer had fired a little too early."""

    pair: FeedConsumer | None = None
    looks = 0

    @property
    def breathing(self) -> bool:
        if self.pair is None or not self.pair._queues.ready or self.pair._changed.is_set():
            return False
        self.looks += 1
        if self.looks > 1:
            return False
        self._breath_until = time.monotonic() + 0.001
        while time.monotonic() < self._breath_until:
            pass
        return True


async def test_a_moment_that_passes_after_the_look_at_it_is_not_missed(scene: Scene) -> None:
    """A breath that ends between the look at it and the wait for it does not leave the events behind."""
    sink = AlmostOver(subscription(), scene.posted, Noted(), paused_until=None, clock=Clock())
    async with delivering(await scene.store(), sink) as (pair, _):
        await until(lambda: pair._intake.has_read("1-0") and pair._changed._waiters, "the consumer to be at rest")
        sink.pair = pair
        await scene.add("a0")
        pair.news()
        await scene.posted.until(lambda: len(scene.posted.bodies) == 1)
    assert sink.looks > 1


class TimerClock(Clock):
    """A clock that notes the timers that are set, in seconds; they fire after this part of their time."""

    def __init__(self, part: float = 1.0) -> None:
        super().__init__()
        self.timers: list[float] = []
        self._part = part

    def call_after(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        self.timers.append(seconds)
        return super().call_after(seconds * self._part, callback)


async def test_a_timer_that_fires_before_its_time_is_set_again(scene: Scene) -> None:
    """A retry comes although each timer fires too early."""
    clock, fails = TimerClock(0.5), [503, 503]
    scene.posted.answer = lambda _: answered(fails.pop()) if fails else OK
    to = subscriber(scene.posted, patience=RetryPolicy([timedelta(milliseconds=300)] * 3, 0.0))
    await scene.add("a0")
    async with delivering(await scene.store(), to, clock=clock):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 3)
    assert len(clock.timers) > 2


async def test_a_timer_for_a_later_moment_delays_nothing(scene: Scene) -> None:
    """If something is due before the moment that was waited for so far, a timer is set for it."""
    clock, answers = TimerClock(), [OK, OK, answered(503)]
    scene.posted.answer = lambda _: answers.pop(0) if answers else OK
    to = subscriber(scene.posted, patience=RetryPolicy([timedelta(milliseconds=300)] * 3, 0.0))
    to.took("acme/a", Health())
    async with delivering(await scene.store(), to, clock=clock) as (pair, _):
        for count, key in enumerate(("a0", "b0"), start=1):  # what the second adds to the counts is stored after 2 s
            await scene.add(key)
            pair.news()
            await scene.posted.until(lambda: len(scene.posted.bodies) == count)  # noqa: B023 -- used before the next
        await until(lambda: any(seconds > 1 for seconds in clock.timers), "the wait until the counts are stored")
        clock.timers.clear()
        await scene.add("c0")
        pair.news()
        await scene.posted.until(lambda: len(scene.posted.bodies) == 4)
        assert any(0.1 < seconds <= 0.3 for seconds in clock.timers)


async def two_waiting(scene: Scene, clock: Callable[[], float]) -> ConsumerStore:
    """A store with a lease of 30 s by this clock, and two events to deliver."""
    store = ConsumerStore(
        scene.client,
        ConsumerScripts(scene.client),
        KEYS,
        events=EVENTS,
        subscription="s",
        nonce="one",
        lease=timedelta(seconds=30),
        clock=StubClock(monotonic=clock),
    )
    assert await store.lease.acquire() is None
    await scene.add("a0", "b0")
    return store


async def test_a_lease_that_ran_out_is_noticed_without_asking(scene: Scene) -> None:
    """A process that continues after its lease has expired starts no request."""
    seconds = [0.0]
    store = await two_waiting(scene, lambda: seconds[0])
    hold = asyncio.get_running_loop().create_future()
    scene.posted.answer = lambda _: hold
    async with delivering(store, subscriber(scene.posted, concurrency=1)) as (_, task):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 1)
        seconds[0] = 31
        hold.set_result(OK)
        async with patience("the consumer to end", 5):
            with pytest.raises(Fenced):
                await task
    assert len(scene.posted.bodies) == 1


async def test_what_waited_for_its_rate_is_not_sent_after_the_lease(scene: Scene) -> None:
    """An event that waited for its turn by the rate is not sent if the lease has expired meanwhile."""
    seconds = [0.0]
    store = await two_waiting(scene, lambda: seconds[0])
    hold = asyncio.get_running_loop().create_future()
    scene.posted.answer = lambda _: hold
    to = subscriber(scene.posted, rate=1)
    async with delivering(store, to) as (_, task):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 1)
        await until(lambda: to._free == to.subscription.concurrency - 2, "the other event to wait for its turn")
        seconds[0] = 31
        async with patience("the consumer to end", 5):
            with pytest.raises(Fenced):
                await task
    assert scene.posted.ids() == ["a0"]


async def test_an_event_waits_for_the_pause_that_its_sink_is_in(scene: Scene) -> None:
    """An event that got a 429 without Retry-After is retried when the sink's present pause ends, not sooner."""
    hold = asyncio.get_running_loop().create_future()
    scene.posted.answer = lambda _: hold
    await scene.add("a0")
    to = subscriber(scene.posted)
    async with delivering(await scene.store(), to):
        await scene.posted.until(lambda: len(scene.posted.bodies) == 1)
        to.pause(timedelta(seconds=30))
        hold.set_result(answered(429))
        await scene.until_parked()
    found = cast("dict[bytes, bytes]", await scene.client.hgetall(KEYS.parked))
    (delivery,) = deliveries_of({entry.decode(): value for entry, value in found.items()}).values()
    assert delivery.tries.counted == 1
    assert timedelta(seconds=20) < delivery.tries.paused <= timedelta(seconds=30)


async def test_counts_are_noted_soon(scene: Scene) -> None:
    """The counts of deliveries are stored while deliveries go on."""
    noted = Noted()
    async with delivering(await scene.store(), subscriber(scene.posted, noted)) as (pair, _):
        await scene.add("a1")
        pair.news()
        await until(lambda: noted.kept.get("acme/a", Health()).delivered == 1, "the first count")
        await scene.add("a2", "b1", "c1")
        pair.news()
        await until(lambda: noted.kept.get("acme/a", Health()).delivered == 4, "a count of four")


async def test_counts_that_cannot_be_noted_end_nothing(scene: Scene) -> None:
    """When the store cannot take the counts, deliveries continue, and the counts are stored later."""
    noted = Noted()
    async with delivering(await scene.store(), subscriber(scene.posted, noted)) as (pair, task):
        await scene.add("a1")
        pair.news()
        await until(lambda: noted.kept.get("acme/a", Health()).delivered == 1, "the first count")
        noted.away = 1
        await scene.add("a2")
        pair.news()
        await until(lambda: task.done() or noted.kept["acme/a"].delivered == 2, "a count of two")
        assert not task.done(), task
    assert noted.away == 0
    assert scene.posted.ids() == ["a1", "a2"]


class SlowSource(Ledger):
    """Entries of which the store sends at most ``fits`` in time."""

    def __init__(self, fits: int) -> None:
        super().__init__()
        self.fits = fits
        self.asked: list[int] = []
        self.entry = 0

    async def pending(self, after: str, *, most: int) -> list[Entry]:
        """None."""
        assert after
        assert most
        return []

    async def read(self, *, most: int) -> list[Entry]:
        """As many as asked for, if they fit."""
        self.asked.append(most)
        if most > self.fits:
            raise StoreUnavailable("no reply in time")
        first, self.entry = self.entry + 1, self.entry + most
        return [(f"{number}-0", b"") for number in range(first, self.entry + 1)]


async def test_a_reply_that_takes_too_long_is_asked_for_in_smaller_parts() -> None:
    """After a failed read half as many entries are asked for, at least one, and after a good one twice as many."""
    seconds, slow = iter(range(1000)), SlowSource(fits=1)
    clock = StubClock(monotonic=lambda: float(next(seconds)))
    reader = EntryReader(slow, "now", feed="s/f", clock=clock)
    for _ in range(2):
        assert not await reader.read(8)
    slow.fits = 8
    for _ in range(4):
        await reader.read(8)
    assert slow.asked == [8, 4, 2, 4, 8, 8]
    slow.fits = 0
    for _ in range(5):
        assert not await reader.read(8)
    assert slow.asked[6:] == [8, 4, 2, 1, 1]
