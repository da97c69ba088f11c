"""Laws of :mod:`poller.delivery.books` and :mod:`poller.delivery.intake`: order and completeness, whatever goes wrong.

A naive sink remembers what it was sent. Processes die between any two steps, replies are lost, the group is destroyed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from poller.delivery.attempts import Patience, Retry, Tries
from poller.delivery.books import GONE, Books
from poller.delivery.envelope import envelope_of
from poller.delivery.intake import Intake
from poller.delivery.kept import Delivery, deliveries_of, letter_of
from poller.delivery.lanes import Waiting
from poller.delivery.outcome import Failure, Outcome
from poller.delivery.subscription import Batching, Event, Subscription
from poller.store.entry_ids import before, place_of
from tests.delivery.events import entry as written
from tests.delivery.events import spelled
from tests.delivery.ledger import Ledger, at_once

NOW = datetime(2026, 3, 2, tzinfo=UTC)
OK = Outcome(status=204)
BROKEN = Outcome(status=500)
UNSENT = Outcome(failure=Failure.CREDENTIAL)
OUTCOMES = st.sampled_from(
    [OK, BROKEN, UNSENT, Outcome(failure=Failure.TIMEOUT), Outcome(status=429, retry_after="2"), Outcome(status=410)]
)


def subscription(**changes: object) -> Subscription:
    wanted = Subscription(
        "rostering",
        lambda _: True,
        Patience([timedelta(seconds=1), timedelta(seconds=3)], 0.2),
        timedelta(days=5),
        start="earliest",
    )
    return msgspec.structs.replace(wanted, **changes)


class Dying(RuleBasedStateMachine):
    """One process after the other, and what their sink has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.batching = Batching()
        self.clock = 0.0
        self.keys: dict[str, str] = {}
        self.latest: dict[str, tuple[int, int]] = {}  # of each record, the first event of the latest request
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
        self.books = Books(subscription())
        self.intake = Intake(self.ledger, "earliest", feed="acme/a", clock=lambda: self.clock)
        self.in_flight: list[list[Waiting[Event]]] = []
        kept = deliveries_of(at_once(self.ledger.parked()))
        self.books.restore(kept, now=NOW + timedelta(seconds=self.clock), clock=self.clock)

    @rule(key=st.sampled_from("ab"))
    def comes(self, key: str) -> None:
        self.keys[self.ledger.add(spelled(partitionkey=key))] = key
        self.intake.news()

    @rule(most=st.integers(1, 5))
    def reads(self, most: int) -> None:
        if self.intake.wanted:
            entries = at_once(self.intake.read(most))
            self.books.take_in(entries, now=NOW, known_to=self.intake.known_to)

    @rule()
    def sends(self) -> None:
        self.books.lanes.wake(self.clock)
        unit = self.books.lanes.take(most=self.batching.max_events)
        for number, one in enumerate(unit):
            self.check(one.id, {before.id for before in unit[:number]})
        if unit:
            self.in_flight.append(unit)

    def check(self, entry: str, along: set[str]) -> None:
        key = self.keys[entry]
        flying = [one for unit in self.in_flight for one in unit]
        assert key not in {one.key for one in flying}, "two requests for one record"
        assert entry not in self.settled, "sent although it was written that it is settled"
        before = {one for one, whose in self.keys.items() if whose == key and place_of(one) < place_of(entry)}
        assert before <= self.done | along, "before it was written that an earlier event is settled"
        assert self.latest.get(key, (0, 0)) <= place_of(entry), "an earlier event after a later one"

    @precondition(lambda self: self.in_flight)
    @rule(number=st.integers(0, 9), outcome=OUTCOMES)
    def ends(self, number: int, outcome: Outcome) -> None:
        unit = self.in_flight.pop(number % len(self.in_flight))
        self.arrived(unit)
        if outcome.success:
            self.taken |= {one.id for one in unit}
        now = NOW + timedelta(seconds=self.clock)
        self.books.conclude(unit, outcome, now=now, clock=self.clock, chance=lambda: 0.5)

    def arrived(self, unit: list[Waiting[Event]]) -> None:
        for one in reversed(unit):  # those of one request come again as one, or one by one
            self.latest[one.key] = place_of(one.id)

    @precondition(lambda self: self.in_flight)
    @rule(number=st.integers(0, 9), later=st.booleans())
    def is_not_sent(self, number: int, later: bool) -> None:
        unit = self.in_flight.pop(number % len(self.in_flight))
        if later:
            self.books.postpone(unit, self.clock + 1)
        else:
            self.books.put_back(unit)

    @rule()
    def writes(self) -> None:
        draft = self.books.drafted()
        if draft:
            settlement = draft.settlement(self.books.place)
            at_once(self.ledger.settle(settlement, now_ms=0))
            self.settled |= ({*settlement.acked} | {*settlement.unparked}) - self.ledger.kept.keys()
            self.done |= self.settled
            self.books.written(draft)

    @rule()
    def dies(self) -> None:
        for unit in self.in_flight:
            self.arrived(unit)  # it may have
        if self.ledger.group is None or self.intake.known_to:
            self.forget()
        self.begin()

    @rule(outcome=OUTCOMES, number=st.integers(0, 9))
    def goes_on(self, outcome: Outcome, number: int) -> None:
        """What goes wrong most is in the middle of much that goes right."""
        self.sends()
        if self.in_flight:
            self.ends(number, outcome)
        self.sends()

    @rule()
    def loses_a_reply(self) -> None:
        self.ledger.lose_reply = True

    @rule()
    def loses_the_group(self) -> None:
        """A process that has read everything knows it all; without one, what was settled may come again, in order."""
        if self.ledger.group is None:
            return
        if place_of(self.intake._last or "0-0") < place_of(self.ledger.position):
            self.forget()
        self.ledger.group = None

    def forget(self) -> None:
        self.latest.clear()
        self.settled.clear()

    @rule(seconds=st.integers(1, 4))
    def passes(self, seconds: int) -> None:
        self.clock += seconds

    def teardown(self) -> None:
        """Law: nothing is lost; with a sink that takes everything, all is taken or given up in the end."""
        for _ in range(100):
            self.clock += 5
            self.reads(5)
            self.sends()
            while self.in_flight:
                self.ends(0, OK)
            self.writes()
            open_ones = self.ledger.group or self.ledger.kept or self.books.lanes.fresh
            if not open_ones and self.taken | self.ledger.letters.keys() == self.keys.keys():
                break
        assert self.taken | self.ledger.letters.keys() == self.ledger.stream.keys()
        assert not self.ledger.kept
        assert not self.ledger.group
        assert not self.books.lanes.fresh
        assert not self.books.lanes.parked


