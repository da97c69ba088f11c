"""Entries that are asked for once more, in their lanes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.key_queues import Lanes, Waiting
from poller.store.entry_id import EntryId


def waiting(number: int, key: str = "K", *, fresh: bool = True) -> Waiting[int]:
    return Waiting(f"{number}-0", key, number, fresh=fresh)


def taken(lanes: Lanes[int], most: int = 1) -> list[str]:
    return [entry.id for entry in lanes.take(most=most)]


def test_into_no_lane() -> None:
    """Law: where nothing of its record is there it may be sent at once."""
    lanes: Lanes[int] = Lanes()
    lanes.insert(waiting(1, fresh=False))
    assert (taken(lanes), lanes.parked, lanes.ready) == (["1-0"], 1, False)


def test_before_what_waits() -> None:
    """Law: an older entry opens a lane that waits, once; a younger one waits with it."""
    lanes: Lanes[int] = Lanes()
    lanes.restore("K", [waiting(5, fresh=False)], 100.0)
    lanes.insert(waiting(7, fresh=False))
    assert not lanes.ready
    lanes.insert(waiting(3, fresh=False))
    assert lanes.next_due is None
    lanes.wake(200.0)
    (first,) = lanes.take()
    assert (first.id, lanes.ready) == ("3-0", False)
    lanes.settle(first)
    assert lanes.foremost("K") == "5-0"
    lanes.wait("K", 100.0)
    lanes.wake(100.0)
    assert taken(lanes, 2) == ["5-0", "7-0"]


def test_behind_what_is_on_its_way() -> None:
    """Law: it stands behind all that is on its way, also when a part of that is settled, and before all others."""
    lanes: Lanes[int] = Lanes()
    for number in (5, 6, 7):
        lanes.add(waiting(number))
    on_their_way = lanes.take(most=2)
    lanes.insert(waiting(1, fresh=False))
    lanes.settle(on_their_way[0])
    lanes.insert(waiting(2, fresh=False))
    lanes.settle(on_their_way[1])
    lanes.reopen("K")
    assert taken(lanes, 9) == ["1-0", "2-0", "7-0"]


def test_before_what_was_on_its_way_and_failed() -> None:
    """Law: what comes while a younger one is on its way goes before it where that has to be tried again."""
    lanes: Lanes[int] = Lanes()
    lanes.add(waiting(5))
    lanes.take()
    lanes.insert(waiting(1, fresh=False))
    lanes.wait("K", 100.0)
    assert lanes.next_due is None
    assert taken(lanes, 2) == ["1-0", "5-0"]


def test_a_lane_that_was_emptied_while_it_was_shut() -> None:
    """Law: what comes between the settlement of a lane's last entry and its reopening is sent then."""
    lanes: Lanes[int] = Lanes()
    lanes.add(waiting(5))
    (only,) = lanes.take()
    lanes.settle(only)
    lanes.insert(waiting(1, fresh=False))
    assert not lanes.ready
    lanes.reopen("K")
    assert taken(lanes) == ["1-0"]


def test_what_else_is_stranded() -> None:
    """Law: beside the fresh entries those are stranded that are named, and no others."""
    lanes: Lanes[int] = Lanes()
    lanes.add(waiting(5))
    lanes.insert(waiting(1, fresh=False))
    lanes.insert(waiting(2, fresh=False))
    assert [entry.id for entry in lanes.stranded("K", {"2-0": None})] == ["2-0", "5-0"]
    assert lanes.holds("5-0")
    assert not lanes.holds("1-0")


class _Driven:
    """Lanes, and what of them is on its way."""

    def __init__(self) -> None:
        self.lanes: Lanes[int] = Lanes()
        self.away: dict[str, list[Waiting[int]]] = {}
        self.added = self.done = 0

    def step(self, name: str, key: str, number: int) -> None:
        if name == "add":
            self.lanes.add(waiting(1000 + number, key))
            self.added += 1
        elif name == "insert":
            self.lanes.insert(waiting(number, key, fresh=False))
            self.added += 1
        elif name == "take":
            self.take()
        elif name == "settle":
            self.settle(key)
        elif self.away.pop(key, None):
            self.lanes.wait(key, number + 1.0)

    def take(self) -> None:
        before = set(self.away)
        for entry in self.lanes.take(most=2):
            assert entry.key not in before
            self.away.setdefault(entry.key, []).append(entry)

    def settle(self, key: str) -> None:
        entries = self.away.pop(key, [])
        for entry in entries:
            self.lanes.settle(entry)
        if entries:
            self.lanes.reopen(key)
        self.done += len(entries)


@given(st.lists(st.tuples(st.sampled_from(["add", "insert", "take", "settle", "wait"]), st.sampled_from("KL"))))
def test_one_of_a_record_at_a_time_and_all_in_the_end(steps: list[tuple[str, str]]) -> None:
    """Law: whatever is added, asked for, sent, settled or made to wait, nothing is lost and no lane is sent twice."""
    driven = _Driven()
    for number, (name, key) in enumerate(steps):
        driven.step(name, key, number)
        driven.lanes.wake(float(number))
    driven.lanes.wake(1e9)
    for key in "KL":
        driven.settle(key)
    rest = driven.lanes.take(most=1000)
    assert driven.done + len(rest) == driven.added
    for key in "KL":
        places = [EntryId.parse(one.id) for one in rest if one.key == key]
        assert places == sorted(places)
