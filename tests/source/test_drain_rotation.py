"""Laws of :mod:`poller.source.drain`: who suggests a change comes first, nobody waits for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poller.changes.plan import SubstreamSnapshot
from poller.source.drain import Rotation

NAMES = st.sampled_from("abcdefgh")


def turns(rotation: Rotation, now: int = 1_000) -> list[str]:
    return list(iter(lambda: rotation.turn(now) or "", ""))


@given(
    st.dictionaries(NAMES, st.integers(0, 900)),
    st.dictionaries(NAMES, st.integers(0, 990)),
    st.booleans(),
    st.integers(0, 1_000),
)
def test_each_that_is_due_has_one_turn(tried: dict[str, int], named: dict[str, int], resumed: bool, since: int) -> None:
    """Whoever is named has exactly one, but for those that a resumed rotation has tried and nothing named since."""
    rotation = Rotation(
        {name: SubstreamSnapshot(tried=when) for name, when in tried.items()}, since=since, resumed=resumed
    )
    rotation.named(named)
    done = {name for name, when in tried.items() if resumed and when >= since and named.get(name, 0) <= when}
    assert sorted(turns(rotation)) == sorted(named.keys() - done)


def test_the_order_is_fresh_then_never_read_then_hot_and_old() -> None:
    """What a change has named since it was tried comes first, the latest of them before the others."""
    listings = {
        "old": SubstreamSnapshot(tried=100, read=100),
        "hot": SubstreamSnapshot(tried=400, read=400, heat=2.0),
        "cold": SubstreamSnapshot(tried=400, read=400),
        "fresh": SubstreamSnapshot(tried=500, read=500),
        "fresher": SubstreamSnapshot(tried=500, read=500),
    }
    rotation = Rotation(listings, since=1_000)
    rotation.named({"cold": 0, "old": 50, "hot": 10, "fresh": 600, "new": 0, "fresher": 700})
    assert turns(rotation) == ["fresher", "fresh", "new", "hot", "old", "cold"]


def test_one_that_is_named_meanwhile_is_next_though_it_had_its_turn() -> None:
    """A change that comes while the round runs is not left for the next one."""
    rotation = Rotation({}, since=1_000)
    rotation.named(dict.fromkeys("abc", 0))
    assert [rotation.turn(1_001), rotation.turn(1_001)] == ["a", "b"]
    rotation.named({"a": 1_005, "d": 1_004})
    assert turns(rotation, 1_010) == ["a", "d", "c"]
    rotation.named({"a": 1_005})
    assert turns(rotation, 1_011) == []
    assert set(rotation.names) == set("abcd")


def test_what_a_wrong_clock_has_noted_keeps_nothing_from_its_turn() -> None:
    """Law: a listing that was tried in what is still to come is read first, and is not taken for one that had its turn.

    One that was named then is not read again and again until that time.
    """
    listings = {
        "late": SubstreamSnapshot(tried=900_000),
        "done": SubstreamSnapshot(tried=1_500),
        "old": SubstreamSnapshot(tried=500),
    }
    rotation = Rotation(listings, since=1_000, resumed=True, now=2_000)
    rotation.named({"late": 0, "done": 950_000, "old": 0})
    assert [rotation.turn(2_001), rotation.turn(2_002), rotation.turn(2_003)] == ["late", "old", None]
    rotation.named({"done": 950_000})
    assert rotation.turn(2_004) is None