TestDying = Dying.TestCase
TestDying.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def one_of(key: str, number: int) -> tuple[str, bytes]:
    return f"{number}-0", spelled(partitionkey=key)


def sent(books: Books) -> list[str]:
    return [one.id for one in books.lanes.take(most=9)]


def test_what_waits_in_its_lane_is_parked_as_soon_as_it_is_read() -> None:
    """Else the events of one failing record would fill the window, and hold up all others."""
    books = Books(subscription())
    books.take_in([one_of("a", 1)], now=NOW)
    books.conclude(books.lanes.take(), BROKEN, now=NOW, clock=0, chance=lambda: 0)
    books.take_in([one_of("a", number) for number in range(2, 500)], now=NOW)
    assert (books.lanes.fresh, books.lanes.parked) == (0, 499)
    draft = books.drafted()
    assert draft
    assert len(draft.acked) == len(draft.parked) == 499
    assert books.place == "499-0"


def test_one_bad_event_takes_no_others_along() -> None:
    """What failed together is tried again one by one, also by another process; a busy sink says nothing of events."""
    for outcome, together in ((BROKEN, 1), (Outcome(status=429, retry_after="1"), 3)):
        ledger, books = Ledger(), Books(subscription(batching=Batching(9)))
        books.take_in([one_of(key, number) for number, key in enumerate("abc", 1)], now=NOW)
        books.conclude(books.lanes.take(most=9), outcome, now=NOW, clock=0, chance=lambda: 0)
        draft = books.drafted()
        assert draft
        at_once(ledger.settle(draft.settlement(books.place), now_ms=0))
        heir = Books(subscription(batching=Batching(9)))
        heir.restore(deliveries_of(ledger.kept), now=NOW, clock=0)
        for one in (books, heir):
            one.lanes.wake(9)
            assert len(sent(one)) == together


def test_letters_of_one_id_are_one_record() -> None:
    """A UUID is the same in upper case, so its events wait for one another; other ids are told apart."""
    uuid = "7d9f3a52-6a0e-4f0c-9a50-0f5a1c4a7f11"
    books = Books(subscription())
    books.take_in([one_of(uuid, 1), one_of(uuid.upper(), 2), one_of("A", 3), one_of("a", 4)], now=NOW)
    assert [sent(books), sent(books)] == [["1-0", "2-0", "3-0", "4-0"], []]
    books = Books(subscription())
    books.take_in([one_of(uuid, 1), one_of(uuid.upper(), 2)], now=NOW)
    assert [one.id for one in books.lanes.take()] == ["1-0"]
    assert not books.lanes.ready


def test_what_is_no_event_or_is_gone_holds_nothing_up() -> None:
    """A foreign entry is passed over; one that the stream has lost while it was held becomes a dead letter."""
    books = Books(subscription())
    refused = books.take_in([("1-0", b""), ("2-0", None), ("3-0", b"[]"), one_of("a", 4)], now=NOW)
    assert [entry for entry, _ in refused] == ["1-0", "2-0", "3-0"]
    draft = books.drafted()
    assert draft
    assert draft.acked == ["1-0", "2-0", "3-0"]
    assert letter_of(draft.letters["2-0"]).reason == GONE
    assert len(draft.letters) == 1
    assert sent(books) == ["4-0"]


