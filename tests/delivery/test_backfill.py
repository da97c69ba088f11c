"""Laws of :mod:`poller.delivery.backfill`: order and completeness under all faults, on a model of the store."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from poller.changes.diff import Change, ChangeKind
from poller.changes.events import Cause, EventFrame
from poller.delivery.backfill import BackfillChunk, BackfillProgress, BackfillReader, BackfillSource
from poller.delivery.cloudevent import Event, envelope_of
from poller.delivery.delivery_codec import Delivery, deliveries_of, delivery_again, letter_of
from poller.delivery.delivery_tracker import DeliveryTracker
from poller.delivery.feed_consumer import EntryReader
from poller.delivery.filters import Batching, Subscription
from poller.delivery.key_queues import QueuedEntry
from poller.delivery.projection import projection_of
from poller.delivery.retry import RetryPolicy
from poller.delivery.sinks.base import Failure, Outcome
from poller.errors import Fenced
from poller.resources import RESOURCES
from poller.source.feed import Feed
from poller.source.paging import ListQuery
from poller.store.backfill import UNREAD, Backfill, BackfillPosition, DeliveryId, is_backfilled
from poller.store.consumer_state import FirstReading
from poller.store.records import AsOf, RecordChunk, ScanPosition, StoredRecord
from poller.store.stream import EntryId
from tests.delivery.ledger import Ledger, at_once
from tests.delivery.outcomes import answered, unanswered
from tests.harness.clock import StubClock

NOW: Final = datetime(2026, 3, 2, tzinfo=UTC)
OK: Final = answered(204)
OUTCOMES: Final = st.sampled_from(
    [OK, OK, answered(500), unanswered(Failure.CREDENTIAL), answered(429, retry_after="2"), answered(410)]
)
FEED: Final = Feed(
    "acme/contractTypes",
    RESOURCES["contractTypes"],
    ListQuery(),
    event_source="https://api.example.org/v1",
    type_prefix="org.example.api",
)
KEYS: Final = "abcdef"


def subscription(**changes: Any) -> Subscription:
    wanted = Subscription(
        "rostering",
        lambda _: True,
        RetryPolicy([timedelta(seconds=1), timedelta(seconds=3)], 0.2),
        timedelta(days=5),
        start="snapshot",
    )
    return msgspec.structs.replace(wanted, **changes)


def raw(key: str, revision: int) -> bytes:
    return json.dumps({"id": key, "n": revision}).encode()


class ReadFeed(Ledger):
    """A feed whose records and stream change together, and one consumer of it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[str, int] = {}
        self.revisions: dict[str, int] = {}
        self.process = 1
        self.generation = "g"
        self.frame = EventFrame(
            feed=FEED.id, generation="g", source="urn:s", type_stem="org.example.api.contractType", cause=Cause.DELTA
        )

    def change(self, key: str) -> str:
        """Publish the next revision of a record."""
        revision = self.records[key] = self.revisions[key] = self.revisions.get(key, 0) + 1
        return self._publish(ChangeKind.CREATED, key, revision)

    def remove(self, key: str) -> str:
        del self.records[key]
        self.revisions[key] += 1
        return self._publish(ChangeKind.REMOVED, key, self.revisions[key])

    def _publish(self, kind: ChangeKind, key: str, revision: int) -> str:
        content = None if kind is ChangeKind.REMOVED else raw(key, revision)
        change = Change(kind, key, key, None, content, content or b"", None, (), revision)
        number = len(self.stream) + 1
        return self.add(
            self.frame.encode(
                change, event_id=self.frame.event_id(change), sequence=number, recorded="2026-03-02T00:00:00Z"
            )
        )

    @staticmethod
    def place_of(key: str) -> int:
        """Where a scan finds a record."""
        return int.from_bytes(key.encode(), "big")

    @property
    def end(self) -> str:
        return max(self.stream, key=EntryId.parse, default="0-0")

    async def scan(self, position: ScanPosition | None = None, *, count: int, size: int) -> RecordChunk:  # noqa: ARG002 -- as the real one
        restarted = position is not None and (position.run_id, position.generation) != (
            str(self.process),
            self.generation,
        )
        after = 0 if position is None or restarted else position.cursor
        found = [key for key in sorted(self.records) if self.place_of(key) > after]
        some, as_of = found[:count], AsOf(self.end, len(self.stream))
        following = None
        if len(found) > count:
            following = ScanPosition(self.place_of(some[-1]), str(self.process), self.generation, "2", as_of)
        records = [StoredRecord(key, key, self.records[key], 0, raw(key, self.records[key])) for key in some]
        return RecordChunk(records, following, as_of, self.generation, restarted)


