"""Entries that are asked for once more, in their queues."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.key_queues import KeyQueues, QueuedEntry
from poller.store.stream import EntryId


def waiting(number: int, key: str = "K", *, fresh: bool = True) -> QueuedEntry[int]:
    return QueuedEntry(f"{number}-0", key, number, fresh=fresh)


def taken(queues: KeyQueues[int], most: int = 1) -> list[str]:
    return [entry.id for entry in queues.claim(most=most)]


def test_into_no_lane() -> None:
    """Law: where nothing of its record is there it may be sent at once."""
    queues: KeyQueues[int] = KeyQueues()
    queues.insert(waiting(1, fresh=False))
    assert (taken(queues), queues.parked, queues.ready) == (["1-0"], 1, False)


def test_before_what_waits() -> None:
    """Law: an older entry opens a queue that waits, once; a younger one waits with it."""
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
    assert taken(queues, 2) == ["5-0", "7-0"]


def test_behind_what_is_on_its_way() -> None:
    """Law: it stands behind all that is on its way, also when a part of that is settled, and before all others."""
    queues: KeyQueues[int] = KeyQueues()
    for number in (5, 6, 7):
        queues.add(waiting(number))
    on_their_way = queues.claim(most=2)
    queues.insert(waiting(1, fresh=False))
    queues.settle(on_their_way[0])
    queues.insert(waiting(2, fresh=False))
    queues.settle(on_their_way[1])
    queues.reopen("K")
    assert taken(queues, 9) == ["1-0", "2-0", "7-0"]


def test_before_what_was_on_its_way_and_failed() -> None:
    """Law: what comes while a younger one is on its way goes before it where that has to be tried again."""
    queues: KeyQueues[int] = KeyQueues()
    queues.add(waiting(5))
    queues.claim()
    queues.insert(waiting(1, fresh=False))
    queues.wait("K", 100.0)
    assert queues.next_due is None
    assert taken(queues, 2) == ["1-0", "5-0"]


def test_a_lane_that_was_emptied_while_it_was_shut() -> None:
    """Law: what comes between the settlement of a queue's last entry and its reopening is sent then."""
    queues: KeyQueues[int] = KeyQueues()
    queues.add(waiting(5))
    (only,) = queues.claim()
    queues.settle(only)
    queues.insert(waiting(1, fresh=False))
    assert not queues.ready
    queues.reopen("K")
    assert taken(queues) == ["1-0"]


def test_what_else_is_stranded() -> None:
    """Law: beside the fresh entries those are stranded that are named, and no others."""
    queues: KeyQueues[int] = KeyQueues()
    queues.add(waiting(5))
    queues.insert(waiting(1, fresh=False))
    queues.insert(waiting(2, fresh=False))
    assert [entry.id for entry in queues.stranded("K", {"2-0": None})] == ["2-0", "5-0"]
    assert queues.holds("5-0")
    assert not queues.holds("1-0")


class _Driven:
    """Queues, and what of them is on its way."""

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
    """Law: whatever is added, asked for, sent, settled or made to wait, nothing is lost and no queue is sent twice."""
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
