"""Laws of :mod:`poller.delivery.delivery_tracker`: order and completeness under all faults.

A simple sink records what it was sent. Processes die between any two steps, replies are lost, the group is destroyed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from poller.delivery.cloudevent import Event, envelope_of
from poller.delivery.delivery_codec import Delivery, deliveries_of, letter_of
from poller.delivery.delivery_tracker import GONE, DeliveryTracker, ReplayProgress, ScheduledRetries
from poller.delivery.feed_consumer import EntryReader
from poller.delivery.filters import Batching, Subscription
from poller.delivery.key_queues import QueuedEntry
from poller.delivery.retry import Retry, RetryPolicy, Tries
from poller.delivery.sinks.base import Failure, Outcome
from poller.store.replay import ReplayPosition, ReplaySpan
from poller.store.stream import EntryId, before
from tests.delivery.events import entry as written
from tests.delivery.events import spelled
from tests.delivery.ledger import Ledger, at_once
from tests.delivery.outcomes import answered, unanswered
from tests.harness.clock import StubClock

NOW = datetime(2026, 3, 2, tzinfo=UTC)
OK = answered(204)
BROKEN = answered(500)
UNSENT = unanswered(Failure.CREDENTIAL)
OUTCOMES = st.sampled_from(
    [OK, BROKEN, UNSENT, unanswered(Failure.TIMEOUT), answered(429, retry_after="2"), answered(410)]
)


def subscription(**changes: object) -> Subscription:
    wanted = Subscription(
        "rostering",
        lambda _: True,
        RetryPolicy([timedelta(seconds=1), timedelta(seconds=3)], 0.2),
        timedelta(days=5),
        start="earliest",
    )
    return msgspec.structs.replace(wanted, **changes)


class Dying(RuleBasedStateMachine):
    """Processes that die one after the other, and what their sink received."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.batching = Batching()
        self.clock = 0.0
        self.keys: dict[str, str] = {}
        self.latest: dict[str, tuple[int, int]] = {}  # by record, the first event of the latest request
        self.taken: set[str] = set()  # by the sink
        self.settled: set[str] = set()
        self.done: set[str] = set()  # settled at any time
        self.begin()

    @initialize(most=st.integers(1, 4), keys=st.lists(st.sampled_from("ab"), min_size=3, max_size=8))
    def batches(self, most: int, keys: list[str]) -> None:
        self.batching = Batching(most)
        for key in keys:
            self.comes(key)
        self.reads(5)

    def begin(self) -> None:
        self.tracker = DeliveryTracker(subscription())
        self.intake = EntryReader(self.ledger, "earliest", feed="acme/a", clock=StubClock(monotonic=lambda: self.clock))
        self.in_flight: list[list[QueuedEntry[Event]]] = []
        kept = deliveries_of(at_once(self.ledger.parked()))
        self.tracker.restore(kept, now=NOW + timedelta(seconds=self.clock), clock=self.clock)

    @rule(key=st.sampled_from("ab"))
    def comes(self, key: str) -> None:
        self.keys[self.ledger.add(spelled(partitionkey=key))] = key
        self.intake.news()

    @rule(most=st.integers(1, 5))
    def reads(self, most: int) -> None:
        if self.intake.wanted:
            entries = at_once(self.intake.read(most))
            known_to, pending = self.intake.known_to, self.intake.pending
            self.tracker.take_in(entries, now=NOW, known_to=known_to, pending=pending)

    @rule()
    def sends(self) -> None:
        self.tracker.queues.wake(self.clock)
        unit = self.tracker.queues.claim(most=self.batching.max_events)
        for number, one in enumerate(unit):
            self.check(one.id, {before.id for before in unit[:number]})
        if unit:
            self.in_flight.append(unit)

    def check(self, entry: str, along: set[str]) -> None:
        key = self.keys[entry]
        flying = [one for unit in self.in_flight for one in unit]
        assert key not in {one.key for one in flying}, "two requests for one record"
        assert entry not in self.settled, "a settled entry was sent again"
        before = {one for one, whose in self.keys.items() if whose == key and EntryId.parse(one) < EntryId.parse(entry)}
        assert before <= self.done | along, "sent before an earlier event was written as settled"
        assert self.latest.get(key, (0, 0)) <= EntryId.parse(entry), "an earlier event was sent after a later one"

    @precondition(lambda self: self.in_flight)
    @rule(number=st.integers(0, 9), outcome=OUTCOMES)
    def ends(self, number: int, outcome: Outcome) -> None:
        unit = self.in_flight.pop(number % len(self.in_flight))
        self.arrived(unit)
        if outcome.is_delivered:
            self.taken |= {one.id for one in unit}
        now = NOW + timedelta(seconds=self.clock)
        self.tracker.conclude(unit, outcome, now=now, clock=self.clock, chance=lambda: 0.5)

    def arrived(self, unit: list[QueuedEntry[Event]]) -> None:
        for one in reversed(unit):  # events of one request are sent again together, or one by one
            self.latest[one.key] = EntryId.parse(one.id)

    @precondition(lambda self: self.in_flight)
    @rule(number=st.integers(0, 9), later=st.booleans())
    def is_not_sent(self, number: int, later: bool) -> None:
        unit = self.in_flight.pop(number % len(self.in_flight))
        if later:
            self.tracker.postpone(unit, self.clock + 1)
        else:
            self.tracker.put_back(unit)

    @rule()
    def writes(self) -> None:
        draft = self.tracker.next_batch()
        if draft:
            settlement = draft.settlement()
            at_once(self.ledger.settle(settlement, now_ms=0))
            self.settled |= ({*settlement.acked} | {*settlement.unparked}) - self.ledger.kept.keys()
            self.done |= self.settled
            self.tracker.written(draft)

    @rule()
    def dies(self) -> None:
        for unit in self.in_flight:
            self.arrived(unit)  # the request may have arrived
        if self.ledger.group is None or self.intake.known_to:
            self.forget()
        self.begin()

    @rule(outcome=OUTCOMES, number=st.integers(0, 9))
    def goes_on(self, outcome: Outcome, number: int) -> None:
        """Send and end a request, so that most faults hit a consumer that makes progress."""
        self.sends()
        if self.in_flight:
            self.ends(number, outcome)
        self.sends()

    @rule()
    def loses_a_reply(self) -> None:
        self.ledger.lose_reply = True

    @rule()
    def loses_the_group(self) -> None:
        """The group is destroyed; a process that has not read everything may then get settled entries again."""
        if self.ledger.group is None:
            return
        if EntryId.parse(self.intake._last or "0-0") < EntryId.parse(self.ledger.position):
            self.forget()
        self.ledger.group = None

    def forget(self) -> None:
        self.latest.clear()
        self.settled.clear()

    @rule(seconds=st.integers(1, 4))
    def passes(self, seconds: int) -> None:
        self.clock += seconds

    def teardown(self) -> None:
        """With a sink that accepts everything, each event is delivered or becomes a dead letter in the end."""
        for _ in range(100):
            self.clock += 5
            self.reads(5)
            self.sends()
            while self.in_flight:
                self.ends(0, OK)
            self.writes()
            open_ones = self.ledger.group or self.ledger.kept or self.tracker.queues.fresh
            if not open_ones and self.taken | self.ledger.letters.keys() == self.keys.keys():
                break
        assert self.taken | self.ledger.letters.keys() == self.ledger.stream.keys()
        assert not self.ledger.kept
        assert not self.ledger.group
        assert not self.tracker.queues.fresh
        assert not self.tracker.queues.parked