def content(event: bytes) -> tuple[str, int]:
    """Record and revision of an event."""
    read = json.loads(event)
    return read["partitionkey"], read["data"]["revision"]


class Telling(RuleBasedStateMachine):
    """Processes that tell records to a sink, and die one after the other while the records change."""

    def __init__(self) -> None:
        super().__init__()
        self.feed = ReadFeed()
        self.batching = Batching()
        self.clock = 0.0
        self.latest: dict[str, int] = {}  # by record, the revision of the first event of the latest request
        self.taken: dict[str, int] = {}  # by record, the highest revision that the sink has
        self.seen: set[tuple[str, int]] = set()  # what the sink has of the stream
        self.told: set[str] = set()  # records that a backfill has told, since the last request for one
        self.requests = 0
        self.requested_at = 0  # this many events were published then
        self.window = 4
        self.begin()

    @initialize(most=st.integers(1, 4), window=st.sampled_from([2, 4, 9]), keys=st.sets(st.sampled_from(KEYS)))
    def was_read(self, most: int, window: int, keys: set[str]) -> None:
        """The feed has records whose events are trimmed, and the subscription begins with them."""
        self.batching, self.window = Batching(most), window
        for key in sorted(keys):
            self.feed.records[key] = self.feed.revisions[key] = 1 + ord(key) % 3
        self.requests_one()
        self.begin()

    def begin(self) -> None:
        clock = StubClock(monotonic=lambda: self.clock, now=lambda: NOW + timedelta(seconds=self.clock))
        self.tracker = DeliveryTracker(subscription())
        self.intake = EntryReader(self.feed, "snapshot", feed=FEED.id, clock=clock)
        self.reader = BackfillReader(
            self.tracker.backfill,
            self.feed,
            lambda: BackfillSource(FEED, self.feed),
            window=self.window,
            window_bytes=10_000,
            is_live=False,
            where={"feed": FEED.id, "subscription": "rostering"},
            clock=clock,
        )
        self.in_flight: list[list[QueuedEntry[Event]]] = []
        kept = deliveries_of(at_once(self.feed.parked()))
        self.tracker.restore(kept, now=NOW + timedelta(seconds=self.clock), clock=self.clock)
        at_once(self.reader.follow())

    @rule(key=st.sampled_from(KEYS))
    def changes(self, key: str) -> None:
        self.feed.change(key)
        self.intake.news()

    @rule(key=st.sampled_from(KEYS))
    def removes(self, key: str) -> None:
        if key in self.feed.records:
            self.feed.remove(key)
            self.told.discard(key)
            self.intake.news()

    @rule(most=st.integers(1, 5))
    def reads(self, most: int) -> None:
        if self.intake.wanted:
            self.take(at_once(self.intake.read(most)))

    def take(self, entries: Any) -> None:
        known_to, pending = self.intake.known_to, self.intake.pending
        for part in self.reader.spliced(entries, self.intake):
            if isinstance(part, BackfillChunk):
                self.tracker.take_backfilled(part)
            else:
                self.tracker.take_in(part, now=NOW, known_to=known_to, pending=pending)

    @rule()
    def reads_records(self) -> None:
        if not self.intake.is_reading_pending and at_once(self.reader.read(self.intake)):
            self.take(())
            self.intake.news()

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
    def changes_around_a_chunk(self, keys: list[str]) -> None:
        """Changes before and after the moment of a chunk, none of which is read yet."""
        for key in keys:
            self.changes(key)
        self.reads_records()
        for key in keys:
            self.changes(key)

    @rule()
    def sends(self) -> None:
        self.tracker.queues.wake(self.clock)
        unit = self.tracker.queues.claim(most=self.batching.max_events)
        for one in unit:
            event = one.item[1] if one.item else self.tracker.event_of(one.id) or self.feed.stream[one.id]
            one.item = (envelope_of(event), event)
            key, revision = content(event)
            assert key not in {other.key for flying in self.in_flight for other in flying}, (
                "two requests for one record"
            )
            assert self.latest.get(key, 0) <= revision, f"{key}: {revision} was sent after {self.latest[key]}"
        if unit:
            self.in_flight.append(unit)

    @precondition(lambda self: self.in_flight)
    @rule(number=st.integers(0, 9), outcome=OUTCOMES)
    def ends(self, number: int, outcome: Outcome) -> None:
        unit = self.in_flight.pop(number % len(self.in_flight))
        self.arrived(unit)
        if outcome.is_delivered:
            self.took(unit)
        now = NOW + timedelta(seconds=self.clock)
        self.tracker.conclude(unit, outcome, now=now, clock=self.clock, chance=lambda: 0.5)

    def took(self, unit: list[QueuedEntry[Event]]) -> None:
        for one in unit:
            assert one.item is not None
            key, revision = content(one.item[1])
            self.taken[key] = max(self.taken.get(key, 0), revision)
            if is_backfilled(one.id):
                self.told.add(key)
            else:
                self.seen.add((key, revision))

    def arrived(self, unit: list[QueuedEntry[Event]]) -> None:
        for one in reversed(unit):  # events of one request are sent again together, or one by one
            if one.item is not None:
                self.latest[one.key] = content(one.item[1])[1]

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
            at_once(self.feed.settle(draft.settlement(), now_ms=0))
            self.tracker.written(draft)

    @rule()
    def dies(self) -> None:
        for unit in self.in_flight:
            self.arrived(unit)  # the request may have arrived
        self.begin()

    @rule(outcome=OUTCOMES, number=st.integers(0, 9))
    def goes_on(self, outcome: Outcome, number: int) -> None:
        """Send and end a request, so that most faults hit a consumer that makes progress."""
        self.reads(3)
        self.reads_records()
        self.sends()
        if self.in_flight:
            self.ends(number, outcome)
        self.writes()

    @rule()
    def loses_a_reply(self) -> None:
        self.feed.lose_reply = True

    @rule()
    def store_restarts(self) -> None:
        """The cursor of a scan means nothing to the next process of the server."""
        self.feed.process += 1

    @rule(cancel=st.booleans())
    def is_requested_again(self, cancel: bool) -> None:
        if self.feed.told is None or cancel:
            self.requests_one()
            self.reader.ask()
            at_once(self.reader.follow_asked())

    def requests_one(self) -> None:
        self.requests += 1
        self.told.clear()
        self.requested_at = len(self.feed.stream)
        self.feed.told = Backfill(f"backfill {self.requests}", "", 0, len(self.feed.records))

    @rule(seconds=st.integers(1, 4))
    def passes(self, seconds: int) -> None:
        self.clock += seconds

    def teardown(self) -> None:
        """In the end the sink has the present revision of each record, and each was told since the last request."""
        known = set(self.feed.records)
        for _ in range(200):
            self.clock += 5
            self.intake.news()
            self.reads(5)
            self.reads_records()
            self.sends()
            while self.in_flight:
                self.ends(0, OK)
            self.writes()
            unread = self.feed.position != self.feed.end
            held = unread or self.feed.group or self.feed.kept or self.tracker.queues.fresh or self.feed.told
            if not held and not self.tracker.backfill.open and not self.reader.is_waiting:
                break
        letters = [content(bytes(letter_of(one).event)) for one in self.feed.letters.values()]
        for key, revision in letters:
            self.taken[key] = max(self.taken.get(key, 0), revision)
        assert {key: self.taken.get(key) for key in known} == self.feed.records
        assert self.seen | set(letters) >= {content(event) for event in self.feed.stream.values()}
        assert not self.feed.kept
        assert self.feed.told is None
        assert not self.tracker.backfill.open
        assert self.tracker.backfill.open_bytes == 0
        missing = known - self.told - {key for key, _ in letters}
        changed = {content(event)[0] for event in list(self.feed.stream.values())[self.requested_at :]}
        assert missing <= changed, "a record that did not change was not told"


