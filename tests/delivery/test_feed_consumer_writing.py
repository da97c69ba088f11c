"""Laws of when a feed consumer reads and writes: soon enough that nothing waits for it, and not more often."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Literal, NotRequired, TypedDict, Unpack

import pytest

from poller.clock import Clock
from poller.delivery.delivery_tracker import MOST_GATHERED
from poller.delivery.endpoint import EndpointState
from poller.delivery.endpoint_health import Health
from poller.delivery.feed_consumer import GATHER, NOTE_COUNTS, WINDOW, FeedConsumer, SharedTimer
from poller.delivery.filters import Subscription
from poller.delivery.retry import RetryPolicy
from poller.delivery.sinks.base import NOT_PERMITTED, Outcome
from poller.errors import ErasureUnknown, Fenced, StoreUnavailable
from poller.lifecycle import ended
from poller.store.backfill import Backfill
from poller.store.consumer_state import NO_ERASURES, Entry, ErasedRecords, SentSettlement, Settlement
from poller.store.replay import ReplaySpan
from tests.delivery.events import entry, spelled
from tests.delivery.ledger import Ledger
from tests.delivery.outcomes import answered
from tests.delivery.sinks import PythonSink
from tests.harness.clock import StubClock
from tests.harness.waiting import patience, turns, until

NOW = datetime(2026, 3, 2, tzinfo=UTC)
HELD = "held back"


class Counting(Ledger):
    """A store that counts reads and keeps settlements, but for the empty one with which a run begins."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.settlements: list[Settlement] = []

    async def read(self, *, most: int) -> list[Entry]:
        self.reads += 1
        return await super().read(most=most)

    async def settle(self, settlement: Settlement, *, now_ms: int) -> None:
        if settlement != Settlement():
            self.settlements.append(settlement)
        await super().settle(settlement, now_ms=now_ms)

    async def parked_besides(self, known: Container[str]) -> Mapping[str, bytes]:
        return {entry: value for entry, value in self.kept.items() if entry not in known}

    async def replay(self) -> ReplaySpan | None:
        return None

    async def reset_entry(self) -> str | None:
        return None

    async def erasures(self) -> ErasedRecords:
        return NO_ERASURES

    async def past(self, span: ReplaySpan, *, most: int) -> Sequence[tuple[str, bytes]]:
        raise AssertionError(span, most)


class Sink(PythonSink):
    """A sink that answers at once, but never answers events of the record :data:`HELD`."""

    def __init__(self) -> None:
        self.taken = 0
        self._changed = asyncio.Condition()

    async def post(self, body: bytes) -> Outcome:
        if HELD.encode() in body:
            await asyncio.Event().wait()
        async with self._changed:
            self.taken += 1
            self._changed.notify_all()
        return answered(204)

    async def has(self, count: int) -> None:
        async with patience(f"{count} events"), self._changed:
            await self._changed.wait_for(lambda: self.taken >= count)