TestDying = Dying.TestCase
TestDying.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def one_of(key: str, number: int) -> tuple[str, bytes]:
    return f"{number}-0", spelled(partitionkey=key)


def sent(tracker: DeliveryTracker) -> list[str]:
    return [one.id for one in tracker.queues.claim(most=9)]


def test_what_waits_in_its_lane_is_parked_as_soon_as_it_is_read() -> None:
    """Events behind a retry are scheduled with it as soon as they are read, so that they do not fill the window."""
    tracker = DeliveryTracker(subscription())
    tracker.take_in([one_of("a", 1)], now=NOW)
    tracker.conclude(tracker.queues.claim(), BROKEN, now=NOW, clock=0, chance=lambda: 0)
    tracker.take_in([one_of("a", number) for number in range(2, 500)], now=NOW)
    assert (tracker.queues.fresh, tracker.queues.parked) == (0, 499)
    draft = tracker.next_batch()
    assert draft
    assert len(draft.acked) == len(draft.parked) == 499
    assert tracker.place == "499-0"


def test_one_bad_event_takes_no_others_along() -> None:
    """Events that failed in one batch are retried one by one, also after a restart; a 429 does not split the batch."""
    for outcome, together in ((BROKEN, 1), (answered(429, retry_after="1"), 3)):
        ledger, tracker = Ledger(), DeliveryTracker(subscription(batching=Batching(9)))
        tracker.take_in([one_of(key, number) for number, key in enumerate("abc", 1)], now=NOW)
        tracker.conclude(tracker.queues.claim(most=9), outcome, now=NOW, clock=0, chance=lambda: 0)
        draft = tracker.next_batch()
        assert draft
        at_once(ledger.settle(draft.settlement(), now_ms=0))
        heir = DeliveryTracker(subscription(batching=Batching(9)))
        heir.restore(deliveries_of(ledger.kept), now=NOW, clock=0)
        for one in (tracker, heir):
            one.queues.wake(9)
            assert len(sent(one)) == together


