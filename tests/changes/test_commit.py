"""Laws of :mod:`poller.changes.commit`."""

from __future__ import annotations

import pytest

from poller.changes.classify import Kind, Snapshot
from poller.changes.commit import Commit, Tally
from poller.changes.records import Rejected


def test_tallies_add_up_field_by_field() -> None:
    """Adding keeps the first tally and changes nothing in the second."""
    total, part = Tally(1, 2, 3, 4, 5, 6), Tally(10, 20, 30, 40, 50, 60)
    same = total
    total += part
    assert total is same
    assert total == Tally(11, 22, 33, 44, 55, 66)
    assert part == Tally(10, 20, 30, 40, 50, 60)


@pytest.mark.parametrize("kind", list(Kind))
def test_each_kind_has_its_count(kind: Kind) -> None:
    """Counting a change counts its kind and nothing else."""
    tally = Tally()
    tally.count(kind)
    assert getattr(tally, kind) == 1
    assert tally.created + tally.modified + tally.removed == 1


def test_a_commit_knows_where_it_leads_and_whether_it_is_needed() -> None:
    """Each event is one step of the sequence; anything to write makes it needed."""
    assert Commit("g", 7, events=(b"a", b"b")).next_sequence == 9
    assert Commit("g", 7, qualifications=("q",)).empty
    assert not Commit("g", 7, snapshots={"k": Snapshot(0, 0, b"{}")}).empty
    assert not Commit("g", 7, events=(b"a",)).empty
    assert not Commit("g", 7, rejected=(Rejected(b"", "why"),)).empty
    assert not Commit("g", 7, marks={"m": None}).empty