TestTelling = Telling.TestCase
TestTelling.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


NOW_ON: Final = "2026-03-02T00:00:00.000Z"


def told(key: str, revision: int, feed: ReadFeed) -> Event:
    """The event of a record, as a backfill tells it."""
    record = StoredRecord(key, key, revision, 0, raw(key, revision))
    event = BackfillSource(FEED, feed).event(record, generation="g", recorded=NOW_ON)
    return envelope_of(event), event


def following_backfill(**changes: Any) -> tuple[ReadFeed, DeliveryTracker]:
    """A consumer with a backfill under way, of a feed without records."""
    feed, tracker = ReadFeed(), DeliveryTracker(subscription(**changes))
    tracker.backfill.follow(Backfill("b", "", 0, 9))
    return feed, tracker


def test_what_is_told_stands_behind_a_retry_and_keeps_its_event() -> None:
    """Law: an event told behind one that waits is parked with its bytes, so that the window is free for others."""
    feed, tracker = following_backfill()
    for key in "aab":
        feed.change(key)
    tracker.take_in([(one, event) for one, event in feed.stream.items()], now=NOW)
    chunk = [told("a", 2, feed), told("b", 1, feed)]
    tracker.conclude(tracker.queues.claim(most=1), answered(500), now=NOW, clock=0, chance=lambda: 0)
    tracker.take_backfilled(BackfillChunk("b", "3-0", chunk, "further"))
    tracker.conclude(tracker.queues.claim(most=1), answered(500), now=NOW, clock=0, chance=lambda: 0)
    draft = tracker.next_batch()
    assert draft is not None
    assert draft.backfill == BackfillPosition("b", "further", 2)
    assert not tracker.backfill.open
    own = [entry for entry in draft.parked if is_backfilled(entry)]
    assert [entry.partition("+")[0] for entry in own] == ["3-0", "3-0"]
    kept = deliveries_of(draft.parked)
    assert sorted(bytes(kept[entry].event) for entry in own) == sorted(event for _, event in chunk)
    assert [entry.partition("+")[0] for entry in kept] == ["1-0", "2-0", "3-0", "3-0", "3-0"]
    assert [kept[entry].key for entry in kept if kept[entry].key == "a"] == ["a"] * 3
    assert tracker.queues.last("a") in own