def test_each_event_of_a_batch_that_failed_is_named() -> None:
    """The log names later events of a record, too, which wait behind its first one and are not kept in memory."""
    tracker = DeliveryTracker(subscription(batching=Batching(9)))
    tracker.take_in([one_of("a", 1), one_of("a", 2)], now=NOW)
    unit = tracker.queues.claim(most=9)
    ids = [one.item and one.item[0].id for one in unit]
    reports = tracker.conclude(unit, BROKEN, now=NOW, clock=0, chance=lambda: 0).reports
    assert [one.event for one in reports] == ids
    assert all(one.size for one in reports)


def test_a_sink_may_take_a_part_of_a_batch() -> None:
    """Law: what was taken is settled, and the rest of the same record waits, in order."""
    tracker = DeliveryTracker(subscription(batching=Batching(9)))
    tracker.take_in([one_of("a", number) for number in (1, 2, 3)], now=NOW)
    parts = msgspec.structs.replace(BROKEN, each=(OK, BROKEN, BROKEN))
    tracker.conclude(tracker.queues.claim(most=9), parts, now=NOW, clock=0, chance=lambda: 0)
    draft = tracker.next_batch()
    assert draft
    assert (draft.acked, list(draft.parked), draft.unparked) == (["1-0", "2-0", "3-0"], ["2-0", "3-0"], [])
    assert (tracker.queues.foremost("a"), tracker.queues.next_due) == ("2-0", 1.0)


def test_letters_of_one_id_are_one_record() -> None:
    """UUIDs that differ only in case are one record, whose events keep their order; other ids are two records."""
    uuid = "7d9f3a52-6a0e-4f0c-9a50-0f5a1c4a7f11"
    tracker = DeliveryTracker(subscription())
    tracker.take_in([one_of(uuid, 1), one_of(uuid.upper(), 2), one_of("A", 3), one_of("a", 4)], now=NOW)
    assert [sent(tracker), sent(tracker)] == [["1-0", "2-0", "3-0", "4-0"], []]
    tracker = DeliveryTracker(subscription())
    tracker.take_in([one_of(uuid, 1), one_of(uuid.upper(), 2)], now=NOW)
    assert [one.id for one in tracker.queues.claim()] == ["1-0"]
    assert not tracker.queues.ready


