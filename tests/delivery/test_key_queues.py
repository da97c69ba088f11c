"""Laws of :mod:`poller.delivery.key_queues`, compared with a simple model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from poller.delivery.key_queues import KeyQueues, QueuedEntry
from poller.store.stream import EntryId

KEYS = st.sampled_from("abc")


def entry(number: int, key: str, *, item: str | None = "x", size: int = 1, alone: bool = False) -> QueuedEntry[str]:
    return QueuedEntry(f"{number}-0", key, item, fresh=item is not None, size=size, alone=alone)


class Model(RuleBasedStateMachine):
    """By record, the entries left in their order; the sets name records that may not be sent now."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: KeyQueues[str] = KeyQueues()
        self.left: dict[str, list[QueuedEntry[str]]] = {key: [] for key in "abc"}
        self.in_flight: list[list[QueuedEntry[str]]] = []
        self.due: dict[str, float] = {}
        self.unwritten: set[str] = set()
        self.now = 0.0
        self.count = 0

    def shut(self) -> set[str]:
        return {one.key for unit in self.in_flight for one in unit} | set(self.due) | self.unwritten

    @rule(key=KEYS, size=st.integers(1, 5))
    def comes(self, key: str, size: int) -> None:
        self.count += 1
        one = entry(self.count, key, size=size)
        self.left[key].append(one)
        self.queues.add(one)

    @rule(most=st.integers(1, 4), most_bytes=st.none() | st.integers(1, 12))
    def is_taken(self, most: int, most_bytes: int | None) -> None:
        """A claim has the first entries of each open queue, nothing of a closed queue, and stays within the limits."""
        free = [key for key, left in self.left.items() if left and key not in self.shut()]
        unit = self.queues.claim(most=most, most_bytes=most_bytes)
        assert bool(unit) == bool(free)
        assert len(unit) <= most
        assert most_bytes is None or len(unit) == 1 or sum(one.size for one in unit) <= most_bytes
        assert len(unit) == 1 or not any(one.alone for one in unit)
        for key in {one.key for one in unit}:
            assert key in free
            mine = [one for one in unit if one.key == key]
            assert mine == self.left[key][: len(mine)]
        if unit:
            self.in_flight.append(unit)

    @precondition(lambda self: self.in_flight)
    @rule(number=st.integers(0, 9), reopen=st.booleans())
    def succeeds(self, number: int, reopen: bool) -> None:
        unit = self.in_flight.pop(number % len(self.in_flight))
        for one in unit:
            self.queues.settle(one)
            self.left[one.key].remove(one)
        keys = {one.key for one in unit}
        self.unwritten |= keys
        if reopen:
            self.is_written()

    @rule()
    def is_written(self) -> None:
        for key in self.unwritten:
            self.queues.reopen(key)
        self.unwritten = set()

    @precondition(lambda self: self.in_flight)
    @rule(number=st.integers(0, 9), wait=st.integers(0, 5), parks=st.booleans(), alone=st.booleans())
    def fails(self, number: int, wait: int, parks: bool, alone: bool) -> None:
        unit = self.in_flight.pop(number % len(self.in_flight))
        for key in dict.fromkeys(one.key for one in unit):
            if parks:
                self.left[key][0].alone = alone
                self.queues.park(self.left[key][0])
                for behind in self.queues.stranded(key):
                    self.queues.park(behind)
            self.due[key] = self.now + wait
            self.queues.wait(key, self.now + wait)

    @rule(seconds=st.integers(0, 3))
    def passes(self, seconds: int) -> None:
        self.now += seconds
        self.queues.wake(self.now)
        self.due = {key: due for key, due in self.due.items() if due > self.now}

    @invariant()
    def agrees(self) -> None:
        """Counts, sizes, the first fresh entry and the next due time are those of the model."""
        everything = [one for left in self.left.values() for one in left]
        fresh = sorted((one for one in everything if one.fresh), key=lambda one: int(one.id[:-2]))
        assert self.queues.fresh == len(fresh)
        assert self.queues.fresh_bytes == sum(one.size for one in fresh)
        assert self.queues.parked == len(everything) - len(fresh)
        assert self.queues.oldest_fresh == (fresh[0].id if fresh else None)
        assert self.queues.next_due == min(self.due.values(), default=None)
        assert self.queues.ready == any(left and key not in self.shut() for key, left in self.left.items())
        assert all(self.queues.holds(one.id) == one.fresh for one in everything)