def test_filters_apply_to_what_is_told_and_not_to_its_redelivery() -> None:
    """Law: changed filters apply to a told event that waits; a dead letter of it is redelivered whatever they say."""
    feed, tracker = following_backfill(patience=RetryPolicy((), 0.0))
    tracker.take_backfilled(BackfillChunk("b", "3-0", [told("a", 2, feed)], ""))
    tracker.conclude(tracker.queues.claim(), answered(500), now=NOW, clock=0, chance=lambda: 0)
    draft = tracker.next_batch()
    assert draft is not None
    ((entry, letter),) = draft.letters.items()
    assert letter_of(letter).repeat == "b"
    event = bytes(letter_of(letter).event)
    again = delivery_again(letter_of(letter))
    waiting = Delivery("a", event=msgspec.Raw(event), repeat="b")
    for delivery, is_wanted in ((again, True), (waiting, False)):
        heir = DeliveryTracker(subscription(wanted=lambda _: False))
        heir.restore({entry: delivery}, now=NOW, clock=0)
        heir.queues.wake(0)
        (one,) = heir.queues.claim()
        assert heir.load(one, b"") is is_wanted
        assert heir.repeat_of(one) == ("b/1" if is_wanted else "b")


def test_what_is_told_is_cut_as_other_events_are() -> None:
    """Law: of a told event the subscription's ``fields`` are sent, also when it waits for its next attempt."""
    feed = ReadFeed()
    tracker = DeliveryTracker(
        subscription(patience=RetryPolicy((timedelta(seconds=5),), 0.0)), projection_of(thin=True)
    )
    tracker.backfill.follow(Backfill("b", "", 0, 9))
    tracker.take_backfilled(BackfillChunk("b", "3-0", [told("a", 2, feed)], ""))
    unit = tracker.queues.claim()
    (one,) = unit
    assert one.item is not None
    assert b'"record"' not in one.item[1]
    assert one.size == len(one.item[1]) + 1
    tracker.conclude(unit, answered(500), now=NOW, clock=0, chance=lambda: 0)
    draft = tracker.next_batch()
    assert draft is not None
    (kept,) = deliveries_of(draft.parked).values()
    assert b'"record"' not in bytes(kept.event)