def test_what_is_no_event_or_is_gone_holds_nothing_up() -> None:
    """An entry that is no event is skipped; a pending entry that the stream has lost becomes a dead letter."""
    tracker = DeliveryTracker(subscription())
    refused = tracker.take_in([("1-0", b""), ("2-0", None), ("3-0", b"[]"), one_of("a", 4)], now=NOW)
    assert [entry for entry, _ in refused] == ["1-0", "2-0", "3-0"]
    draft = tracker.next_batch()
    assert draft
    assert draft.acked == ["1-0", "2-0", "3-0"]
    assert letter_of(draft.letters["2-0"]).reason == GONE
    assert len(draft.letters) == 1
    assert sent(tracker) == ["4-0"]


def test_baselines_are_for_those_who_asked_for_the_beginning() -> None:
    """A subscription from ``now`` gets no baseline events, a subscription from ``earliest`` does."""
    baseline = written().replace(b'"cause":"delta"}}', b'"cause":"baseline"}}')
    for start, expected in (("now", ["2-0"]), ("earliest", ["1-0", "2-0"])):
        tracker = DeliveryTracker(subscription(start=start))
        tracker.take_in([("1-0", baseline), ("2-0", written())], now=NOW)
        assert sent(tracker) == expected


def test_a_baseline_after_a_loss_is_for_nobody_who_was_there_before() -> None:
    """After a reset, a subscription gets the baseline events up to the reset entry but not the new baseline."""
    baseline = written().replace(b'"cause":"delta"}}', b'"cause":"baseline"}}')
    entries = [("4-0", baseline), ("5-0", baseline), ("6-0", written())]
    tracker = DeliveryTracker(subscription(start="earliest"))
    tracker.take_in(entries, now=NOW, reset_entry="4-0")
    assert sent(tracker) == ["4-0", "6-0"]


def test_a_wall_clock_that_was_set_back_makes_nothing_wait_longer() -> None:
    """A clock that was set back makes no retry wait longer than scheduled; one set forward makes it due."""
    tracker = DeliveryTracker(subscription())
    tracker.take_in([one_of("a", 1)], now=NOW)
    tracker.conclude(tracker.queues.claim(), BROKEN, now=NOW, clock=0, chance=lambda: 0)
    draft = tracker.next_batch()
    assert draft
    for now, due in ((NOW, 101.0), (NOW - timedelta(hours=1), 101.2), (NOW + timedelta(hours=1), 100.0)):
        heir = DeliveryTracker(subscription())
        heir.restore(deliveries_of(draft.parked), now=now, clock=100)
        assert heir.queues.next_due == due


def test_a_sink_that_is_gone_uses_up_nothing() -> None:
    """After a 410 the event is unchanged and waits until the subscription is resumed."""
    tracker = DeliveryTracker(subscription())
    tracker.take_in([one_of("a", 1)], now=NOW)
    concluded = tracker.conclude(
        tracker.queues.claim(), answered(410, error="the sink answered 410"), now=NOW, clock=0, chance=lambda: 0
    )
    assert concluded.rest
    assert tracker.next_batch() is None
    assert sent(tracker) == ["1-0"]