TestLanes = Model.TestCase
TestLanes.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def taken(queues: KeyQueues[str], most: int = 9) -> Sequence[str]:
    return [one.id for one in queues.claim(most=most)]


def test_what_was_due_first_goes_first_and_before_what_is_new() -> None:
    """Due queues open in the order of their due times, before new ones."""
    queues: KeyQueues[str] = KeyQueues()
    for number, key in enumerate("abc", 1):
        queues.restore(key, [entry(number, key, item=None)], due=9 - number)
    queues.add(entry(7, "new"))
    queues.wake(10)
    assert queues.due
    assert [taken(queues, 1) for _ in range(4)] == [["3-0"], ["2-0"], ["1-0"], ["7-0"]]


def test_what_has_failed_goes_alone() -> None:
    """An event that has failed is sent alone, without waiting for others."""
    queues: KeyQueues[str] = KeyQueues()
    for number, alone in enumerate((False, True, False, False), 1):
        queues.add(entry(number, str(number), alone=alone))
    assert queues.gathered(9)
    assert taken(queues) == ["1-0"]
    assert taken(queues) == ["2-0"]
    assert not queues.gathered(9)
    assert taken(queues) == ["3-0", "4-0"]


def test_nothing_behind_what_has_to_be_fetched_is_taken() -> None:
    """An entry that must be fetched is claimed without the later entries of its record, as it may be gone."""
    queues: KeyQueues[str] = KeyQueues()
    queues.restore("a", [entry(1, "a", item=None)], due=0)
    assert queues.is_stored("a")
    queues.add(entry(2, "a"))
    assert not queues.is_stored("a")
    queues.wake(0)
    assert (queues.last("a"), queues.last("b")) == ("2-0", None)
    assert taken(queues) == ["1-0"]


def test_only_the_foremost_is_settled() -> None:
    """Only the first event of a record can be settled."""
    queues: KeyQueues[str] = KeyQueues()
    first, second = entry(1, "a"), entry(2, "a")
    queues.add(first)
    queues.add(second)
    with pytest.raises(ValueError, match="foremost"):
        queues.settle(second)


def test_a_queue_awaits_a_write_after_its_last_entry() -> None:
    """A queue awaits a write from the settlement of its last entry until that is written."""
    queues: KeyQueues[str] = KeyQueues()
    one, awaits = entry(1, "a"), [queues.awaits_write("a")]
    queues.add(one)
    awaits.append(queues.awaits_write("a"))
    queues.claim()
    awaits.append(queues.awaits_write("a"))
    queues.settle(one)
    awaits.append(queues.awaits_write("a"))
    queues.reopen("a")
    awaits.append(queues.awaits_write("a"))
    assert awaits == [False, False, False, True, False]


# Redelivered entries in their queues.


def waiting(number: int, key: str = "K", *, fresh: bool = True) -> QueuedEntry[int]:
    return QueuedEntry(f"{number}-0", key, number, fresh=fresh)


def claimed(queues: KeyQueues[int], most: int = 1) -> list[str]:
    return [entry.id for entry in queues.claim(most=most)]


def test_into_no_lane() -> None:
    """A redelivery of a record without other entries can be sent at once."""
    queues: KeyQueues[int] = KeyQueues()
    queues.insert(waiting(1, fresh=False))
    assert (claimed(queues), queues.parked, queues.ready) == (["1-0"], 1, False)


def test_before_what_waits() -> None:
    """An entry older than a waiting one opens the queue once; a younger one waits with it."""
    queues: KeyQueues[int] = KeyQueues()
    queues.restore("K", [waiting(5, fresh=False)], 100.0)
    queues.insert(waiting(7, fresh=False))
    assert not queues.ready
    queues.insert(waiting(3, fresh=False))
    assert queues.next_due is None
    queues.wake(200.0)
    (first,) = queues.claim()
    assert (first.id, queues.ready) == ("3-0", False)
    queues.settle(first)
    assert queues.foremost("K") == "5-0"
    queues.wait("K", 100.0)
    queues.wake(100.0)
    assert claimed(queues, 2) == ["5-0", "7-0"]