def test_nothing_is_told_of_a_record_that_was_erased_meanwhile() -> None:
    """Law: an erasure ends what was read or told before it; what is read later stands behind its place."""
    feed, tracker = following_backfill()
    tracker.take_backfilled(BackfillChunk("b", "3-0", [told("a", 2, feed), told("c", 1, feed)], "further"))
    tracker.erased = {"a": EntryId(4), "d": EntryId(3)}
    unit = tracker.queues.claim(most=2)
    assert [one.key for one in tracker.erased_of(unit)] == ["a"]
    tracker.take_backfilled(BackfillChunk("b", "3-0", [told("a", 2, feed), told("d", 1, feed)], ""))
    assert [one.key for one in tracker.queues.claim()] == ["d"]


def test_a_told_event_of_an_erased_record_is_neither_scheduled_nor_kept() -> None:
    """Law: a batch that is refused for an erasure is written without the told event that it would schedule."""
    feed, tracker = following_backfill()
    tracker.take_backfilled(BackfillChunk("b", "3-0", [told("a", 2, feed)], ""))
    tracker.conclude(tracker.queues.claim(), answered(500), now=NOW, clock=0, chance=lambda: 0)
    draft = tracker.next_batch()
    assert draft is not None
    assert list(map(is_backfilled, draft.parked)) == [True]
    tracker.learn_erased({"a": EntryId(4)}, draft)
    assert not draft.parked


def test_what_is_not_wanted_is_not_told() -> None:
    """Law: filters hold for told events, and a chunk of which nothing is wanted is done at once."""
    feed, tracker = following_backfill(wanted=lambda envelope: envelope.subject != "a")
    tracker.take_backfilled(BackfillChunk("b", "0-0", [told("a", 1, feed)], "further"))
    assert tracker.backfill.place == BackfillPosition("b", "further", 1)
    assert not tracker.queues.ready


def test_what_is_told_twice_at_one_place_is_sent_once() -> None:
    """Law: the same event at the same place is one delivery, also if its backfill was cancelled and begun again."""
    feed, tracker = following_backfill()
    chunk = BackfillChunk("b", "3-0", [told("a", 1, feed)], "further")
    tracker.take_backfilled(chunk)
    tracker.take_backfilled(msgspec.structs.replace(chunk, following=""))
    tracker.backfill.follow(Backfill("c"))
    tracker.take_backfilled(BackfillChunk("c", "3-0", chunk.events, ""))
    assert tracker.backfill.place is None
    (one,) = tracker.queues.claim(most=9)
    tracker.conclude([one], OK, now=NOW, clock=0, chance=lambda: 0)
    draft = tracker.next_batch()
    assert draft is not None
    assert draft.backfill == BackfillPosition("c", "", 1)
    assert (draft.unparked, draft.acked, draft.patient) == ([], [], True)
    tracker.written(draft)
    assert tracker.next_batch() is None
    assert tracker.backfill.under_way is None


def test_a_stream_that_was_lost_puts_nothing_before_what_was_read() -> None:
    """Law: a chunk of a stream without entries stands behind all that was read of it before, also after a crash."""
    feed, tracker = following_backfill()
    tracker.restore({"7-0": Delivery("a"), "7-0+ff": Delivery("a")}, now=NOW, clock=0)
    tracker.take_backfilled(BackfillChunk("b", "0-0", [told("a", 1, feed), told("c", 1, feed)], ""))
    draft = tracker.next_batch()
    assert draft is not None
    (entry,) = draft.parked
    assert DeliveryId.parse("7-0+ff") < DeliveryId.parse(entry) < DeliveryId.parse("7-1")