def test_what_could_not_be_sent_is_as_it_was() -> None:
    """An event that could not be sent is not written, uses up no attempt, and stays ahead of its record's next event.

    A retried event is dropped from memory too, and fetched again for its next attempt.
    """
    tracker = DeliveryTracker(subscription())
    tracker.take_in([one_of("a", 1), one_of("a", 2), one_of("b", 3)], now=NOW)
    for _ in range(100):
        unit = tracker.queues.claim()
        assert {waiting.key: waiting.id for waiting in unit} in ({"a": "1-0"}, {"b": "3-0"})
        concluded = tracker.conclude(unit, UNSENT, now=NOW, clock=0, chance=lambda: 0)
        assert (concluded.pause, concluded.rest, tracker.next_batch()) == (None, None, None)
    assert tracker.queues.next_due is None
    assert sorted(sent(tracker)) == ["1-0", "2-0", "3-0"]
    tracker.restore({"9-0": Delivery("c", due=1, tries=Tries(2, 2))}, now=NOW, clock=0)
    tracker.queues.wake(0)
    (parked,) = tracker.queues.claim()
    parked.item = (envelope_of(spelled()), spelled())
    tracker.conclude([parked], UNSENT, now=NOW, clock=0, chance=lambda: 0)
    assert (tracker.next_batch(), tracker.queues.parked) == (None, 1)
    (again,) = tracker.queues.claim()
    assert again.item is None
    concluded = tracker.conclude([again], BROKEN, now=NOW, clock=0, chance=lambda: 0)
    assert [(one.attempt, one.step) for one in concluded.reports] == [(2, Retry(timedelta(seconds=3)))]


def test_what_stands_behind_one_that_waits_is_parked_along_with_it() -> None:
    """Events behind a retry are scheduled with it, so that the group does not hold the stream for days."""
    tracker = DeliveryTracker(subscription())
    tracker.take_in([one_of("a", 1), one_of("a", 2), one_of("b", 3)], now=NOW)
    tracker.conclude(tracker.queues.claim(), BROKEN, now=NOW, clock=0, chance=lambda: 0)
    draft = tracker.next_batch()
    assert draft
    assert draft.acked == list(draft.parked) == ["1-0", "2-0"]
    assert (tracker.queues.fresh, tracker.place) == (1, before("3-0"))


def test_what_a_predecessor_had_parked_is_never_new() -> None:
    """An entry that a previous process scheduled for retry is not delivered twice, even if a new group reads it."""
    tracker = DeliveryTracker(subscription())
    tracker.take_in([one_of("a", 1)], now=NOW)
    tracker.conclude(tracker.queues.claim(), BROKEN, now=NOW, clock=0, chance=lambda: 0)
    draft = tracker.next_batch()
    assert draft
    heir = DeliveryTracker(subscription())
    heir.restore(deliveries_of(draft.parked), now=NOW, clock=0)
    heir.queues.wake(9)
    heir.conclude(heir.queues.claim(), OK, now=NOW, clock=9, chance=lambda: 0)
    last = heir.next_batch()
    assert last
    heir.written(last)
    heir.take_in([one_of("a", 1), one_of("a", 2)], now=NOW)
    assert sent(heir) == ["2-0"]


@pytest.mark.parametrize("stored", [("1-0", "4-0"), ("4-0",), ("4-0", "5-0")])
def test_what_the_group_holds_is_not_settled_whatever_was_stored_behind_it(stored: tuple[str, ...]) -> None:
    """Pending events before a stored one of their record are sent in order: an earlier version left such a store."""
    tracker = DeliveryTracker(subscription())
    tracker.restore({entry: Delivery("a") for entry in stored}, now=NOW, clock=0)
    tracker.take_in([one_of("a", 2), one_of("a", 3)], now=NOW, pending=True)
    tracker.take_in([one_of("a", 2), one_of("a", 3)], now=NOW, pending=True)  # read again, as after a lost reply
    draft = tracker.next_batch()
    assert draft
    assert draft.acked == list(draft.parked) == ["2-0", "3-0"]
    tracker.take_in([one_of("a", 6)], now=NOW)
    arrived: list[str] = []
    while tracker.queues.parked:
        tracker.queues.wake(1)
        unit = tracker.queues.claim()
        arrived += [one.id for one in unit]
        tracker.conclude(unit, OK, now=NOW, clock=1, chance=lambda: 0)
        if draft := tracker.next_batch():
            tracker.written(draft)
    assert arrived == sorted({*stored, "2-0", "3-0", "6-0"})