class Halted(StubClock):
    """A clock at which no time passes, and no timer fires, but by :meth:`pass_`."""

    def __init__(self) -> None:
        super().__init__(now=lambda: NOW, monotonic=lambda: self._seconds)
        self._seconds = 0.0
        self._timers: list[tuple[float, asyncio.TimerHandle, Callable[[], object]]] = []

    def call_after(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        assert seconds >= 0
        timer = asyncio.get_running_loop().call_later(3600, callback)
        self._timers.append((self._seconds + seconds, timer, callback))
        return timer

    def pass_(self, seconds: float) -> None:
        """Let this much time pass."""
        self._seconds += seconds
        timers, self._timers = self._timers, []
        for moment, timer, callback in timers:
            if moment > self._seconds:
                self._timers.append((moment, timer, callback))
            elif not timer.cancelled():
                timer.cancel()
                callback()


class Reluctant(Sink):
    """A sink to which the first request for a record is not permitted any more, once another was delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    async def post(self, body: bytes) -> Outcome:
        if b"later" in body and not self.refused:
            await self.has(1)
            await turns(20)
            self.refused += 1
            return NOT_PERMITTED
        return await super().post(body)


class Busy(PythonSink):
    """A sink that asks for a pause of a minute."""

    async def post(self, body: bytes) -> Outcome:
        assert body
        return answered(503, retry_after="60", error="status 503")


class Notes:
    """An endpoint store that accepts nothing but the health after a delivery."""

    async def until(self, subscription: str, moment: datetime) -> None:
        raise AssertionError(subscription, moment)

    async def health(self, subscription: str, feed: str, health: Health) -> None:
        assert health.delivered == 1, (subscription, feed, health)

    async def healths(self, subscription: str) -> dict[str, Health]:
        raise AssertionError(subscription)

    async def rest(self, subscription: str, *, by: Literal["sink", "failures"], reason: str, at: datetime) -> None:
        raise AssertionError(subscription, by, reason, at)

    async def recovered(self, subscription: str, at: datetime) -> None:
        raise AssertionError(subscription, at)


class NotedPause(Notes):
    """An endpoint store that records each pause with the number of settlements before it."""

    def __init__(self, store: Counting) -> None:
        self.pauses: list[tuple[datetime, int]] = []
        self._store = store

    async def until(self, subscription: str, moment: datetime) -> None:  # noqa: ARG002 -- as the real one
        await turns(5)  # as if a store answered
        self.pauses.append((moment, len(self._store.settlements)))

    async def health(self, subscription: str, feed: str, health: Health) -> None:
        assert health.failed or health.delivered, (subscription, feed)


class Options(TypedDict):
    """How a feed consumer is set up."""

    clock: Clock
    concurrency: int
    notes: NotRequired[Notes]
    retry: NotRequired[timedelta]


def consumer(store: Counting, sink: PythonSink, **options: Unpack[Options]) -> FeedConsumer:
    """A feed consumer that does not run yet."""
    retry, clock = options.get("retry", timedelta(1)), options["clock"]
    wanted = Subscription(
        "s",
        lambda _: True,
        RetryPolicy([retry, retry], 0.0),
        timedelta(5),
        start="earliest",
        concurrency=options["concurrency"],
    )
    subscriber = EndpointState(wanted, sink, options.get("notes") or Notes(), paused_until=None, clock=clock)
    return FeedConsumer("acme/a", subscriber, store, clock=clock)


@asynccontextmanager
async def delivering(store: Counting, sink: PythonSink, **options: Unpack[Options]) -> AsyncIterator[FeedConsumer]:
    """A feed consumer that runs while the block does."""
    pair = consumer(store, sink, **options)
    running = asyncio.create_task(pair.run())
    try:
        yield pair
    finally:
        await ended(running)


async def written(store: Counting) -> None:
    """Wait until the group holds nothing."""
    await until(lambda: store.group is not None and not store.group, "all entries to be settled")


async def test_many_are_read_and_written_at_once() -> None:
    """Law: entries are read in halves of a window, and several deliveries are settled in one write."""
    store, sink = Counting(), Sink()
    count = 10 * WINDOW
    for number in range(count):
        store.add(spelled(partitionkey=str(number)))
    async with delivering(store, sink, clock=StubClock(now=lambda: NOW), concurrency=1):
        await sink.has(count)
        await written(store)
    assert store.reads <= 2 * count / WINDOW + 2
    assert len(store.settlements) <= count / 4


async def test_a_record_does_not_wait_for_others() -> None:
    """Law: while a later event of the record waits, the settlement of the event before it is written at once."""
    store, sink = Counting(), Sink()
    store.add(spelled(partitionkey=HELD))
    for _ in range(20):
        store.add(spelled(partitionkey="b"))
    async with delivering(
        store, sink, clock=StubClock(now=lambda: NOW, monotonic=lambda: 0.0), concurrency=2
    ):  # no time passes
        await sink.has(20)
    assert len(store.settlements) >= 19


async def test_what_is_gathered_is_written_in_time() -> None:
    """Law: a finished delivery for which nothing waits is settled GATHER later and not before."""
    store, sink, clock = Counting(), Sink(), Halted()
    store.add(spelled(partitionkey=HELD))
    store.add(spelled(partitionkey="b"))
    async with delivering(store, sink, clock=clock, concurrency=2):
        await sink.has(1)
        await turns(100)
        assert not store.settlements
        clock.pass_(GATHER)
        await until(lambda: store.settlements, "a settlement")
    assert [list(one.acked) for one in store.settlements] == [["2-0"]]


async def test_what_comes_alone_is_written_without_anything_else() -> None:
    """Law: an event that was delivered is settled although nothing else happens."""
    store, sink = Counting(), Sink()
    async with delivering(store, sink, clock=StubClock(now=lambda: NOW), concurrency=2) as pair:
        await turns(20)
        store.add(spelled(partitionkey="a"))
        pair.news()
        await sink.has(1)
        await written(store)
    assert [list(one.acked) for one in store.settlements] == [["1-0"]]


async def test_a_later_event_of_a_record_does_not_wait_for_what_is_gathered() -> None:
    """Law: if an event comes while the settlement of the one before it is gathered, that is written at once."""
    store, sink = Counting(), Sink()
    store.add(spelled(partitionkey="a"))
    async with delivering(store, sink, clock=Halted(), concurrency=2) as pair:
        await sink.has(1)
        await turns(20)
        assert not store.settlements
        store.add(spelled(partitionkey="a"))
        pair.news()
        await sink.has(2)
    assert [list(one.acked) for one in store.settlements][:1] == [["1-0"]]


async def test_reading_does_not_wait_for_what_is_gathered() -> None:
    """Law: while results are gathered, what there is room for is read and sent."""
    store, sink = Counting(), Sink()
    count = 4 * WINDOW
    for number in range(count):
        store.add(spelled(partitionkey=str(number)))
    async with delivering(store, sink, clock=Halted(), concurrency=2):
        await sink.has(count)


async def test_many_results_are_written_before_their_time() -> None:
    """Law: no more than MOST_GATHERED deliveries wait to be written, so a crash repeats no more."""
    store, sink = Counting(), Sink()
    for number in range(MOST_GATHERED):
        store.add(spelled(partitionkey=str(number)))
    async with delivering(store, sink, clock=Halted(), concurrency=2) as pair:
        await sink.has(MOST_GATHERED)
        await until(lambda: store.settlements, "a settlement")
        store.add(spelled(partitionkey="alone"))
        pair.news()
        await sink.has(MOST_GATHERED + 1)
        await turns(20)
    assert [len(one.acked) for one in store.settlements] == [MOST_GATHERED]


async def test_what_is_put_back_does_not_wait_for_what_is_gathered() -> None:
    """Law: an event that could not be sent is sent as soon as it may be, while other results are gathered."""
    store, sink = Counting(), Reluctant()
    for key in ("a", "later"):
        store.add(spelled(partitionkey=key))
    async with delivering(store, sink, clock=Halted(), concurrency=3):
        await sink.has(2)
    assert sink.refused


async def test_a_pause_is_noted_before_what_met_it_is_written() -> None:
    """Law: a pause is stored before the settlement of its event, so that no kill can lose the pause."""
    store = Counting()
    notes = NotedPause(store)
    store.add(spelled(partitionkey="a"))
    async with delivering(
        store, Busy(), clock=StubClock(now=lambda: NOW, monotonic=lambda: 0.0), concurrency=1, notes=notes
    ):
        await until(lambda: store.settlements, "a settlement")
    assert notes.pauses == [(NOW + timedelta(seconds=60), 0)]


class Late(Sink):
    """A sink that refuses the record ``late``; what was gathered is due at the moment of one of these answers."""

    def __init__(self, clock: Halted, refusal: Outcome, *, number: int) -> None:
        super().__init__()
        self.refused = 0
        self._clock = clock
        self._refusal = refusal
        self._number = number

    async def post(self, body: bytes) -> Outcome:
        if b"late" not in body:
            return await super().post(body)
        self.refused += 1
        if self.refused == self._number:  # before it is known that the attempt ended
            asyncio.get_running_loop().call_soon(self._clock.pass_, GATHER)
        return self._refusal


async def test_a_retry_comes_in_time_where_its_settlement_was_due_already() -> None:
    """Law: a retry that is scheduled while other results are written comes at its time, though nothing else happens."""
    store, clock, retry = Counting(), Halted(), timedelta(seconds=GATHER / 2)
    sink = Late(clock, answered(500), number=2)  # the health of the sink wakes the loop after the first refusal
    async with delivering(store, sink, clock=clock, concurrency=2, notes=NotedPause(store), retry=retry) as pair:
        for _ in range(2):  # whether the counts of attempts are to be stored soon is looked at after the first time
            await arrived(store, pair, sink, "a", "b")
            clock.pass_(GATHER)
            await turns(50)
        await arrived(store, pair, sink, "a")
        store.add(spelled(partitionkey="late"))
        pair.news()
        await until(lambda: store.kept, "a scheduled retry")
        await turns(50)
        clock.pass_(retry.total_seconds())
        await until(lambda: sink.refused == 3, "two more attempts, for time passes at the first of them")


async def test_a_pause_is_noted_first_where_its_settlement_was_due_already() -> None:
    """Law: a pause is stored before the settlement of its event, also if that could be written with what was there."""
    store, clock = Counting(), Halted()
    sink, notes = Late(clock, answered(503, retry_after="60", error="status 503"), number=1), NotedPause(store)
    async with delivering(store, sink, clock=clock, concurrency=2, notes=notes) as pair:
        await arrived(store, pair, sink, "a")
        store.add(spelled(partitionkey="late"))
        pair.news()
        await until(lambda: store.kept, "a scheduled retry")
    assert [settled for _, settled in notes.pauses] == [0]


class Counted(Notes):
    """An endpoint store that records how many attempts were successful."""

    def __init__(self) -> None:
        self.delivered = 0

    async def health(self, subscription: str, feed: str, health: Health) -> None:
        assert health.delivered, (subscription, feed)
        self.delivered = health.delivered


class Faulty(PythonSink):
    """A sink with a fault of the program."""

    async def post(self, body: bytes) -> Outcome:
        raise LookupError(f"a fault at {len(body)} bytes")


async def test_a_fault_in_an_attempt_ends_the_run() -> None:
    """Law: a fault of the program in an attempt is raised, although there is nothing to write."""
    store, clock = Counting(), StubClock(now=lambda: NOW)
    store.add(spelled(partitionkey="a"))
    async with patience("the run to end"):
        with pytest.raises(LookupError, match="a fault"):
            await consumer(store, Faulty(), clock=clock, concurrency=1).run()
    assert not store.settlements


class Interrupted(Counting):
    """A store during whose answer to a read something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.happens: Callable[[], object] = lambda: None

    async def read(self, *, most: int) -> list[Entry]:
        found = await super().read(most=most)
        self.happens()
        return found


class Fragile(Sink):
    """A sink with a fault of the program at one record."""

    async def post(self, body: bytes) -> Outcome:
        if b"faulty" in body:
            raise LookupError("a fault")
        return await super().post(body)


async def test_a_fault_does_not_wait_for_what_is_gathered() -> None:
    """Law: a fault in an attempt ends the run at once, and what was delivered before it is settled."""
    store, sink = Counting(), Fragile()
    store.add(spelled(partitionkey="a"))
    store.add(spelled(partitionkey="faulty"))
    async with patience("the run to end"):
        with pytest.raises(LookupError, match="a fault"):
            await consumer(store, sink, clock=Halted(), concurrency=1).run()
    assert [list(one.acked) for one in store.settlements] == [["1-0"]]


async def test_what_is_read_during_a_stop_is_not_sent() -> None:
    """Law: a consumer that is told to stop starts no more attempts, not even for what it has just asked for."""
    store, sink = Interrupted(), Sink()
    store.add(spelled(partitionkey="a"))
    pair = consumer(store, sink, clock=StubClock(now=lambda: NOW), concurrency=1)
    store.happens = pair.stop
    async with patience("the run to end"):
        await pair.run()
    assert (sink.taken, store.reads) == (0, 1)


async def test_what_is_read_while_the_lease_ends_is_not_sent() -> None:
    """Law: a consumer whose lease ends while it reads sends nothing, and its run ends."""
    store, sink = Interrupted(), Sink()
    pair = consumer(store, sink, clock=StubClock(now=lambda: NOW), concurrency=1)
    running = asyncio.create_task(pair.run())
    await until(lambda: store.reads, "the first read")
    await turns(10)  # it is at rest: one that has just begun looks at its lease once more anyway
    store.add(spelled(partitionkey="a"))
    store.happens = lambda: setattr(store, "held", False)
    pair.news()
    async with patience("the run to end"):
        with pytest.raises(Fenced):
            await running
    assert (sink.taken, store.reads) == (0, 2)


class Failing(Counting):
    """A store that counts what it is asked, and fails the next time at one of these questions."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = Counter[str]()
        self.fails = ""

    def _ask(self, what: str) -> None:
        self.asked[what] += 1
        if self.fails == what:
            self.fails = ""
            raise StoreUnavailable("a short absence")

    async def parked_besides(self, known: Container[str]) -> Mapping[str, bytes]:
        self._ask("retries")
        return await super().parked_besides(known)

    async def replay(self) -> ReplaySpan | None:
        self._ask("replay")
        return await super().replay()

    async def backfill(self) -> Backfill | None:
        self._ask("backfill")
        return await super().backfill()

    async def erasures(self) -> ErasedRecords:
        self._ask("erasures")
        return await super().erasures()


@pytest.mark.parametrize("what", ["retries", "replay", "backfill", "erasures"])
async def test_what_a_store_did_not_answer_is_asked_again(what: str) -> None:
    """Law: what other processes may have requested is looked for until the store answers, and then no more."""
    store, now = Failing(), [0.0]
    clock = StubClock(now=lambda: NOW, monotonic=lambda: now[0])
    async with delivering(store, Sink(), clock=clock, concurrency=1) as pair:
        await until(lambda: store.reads, "the first turn")
        pair.reload()
        await until(lambda: store.asked[what] and not store.fails, "the first answer")
        await turns(20)
        before, store.fails = store.asked[what], what
        pair.reload()
        await until(lambda: store.asked[what] > before, "a failure")
        await turns(20)
        now[0] += 2
        pair.wake()
        await until(lambda: store.asked[what] == before + 2, "another question")
        pair.wake()
        await turns(20)
        assert store.asked[what] == before + 2


class Slow(Counting):
    """A store that writes a settlement when :attr:`goes_on` is set, and reads when :attr:`reads_on` is."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on, self.reads_on = asyncio.Event(), asyncio.Event()
        self.reads_on.set()
        self.begun = 0
        self.under_way = 0
        self.being_read = 0

    async def settle(self, settlement: Settlement, *, now_ms: int) -> None:
        if settlement != Settlement():
            self.begun += 1
            self.under_way += 1
            assert self.under_way == 1, "two settlements at a time"
            await self.goes_on.wait()
            self.under_way -= 1
        await super().settle(settlement, now_ms=now_ms)

    async def read(self, *, most: int) -> list[Entry]:
        self.being_read += 1
        assert self.being_read == 1, "two readings at a time"
        await self.reads_on.wait()
        self.being_read -= 1
        return await super().read(most=most)


async def arrived(store: Counting, pair: FeedConsumer, sink: Sink, *keys: str) -> None:
    """Publish an event of each of these records to a consumer at rest; wait until all are delivered and it rests."""
    await turns(50)
    for key in keys:
        store.add(spelled(partitionkey=key))
    pair.news()
    await sink.has(sink.taken + len(keys))
    await turns(50)


@asynccontextmanager
async def settling(store: Slow, sink: Sink, clock: Halted) -> AsyncIterator[FeedConsumer]:
    """A feed consumer that has delivered an event of the record ``a``, and whose settlement of it is under way."""
    async with delivering(store, sink, clock=clock, concurrency=2) as pair:
        await arrived(store, pair, sink, "a")
        clock.pass_(GATHER)
        await until(lambda: store.begun, "a settlement to begin")
        yield pair


async def test_what_comes_is_read_and_sent_while_a_settlement_is_under_way() -> None:
    """Law: an event does not wait for the settlement of those before it; its own is written after that one."""
    store, sink, clock = Slow(), Sink(), Halted()
    async with settling(store, sink, clock) as pair:
        await arrived(store, pair, sink, "b")
        clock.pass_(GATHER)
        await turns(50)
        assert store.begun == 1
        store.goes_on.set()
        await until(lambda: len(store.settlements) == 2, "another settlement")
        await until(lambda: not store.group, "all to be settled")
    assert [list(one.acked) for one in store.settlements] == [["1-0"], ["2-0"]]
    assert [one.place for one in store.settlements] == ["1-0", "2-0"]


async def test_a_later_event_of_a_record_waits_for_the_settlement_under_way() -> None:
    """Law: an event of a record is sent when the settlement of the one before it was written, and not before."""
    store, sink, clock = Slow(), Sink(), Halted()
    async with settling(store, sink, clock) as pair:
        store.add(spelled(partitionkey="a"))
        pair.news()
        await until(lambda: store.reads > 2, "the event to be read")
        await turns(50)
        assert sink.taken == 1
        store.goes_on.set()
        await sink.has(2)


class ForgetfulOnce(Slow):
    """A store that refuses the first settlement, because a record was erased."""

    async def settle(self, settlement: Settlement, *, now_ms: int) -> None:
        if settlement != Settlement() and not self.begun:
            self.begun += 1
            await self.goes_on.wait()
            raise ErasureUnknown("a record was erased")
        await super().settle(settlement, now_ms=now_ms)


async def test_a_settlement_that_is_written_again_settles_nothing_that_came_later() -> None:
    """Law: the place of a settlement is that of its own deliveries, also if it is refused first."""
    store, sink, clock = ForgetfulOnce(), Sink(), Halted()
    async with settling(store, sink, clock) as pair:
        await arrived(store, pair, sink, "b")
        store.goes_on.set()
        await until(lambda: store.settlements, "a settlement")
        assert [(list(one.acked), one.place) for one in store.settlements] == [(["1-0"], "1-0")]


async def test_a_run_that_ends_leaves_what_is_being_read_to_the_next() -> None:
    """Law: a stop does not wait for a reading, and what that would have brought is read by the next run."""
    store, sink = Slow(), Sink()
    store.goes_on.set()
    pair = consumer(store, sink, clock=Clock(), concurrency=2)
    running = asyncio.create_task(pair.run())
    await turns(50)
    store.reads_on.clear()
    store.add(spelled(partitionkey="a"))
    pair.news()
    await turns(50)
    pair.stop()
    await running
    assert (sink.taken, store.given_up) == (0, 1)
    store.being_read = 0
    store.reads_on.set()
    pair.ready()
    running = asyncio.create_task(pair.run())
    try:
        await sink.has(1)
        await written(store)
    finally:
        await ended(running)


async def test_a_stop_waits_for_the_settlement_under_way() -> None:
    """Law: what was delivered before a stop is settled before the run ends, so that nobody delivers it again."""
    store, sink, clock = Slow(), Sink(), Halted()
    async with settling(store, sink, clock) as pair:
        pair.stop()
        await turns(50)
        store.goes_on.set()
        await until(lambda: not store.group, "all to be settled")
    assert ([list(one.acked) for one in store.settlements], store.given_up) == ([["1-0"]], 0)


async def test_news_during_any_reading_begins_no_other() -> None:
    """Law: a run has one reading under way at most, whether its loop waits for it or not."""
    store, sink = Slow(), Sink()
    store.reads_on.clear()
    async with delivering(store, sink, clock=Halted(), concurrency=8) as pair:
        for key in "abc":  # the first reading is the loop's, the next ones are of news
            await until(lambda: store.being_read, "a reading")
            store.add(spelled(partitionkey=key))
            pair.news()
            await turns(20)
            store.reads_on.set()
            await sink.has("abc".index(key) + 1)
            await turns(50)
            store.reads_on.clear()
            store.add(spelled(partitionkey=HELD + key))
            pair.news()
        store.reads_on.set()


class Gated(Sink):
    """A sink that takes the record ``gated`` when :attr:`gate` is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def post(self, body: bytes) -> Outcome:
        if b"gated" in body:
            await self.gate.wait()
        return await super().post(body)


async def test_the_timer_begins_no_settlement_beside_that_of_the_loop() -> None:
    """Law: a run has one settlement under way at most, also if the loop writes one when what was gathered is due."""
    store, sink, clock = Slow(), Gated(), Halted()
    async with delivering(store, sink, clock=clock, concurrency=2) as pair:
        await arrived(store, pair, sink, "b")
        for key in ("gated", "a", "a"):  # the second event of a record waits for the settlement of the first
            store.add(spelled(partitionkey=key))
        pair.news()
        await until(lambda: store.begun, "the loop to settle")
        sink.gate.set()
        await sink.has(3)
        await turns(50)
        clock.pass_(GATHER)
        await turns(50)
        assert store.begun == 1
        store.goes_on.set()
        await sink.has(4)


async def test_counts_are_stored_where_nothing_else_happens() -> None:
    """Law: the counts of attempts are stored some seconds after the first of them, though nothing else is due."""
    store, sink, clock, notes = Counting(), Sink(), Halted(), Counted()
    async with delivering(store, sink, clock=clock, concurrency=4, notes=notes) as pair:
        for number in (1, 2, 3):
            await arrived(store, pair, sink, "a", "b")
            clock.pass_(GATHER)
            await turns(50)
            clock.pass_(NOTE_COUNTS)
            await until(lambda: notes.delivered == 2 * number, "the counts")  # noqa: B023 -- awaited here


class Defective(Counting):
    """A store with a fault of the program at the end of a settlement."""

    def note_answer(self, sent: SentSettlement) -> bool:
        raise LookupError(f"a fault at {sent.serial}")


async def test_a_fault_at_the_end_of_a_settlement_ends_the_run() -> None:
    """Law: a fault of the program is raised by the run, also if the loop would find nothing to do."""
    store, sink, clock = Defective(), Sink(), Halted()
    pair = consumer(store, sink, clock=clock, concurrency=1)
    running = asyncio.create_task(pair.run())
    await arrived(store, pair, sink, "a")
    clock.pass_(GATHER)
    async with patience("the run to end"):
        with pytest.raises(LookupError, match="a fault"):
            await running


async def test_nothing_is_read_without_room() -> None:
    """Law: news is not read while as many entries as a window holds wait."""
    store, sink = Counting(), Sink()
    for number in range(WINDOW):
        store.add(spelled(partitionkey=f"{HELD}{number}"))
    async with delivering(store, sink, clock=Halted(), concurrency=2) as pair:
        await until(lambda: len(store.group or ()) == WINDOW, "a full window")
        await turns(50)
        store.add(spelled(partitionkey="a"))
        pair.news()
        await turns(50)
        assert len(store.group or ()) == WINDOW


async def test_a_fault_while_something_is_taken_in_ends_the_run() -> None:
    """Law: a fault of the program is raised by the run, also where its loop was idle."""
    store, sink = Counting(), Sink()
    pair = consumer(store, sink, clock=Clock(), concurrency=1)
    running = asyncio.create_task(pair.run())
    await turns(50)
    store.stream["no id"] = spelled(partitionkey="a")
    pair.news()
    async with patience("the run to end"):
        with pytest.raises(ValueError, match="no id"):
            await running


async def test_what_a_lost_reply_has_brought_comes_before_what_is_new() -> None:
    """Law: after a reading whose reply was lost, news is not read before what the group holds since then."""
    store, sink, clock = Counting(), Sink(), Halted()
    async with delivering(store, sink, clock=clock, concurrency=2) as pair:
        await turns(50)
        store.lose_reply = True
        first = store.add(spelled(partitionkey="a"))
        pair.news()
        await turns(50)
        second = store.add(spelled(partitionkey="a"))
        pair.news()
        await turns(50)
        assert not sink.taken
        clock.pass_(1.0)
        await sink.has(2)
        clock.pass_(GATHER)
        await until(lambda: not store.group, "all to be settled")
    assert [list(one.acked) for one in store.settlements] == [[first], [second]]


class Reset(Counting):
    """A store whose feed was reset before its first entry."""

    async def reset_entry(self) -> str | None:
        return "0-0"


async def test_baselines_that_repeat_earlier_events_are_not_sent_when_they_come() -> None:
    """Law: what a reset of the feed publishes again is settled and not sent, also if it comes as news."""
    store, sink, clock = Reset(), Sink(), Halted()
    delta = entry(key="b")
    async with delivering(store, sink, clock=clock, concurrency=2) as pair:
        await turns(50)
        store.add(entry(key="a").replace(b'"cause":"delta"}}', b'"cause":"baseline"}}'))
        await arrived(store, pair, sink, "c")
        store.add(delta)
        pair.news()
        await sink.has(2)
        await turns(50)
        clock.pass_(GATHER)
        await until(lambda: not store.group, "all to be settled")
    assert sink.taken == 2


async def test_news_during_a_reading_is_read_after_it() -> None:
    """Law: what comes while entries are read is read next, although no attempt ends meanwhile."""
    store, sink = Interrupted(), Sink()
    async with delivering(store, sink, clock=Halted(), concurrency=2) as pair:
        await turns(50)

        def another() -> None:
            store.happens = lambda: None
            store.add(spelled(partitionkey="b"))
            pair.news()

        store.happens = another
        store.add(spelled(partitionkey=HELD))
        pair.news()
        await sink.has(1)


async def test_news_without_the_lease_ends_the_run() -> None:
    """Law: a consumer whose lease has run out reads nothing, and says so."""
    store = Counting()
    pair = consumer(store, Sink(), clock=Clock(), concurrency=1)
    running = asyncio.create_task(pair.run())
    await turns(50)
    reads, store.held = store.reads, False
    store.add(spelled(partitionkey="a"))
    pair.news()
    async with patience("the run to end"):
        with pytest.raises(Fenced, match="not renewed in time"):
            await running
    assert store.reads == reads


async def test_nothing_is_settled_without_the_lease() -> None:
    """Law: a consumer whose lease has run out says so when it has something to settle."""
    store, sink, clock = Counting(), Sink(), Halted()
    pair = consumer(store, sink, clock=clock, concurrency=1, notes=Counted())
    running = asyncio.create_task(pair.run())
    for _ in range(2):  # counts are noted later: not they make the loop run
        await arrived(store, pair, sink, "a", "b")
        clock.pass_(GATHER)
        await turns(50)
    await arrived(store, pair, sink, "a")
    store.held = False
    clock.pass_(GATHER)
    async with patience("the run to end"):
        with pytest.raises(Fenced, match="not renewed in time"):
            await running


def test_a_shared_timer_calls_all_at_the_moment_of_the_first() -> None:
    """What is added later is called with the first; what is added then starts the next time."""

    async def run() -> list[str]:
        clock, called = Halted(), list[str]()
        timer = SharedTimer(1.0, clock)
        timer.add(lambda: called.append("a"))
        clock.pass_(0.6)
        timer.add(lambda: called.append("b"))
        assert not called
        clock.pass_(0.4)
        timer.add(lambda: called.append("c"))
        clock.pass_(0.6)
        assert called == ["a", "b"]
        clock.pass_(0.4)
        return called

    assert asyncio.run(run()) == ["a", "b", "c"]