def test_baselines_are_for_those_who_asked_for_the_beginning() -> None:
    """A new subscription gets what changes, not what there was; nor does a store that was lost start a storm."""
    baseline = written().replace(b'"cause":"delta"}}', b'"cause":"baseline"}}')
    for start, expected in (("now", ["2-0"]), ("earliest", ["1-0", "2-0"])):
        books = Books(subscription(start=start))
        books.take_in([("1-0", baseline), ("2-0", written())], now=NOW)
        assert sent(books) == expected


def test_a_baseline_after_a_loss_is_for_nobody_who_was_there_before() -> None:
    """Who asked for the beginning has had it; what was published before the loss is still owed to him."""
    baseline = written().replace(b'"cause":"delta"}}', b'"cause":"baseline"}}')
    entries = [("4-0", baseline), ("5-0", baseline), ("6-0", written())]
    books = Books(subscription(start="earliest"))
    books.take_in(entries, now=NOW, anew="4-0")
    assert sent(books) == ["4-0", "6-0"]


def test_a_wall_clock_that_was_set_back_makes_nothing_wait_longer() -> None:
    """Than it may have been parked for, jitter included; one that was set forward lets it be tried at once."""
    books = Books(subscription())
    books.take_in([one_of("a", 1)], now=NOW)
    books.conclude(books.lanes.take(), BROKEN, now=NOW, clock=0, chance=lambda: 0)
    draft = books.drafted()
    assert draft
    for now, due in ((NOW, 101.0), (NOW - timedelta(hours=1), 101.2), (NOW + timedelta(hours=1), 100.0)):
        heir = Books(subscription())
        heir.restore(deliveries_of(draft.parked), now=now, clock=100)
        assert heir.lanes.next_due == due


def test_a_sink_that_is_gone_uses_up_nothing() -> None:
    """410: the event is as it was, and waits for the subscription to be resumed."""
    books = Books(subscription())
    books.take_in([one_of("a", 1)], now=NOW)
    concluded = books.conclude(books.lanes.take(), Outcome(status=410), now=NOW, clock=0, chance=lambda: 0)
    assert concluded.rest
    assert books.drafted() is None
    assert sent(books) == ["1-0"]


def test_what_could_not_be_sent_is_as_it_was() -> None:
    """Law: nothing of it is written, its schedule is whole, and its record's next event stays behind it.

    Not even its event is kept where it has waited before: however many are taken in vain, they are fetched anew.
    """
    books = Books(subscription())
    books.take_in([one_of("a", 1), one_of("a", 2), one_of("b", 3)], now=NOW)
    for _ in range(100):
        unit = books.lanes.take()
        assert {waiting.key: waiting.id for waiting in unit} in ({"a": "1-0"}, {"b": "3-0"})
        concluded = books.conclude(unit, UNSENT, now=NOW, clock=0, chance=lambda: 0)
        assert (concluded.pause, concluded.rest, books.drafted()) == (None, None, None)
    assert books.lanes.next_due is None
    assert sorted(sent(books)) == ["1-0", "2-0", "3-0"]
    books.restore({"9-0": Delivery("c", due=1, tries=Tries(2, 2))}, now=NOW, clock=0)
    books.lanes.wake(0)
    (parked,) = books.lanes.take()
    parked.item = (envelope_of(spelled()), spelled())
    books.conclude([parked], UNSENT, now=NOW, clock=0, chance=lambda: 0)
    assert (books.drafted(), books.lanes.parked) == (None, 1)
    (again,) = books.lanes.take()
    assert again.item is None
    concluded = books.conclude([again], BROKEN, now=NOW, clock=0, chance=lambda: 0)
    assert [(one.attempt, one.step) for one in concluded.told] == [(2, Retry(timedelta(seconds=3)))]


def test_what_stands_behind_one_that_waits_is_parked_along_with_it() -> None:
    """Days of retries hold up neither the group nor its trimming."""
    books = Books(subscription())
    books.take_in([one_of("a", 1), one_of("a", 2), one_of("b", 3)], now=NOW)
    books.conclude(books.lanes.take(), BROKEN, now=NOW, clock=0, chance=lambda: 0)
    draft = books.drafted()
    assert draft
    assert draft.acked == list(draft.parked) == ["1-0", "2-0"]
    assert (books.lanes.fresh, books.place) == (1, before("3-0"))


def test_what_a_predecessor_had_parked_is_never_new() -> None:
    """Though it was delivered since, and comes again because the group was lost and made again."""
    books = Books(subscription())
    books.take_in([one_of("a", 1)], now=NOW)
    books.conclude(books.lanes.take(), BROKEN, now=NOW, clock=0, chance=lambda: 0)
    draft = books.drafted()
    assert draft
    heir = Books(subscription())
    heir.restore(deliveries_of(draft.parked), now=NOW, clock=0)
    heir.lanes.wake(9)
    heir.conclude(heir.lanes.take(), OK, now=NOW, clock=9, chance=lambda: 0)
    last = heir.drafted()
    assert last
    heir.written(last)
    heir.take_in([one_of("a", 1), one_of("a", 2)], now=NOW)
    assert sent(heir) == ["2-0"]