def test_what_a_new_group_reads_again_was_settled_before_what_is_stored_of_its_record() -> None:
    """An event that a new group reads, before a stored one of its record, is not sent again: it was settled."""
    tracker = DeliveryTracker(subscription())
    tracker.restore({"4-0": Delivery("a")}, now=NOW, clock=0)
    tracker.take_in([one_of("a", 2)], now=NOW)
    tracker.queues.wake(1)
    assert sent(tracker) == ["4-0"]


# Laws of :class:`poller.delivery.delivery_tracker.ScheduledRetries`.

PATIENCE = RetryPolicy([timedelta(seconds=1), timedelta(seconds=10)], 0.5)


def due_in(seconds: float) -> int:
    return int((NOW + timedelta(seconds=seconds)).timestamp() * 1000)


def joined(**deliveries: Delivery) -> tuple[ScheduledRetries, list[QueuedEntry[Event]]]:
    """The entries ``1-0``, ``2-0`` … restored at 100 s of the monotonic clock."""
    parked = ScheduledRetries(PATIENCE)
    return parked, list(parked.join({f"{name[1:]}-0": one for name, one in deliveries.items()}, now=NOW, clock=100.0))


@pytest.mark.parametrize(("seconds", "expected"), [(4, 104.0), (-30, 100.0), (15, 115.0), (3600, 115.0)])
def test_nothing_waits_longer_than_its_schedule(seconds: float, expected: float) -> None:
    """A jump of the wall clock changes a restored wait, but never beyond the wait's own length."""
    parked, _ = joined(_1=Delivery("a", due=due_in(seconds), tries=Tries(3, 3)))
    assert parked.due("1-0") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tries", "longest"),
    [
        (Tries(2, 2), 1.5),  # the first wait with its full jitter
        (Tries(9, 9), 15.0),  # the schedule was shortened meanwhile: its last wait
        (Tries(2, 1, timedelta(minutes=1)), 60.0),  # the sink asked for a pause
    ],
)
def test_an_hour_of_the_clock_costs_no_more_than_the_wait(tries: Tries, longest: float) -> None:
    """An event whose retry was scheduled by a wrong clock waits no longer than its wait in the schedule."""
    parked, _ = joined(_1=Delivery("a", due=due_in(3600), tries=tries))
    assert parked.due("1-0") == pytest.approx(100.0 + longest)


def test_what_waits_for_a_pause_ends_its_wait_with_it() -> None:
    """Law: what waits for a pause is due when it ends, or before; what waits by the schedule, or is settled, is not."""
    paused: Any = {"tries": Tries(2, 1, timedelta(hours=1)), "paused": due_in(0)}
    parked, _ = joined(
        _1=Delivery("a", due=due_in(3600), **paused),
        _2=Delivery("b", due=due_in(15), tries=Tries(3, 3)),
        _3=Delivery("c", due=due_in(0.5), **paused),
        _4=Delivery("d", due=due_in(3600), **paused),
    )
    parked.drop("4-0")
    assert set(parked.end_pause(101.0)) == {"1-0", "3-0"}
    assert [parked.due(f"{number}-0") for number in range(1, 5)] == [101.0, 115.0, pytest.approx(100.5), None]
    assert not parked.end_pause(90.0)
    parked.wait("1-0", 500.0)  # refused again
    assert set(parked.end_pause(200.0)) == {"1-0"}
    assert parked.due("1-0") == 200.0


def test_a_refusal_without_a_pause_is_followed_by_one_of_a_second() -> None:
    """Law: where the sink is in no pause, the event that it has refused waits for a second."""
    tracker = DeliveryTracker(subscription())
    paused = Delivery("a", due=due_in(3600), tries=Tries(2, 1, timedelta(hours=1)), paused=due_in(0))
    tracker.restore({"1-0": paused}, now=NOW, clock=100.0)
    tracker.end_pause(clock=100.0)
    assert tracker.queues.next_due == 101.0