def test_behind_what_is_on_its_way() -> None:
    """A redelivery comes after the entries in flight, even when some of them settle, and before all others."""
    queues: KeyQueues[int] = KeyQueues()
    for number in (5, 6, 7):
        queues.add(waiting(number))
    on_their_way = queues.claim(most=2)
    queues.insert(waiting(1, fresh=False))
    queues.settle(on_their_way[0])
    queues.insert(waiting(2, fresh=False))
    queues.settle(on_their_way[1])
    queues.reopen("K")
    assert claimed(queues, 9) == ["1-0", "2-0", "7-0"]


def test_before_what_was_on_its_way_and_failed() -> None:
    """A redelivery that was inserted while a younger entry was in flight is sent before that entry's retry."""
    queues: KeyQueues[int] = KeyQueues()
    queues.add(waiting(5))
    queues.claim()
    queues.insert(waiting(1, fresh=False))
    queues.wait("K", 100.0)
    assert queues.next_due is None
    assert claimed(queues, 2) == ["1-0", "5-0"]


def test_a_lane_that_was_emptied_while_it_was_shut() -> None:
    """An entry that is inserted between the last settlement and the reopening is sent after the reopening."""
    queues: KeyQueues[int] = KeyQueues()
    queues.add(waiting(5))
    (only,) = queues.claim()
    queues.settle(only)
    queues.insert(waiting(1, fresh=False))
    assert not queues.ready
    queues.reopen("K")
    assert claimed(queues) == ["1-0"]


def test_what_else_is_stranded() -> None:
    """The fresh entries of a record and those named are stranded, and no others."""
    queues: KeyQueues[int] = KeyQueues()
    queues.add(waiting(5))
    queues.insert(waiting(1, fresh=False))
    queues.insert(waiting(2, fresh=False))
    assert [entry.id for entry in queues.stranded("K", {"2-0": None})] == ["2-0", "5-0"]
    assert queues.holds("5-0")
    assert not queues.holds("1-0")


class _Driven:
    """Queues, and their entries in flight."""

    def __init__(self) -> None:
        self.queues: KeyQueues[int] = KeyQueues()
        self.away: dict[str, list[QueuedEntry[int]]] = {}
        self.added = self.done = 0

    def step(self, name: str, key: str, number: int) -> None:
        if name == "add":
            self.queues.add(waiting(1000 + number, key))
            self.added += 1
        elif name == "insert":
            self.queues.insert(waiting(number, key, fresh=False))
            self.added += 1
        elif name == "take":
            self.take()
        elif name == "settle":
            self.settle(key)
        elif self.away.pop(key, None):
            self.queues.wait(key, number + 1.0)

    def take(self) -> None:
        before = set(self.away)
        for entry in self.queues.claim(most=2):
            assert entry.key not in before
            self.away.setdefault(entry.key, []).append(entry)

    def settle(self, key: str) -> None:
        entries = self.away.pop(key, [])
        for entry in entries:
            self.queues.settle(entry)
        if entries:
            self.queues.reopen(key)
        self.done += len(entries)


@given(st.lists(st.tuples(st.sampled_from(["add", "insert", "take", "settle", "wait"]), st.sampled_from("KL"))))
def test_one_of_a_record_at_a_time_and_all_in_the_end(steps: list[tuple[str, str]]) -> None:
    """Whatever the order of steps, no entry is lost, no record is claimed twice at a time, and order is kept."""
    driven = _Driven()
    for number, (name, key) in enumerate(steps):
        driven.step(name, key, number)
        driven.queues.wake(float(number))
    driven.queues.wake(1e9)
    for key in "KL":
        driven.settle(key)
    rest = driven.queues.claim(most=1000)
    assert driven.done + len(rest) == driven.added
    for key in "KL":
        places = [EntryId.parse(one.id) for one in rest if one.key == key]
        assert places == sorted(places)