@given(st.tuples(st.integers(0, 3), st.integers(0, 3)), st.text("0f", min_size=16, max_size=32))
def test_an_id_stands_directly_behind_its_entry(entry: tuple[int, int], event_id: str) -> None:
    """Law: a told event's id is after its entry and before every later one, and its text gives it back."""
    place = DeliveryId(*entry)
    own = place.behind(event_id)
    assert place < own < DeliveryId(place.ms, place.n + 1)
    assert DeliveryId.parse(str(own)) == own == own.behind(event_id)
    assert DeliveryId.parse(str(place).encode()) == place
    assert is_backfilled(str(own))
    assert not is_backfilled(str(place))
    with pytest.raises(ValueError, match="invalid literal"):
        DeliveryId.parse(f"{place}+")


def test_a_record_is_told_as_it_was_published() -> None:
    """Law: created, the record's own revision and sequence, no previous, its listing; an id of its own, for ever."""
    achievements = msgspec.structs.replace(FEED, id="acme/achievements", resource=RESOURCES["achievements"])
    record = StoredRecord(
        "k", "K", 0, 7, b'{"id":"K","qualificationID":"q1","lastModifiedAt":"2026-01-02T03:04:05Z","n":1.0}'
    )
    source = BackfillSource(achievements, ReadFeed())
    event = json.loads(source.event(record, generation="g", recorded=NOW_ON))
    again = json.loads(source.event(record, generation="g", recorded="2027-01-01T00:00:00.000Z"))
    later = msgspec.structs.replace(record, revision=1)
    identity = source.identity(record, generation="g")
    assert event == {
        "specversion": "1.0",
        "id": again["id"],
        "source": "https://api.example.org/v1/qualifications/q1/achievements",
        "type": "org.example.api.achievement.created.v1",
        "subject": "K",
        "time": "2026-01-02T03:04:05Z",
        "recordedtime": NOW_ON,
        "sequence": "00000000000000000007",
        "partitionkey": "K",
        "cause": "backfill",
        "datacontenttype": "application/json",
        "data": {"record": json.loads(record.raw), "revision": 0, "cause": "backfill"},
    }
    assert msgspec.structs.asdict(identity) == {name: event[name] for name in ("id", "source", "type")}
    assert event["id"] != json.loads(source.event(later, generation="g", recorded=NOW_ON))["id"]
    assert event["id"] != json.loads(source.event(record, generation="h", recorded=NOW_ON))["id"]


def reader_of(feed: ReadFeed, **changes: Any) -> tuple[BackfillReader, BackfillProgress, EntryReader]:
    clock, progress = StubClock(monotonic=lambda: 0.0, now=lambda: NOW), BackfillProgress()
    given_ones: dict[str, Any] = {"window": 8, "window_bytes": 100_000, "is_live": False} | changes
    reader = BackfillReader(
        progress, feed, lambda: BackfillSource(FEED, feed), where={"feed": FEED.id}, clock=clock, **given_ones
    )
    at_once(reader.follow())
    return reader, progress, EntryReader(feed, "snapshot", feed=FEED.id, clock=clock)


@pytest.mark.parametrize(
    ("reading", "at", "is_live", "expected"),
    [
        (FirstReading(has_begun=True, has_ended=True, is_repeated=True), "", False, "reads"),
        (FirstReading(has_begun=True, has_ended=False, is_repeated=False), "", False, "reads"),
        (FirstReading(has_begun=True, has_ended=False, is_repeated=False), "", True, "waits"),
        (FirstReading(has_begun=True, has_ended=False, is_repeated=True), "", False, "waits"),
        (FirstReading(has_begun=False, has_ended=False, is_repeated=False), UNREAD, False, "waits"),
        (FirstReading(has_begun=True, has_ended=False, is_repeated=False), UNREAD, False, "ends"),
        (FirstReading(has_begun=True, has_ended=False, is_repeated=True), UNREAD, False, "waits"),
        (FirstReading(has_begun=True, has_ended=True, is_repeated=True), UNREAD, False, "reads"),
    ],
)
def test_it_waits_for_baselines_that_the_subscription_does_not_get(
    reading: FirstReading, at: str, *, is_live: bool, expected: str
) -> None:
    """Law: a feed is told while it is first read only to those who get the rest of that reading from the stream."""
    feed = ReadFeed()
    feed.records["a"], feed.reading, feed.told = 1, reading, Backfill("b", at)
    reader, _, order = reader_of(feed, is_live=is_live)
    assert at_once(reader.read(order)) is (expected != "waits")
    parts = [part for part in reader.spliced([("9-0", b"")], order) if isinstance(part, BackfillChunk)]
    assert [len(part.events) for part in parts] == {"reads": [1], "waits": [], "ends": [0]}[expected]