def test_what_is_due_with_its_record_has_no_wait_of_its_own() -> None:
    """A retry behind another one of its record has no due time of its own."""
    parked, _ = joined(_1=Delivery("a", due=due_in(4)), _2=Delivery("a"))
    for entry in parked:
        parked.wait(entry, 200.0)
    assert (parked.due("1-0"), parked.due("2-0"), parked.due(None)) == (200.0, None, None)


def test_each_stands_in_its_lane_as_it_was_tried() -> None:
    """Restored entries keep record, size and order; an event that failed by itself is sent alone."""
    _, waiting = joined(
        _1=Delivery("a", size=7), _2=Delivery("b", tries=Tries(2, 2)), _3=Delivery("b", tries=Tries(2, 1))
    )
    assert [(one.id, one.key, one.size, one.alone, one.fresh) for one in waiting] == [
        ("1-0", "a", 7, False, False),
        ("2-0", "b", 0, True, False),
        ("3-0", "b", 0, False, False),
    ]


def test_what_is_settled_is_forgotten() -> None:
    """After an entry is settled its attempts start from 0 if it is read again."""
    parked, (waiting,) = joined(_1=Delivery("a", due=due_in(4), tries=Tries(2, 2)))
    assert parked.of(waiting).tries == Tries(2, 2)
    parked.drop("1-0")
    assert (list(parked), parked.due("1-0"), parked.of(waiting)) == ([], None, Delivery("a"))


# Laws of :class:`poller.delivery.delivery_tracker.ReplayProgress`.

SPAN = ReplaySpan("r", "4-0", "9-0")


def test_none() -> None:
    """Without a replay there is nothing to read and no position to write."""
    assert ReplayProgress().wants(5) is None
    assert ReplayProgress().place is None


@given(st.integers(1, 30), st.integers(1, 7), st.data())
def test_the_place_is_never_beyond_what_is_not_done(count: int, most: int, chosen: st.DataObject) -> None:
    """In any order of settling, and over crashes, the written position passes no open entry, and the replay ends."""
    entries = [f"{number}-0" for number in range(1, count + 1)]
    done: set[str] = set()
    after, steps = "0-0", 0
    replay = ReplayProgress(ReplaySpan("r", after, entries[-1]))
    while after:
        if span := replay.wants(most):
            found = [entry for entry in entries if EntryId.parse(entry) > EntryId.parse(span.after)][:most]
            replay.took([(entry, b"") for entry in found], most=most)
            for entry in found:
                replay.add(entry, 1)
        elif replay.open:
            settled = chosen.draw(st.sampled_from(list(replay.open)))
            done.add(settled)
            replay.settled(settled)
        if place := replay.place:
            after = place.after
            replay.wrote(place)
            assert all(
                entry in done for entry in entries if after == "" or EntryId.parse(entry) <= EntryId.parse(after)
            )
            if after and steps < 2 and chosen.draw(st.booleans()):  # a crash
                steps += 1
                replay = ReplayProgress(ReplaySpan("r", after, entries[-1]))
    assert done == set(entries)
    assert replay.wants(most) is None


def test_another_one_takes_its_place() -> None:
    """The same replay continues at its position; another replay starts at its own."""
    replay = ReplayProgress(SPAN)
    replay.took([("5-0", b"")], most=1)
    assert replay.follows(ReplaySpan("r", "4-0", "9-0")) is replay
    other = replay.follows(ReplaySpan("s", "1-0", "2-0"))
    other.wrote(ReplayPosition("r", ""))
    assert other.wants(1) == ReplaySpan("s", "1-0", "2-0")
    assert replay.follows(None).wants(1) is None