def test_a_scan_that_begins_again_counts_again() -> None:
    """Law: where the position has lost its meaning, the records are counted from the beginning, and all are told."""
    feed = ReadFeed()
    feed.records, feed.told = dict.fromkeys(KEYS, 1), Backfill("b", total=6)
    reader, progress, order = reader_of(feed, window=16, window_bytes=10_000_000)
    places = []
    while progress.wanted:
        assert at_once(reader.read(order))
        for part in reader.spliced([("9-0", b"")], order):
            if isinstance(part, BackfillChunk):
                progress.took(part)
                place = progress.place
                assert place is not None
                progress.wrote(place)
                places.append(place.done)
        feed.process += len(places) == 1
    assert places == [4, 4, 6]


def test_a_chunk_that_is_too_large_is_read_in_smaller_ones() -> None:
    """Law: the events of a chunk that waits are bounded in bytes, whatever was expected of their size."""
    feed = ReadFeed()
    feed.records, feed.told = dict.fromkeys(KEYS, 1), Backfill("b")
    reader, progress, order = reader_of(feed, window_bytes=1100)
    sizes = []
    for _ in range(20):
        if progress.wanted is None or not at_once(reader.read(order)):
            break
        for part in reader.spliced([("9-0", b"")], order):
            if isinstance(part, BackfillChunk):
                progress.took(part)
                sizes.append(sum(len(event) for _, event in part.events))
    assert progress.wanted is None
    assert len(sizes) > 2
    assert max(sizes) <= 1100


def test_a_slow_event_holds_the_others_to_a_window() -> None:
    """Law: what a crash brings again is bounded: nothing more is read a window behind an event that is not settled."""
    feed = ReadFeed()
    feed.records, feed.told = {f"k{number:03}": 1 for number in range(200)}, Backfill("b")
    reader, progress, order = reader_of(feed, window=8, window_bytes=10_000_000)
    queued: list[str] = []
    for _ in range(20):
        if not at_once(reader.read(order)):
            break
        for part in reader.spliced([("9-0", b"")], order):
            if isinstance(part, BackfillChunk):
                progress.took(part)
                for envelope, _event in part.events:
                    progress.add(envelope.id, 1)
                    queued.append(envelope.id)
        for one in queued[1:]:  # all but the first are settled
            progress.settled(one)
    assert len(queued) == 8
    before = progress.place
    progress.settled(queued[0])
    assert (before, progress.place) == (None, BackfillPosition("b", progress.at, 8))
    assert at_once(reader.read(order))


def test_an_end_that_was_reached_before_is_not_the_end() -> None:
    """Law: a chunk waits for a read that began after it, wherever the stream had ended before; also of a gone entry."""
    feed = ReadFeed()
    feed.change("a")
    feed.told = Backfill("b")
    reader, _, order = reader_of(feed)
    assert len(at_once(order.read(5))) == 1
    feed.change("a")
    assert at_once(reader.read(order))
    assert not any(isinstance(part, BackfillChunk) for part in reader.spliced((), order))
    feed.stream.popitem()
    order.news()
    assert at_once(order.read(5)) == []
    assert any(isinstance(part, BackfillChunk) for part in reader.spliced((), order))


def test_a_store_that_went_back_ends_the_run() -> None:
    """Law: a chunk from before what was read of the stream is not used: the run ends, and all is read again."""
    feed = ReadFeed()
    for key in "ab":
        feed.change(key)
    feed.told = Backfill("b")
    reader, _, order = reader_of(feed)
    at_once(order.read(5))
    feed.stream.popitem()
    with pytest.raises(Fenced, match="the store lost what was read of acme/contractTypes"):
        at_once(reader.read(order))
