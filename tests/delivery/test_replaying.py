"""Where a replay stands."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.replaying import Replay
from poller.store.entry_ids import place_of
from poller.store.replays import ReplayPlace, ReplaySpan

SPAN = ReplaySpan("r", "4-0", "9-0")


def test_none() -> None:
    """Law: where there is no replay nothing is wanted and nothing is written."""
    assert Replay().wants(5) is None
    assert Replay().place is None


@given(st.integers(1, 30), st.integers(1, 7), st.data())
def test_the_place_is_never_beyond_what_is_not_done(count: int, most: int, chosen: st.DataObject) -> None:
    """Law: in whatever order entries are done with, and wherever it begins again, none is left out, and it ends."""
    entries = [f"{number}-0" for number in range(1, count + 1)]
    done: set[str] = set()
    after, steps = "0-0", 0
    replay = Replay(ReplaySpan("r", after, entries[-1]))
    while after:
        if span := replay.wants(most):
            found = [entry for entry in entries if place_of(entry) > place_of(span.after)][:most]
            replay.took([(entry, b"") for entry in found], most=most)
            replay.open.update(dict.fromkeys(found))
        elif replay.open:
            settled = chosen.draw(st.sampled_from(list(replay.open)))
            done.add(settled)
            replay.settled(settled)
        if place := replay.place:
            after = place.after
            replay.wrote(place)
            assert all(entry in done for entry in entries if after == "" or place_of(entry) <= place_of(after))
            if after and steps < 2 and chosen.draw(st.booleans()):  # a crash
                steps += 1
                replay = Replay(ReplaySpan("r", after, entries[-1]))
    assert done == set(entries)
    assert replay.wants(most) is None


def test_another_one_takes_its_place() -> None:
    """Law: the same replay goes on where it is; another one begins anew, whatever is written of the first."""
    replay = Replay(SPAN)
    replay.took([("5-0", b"")], most=1)
    assert replay.follows(ReplaySpan("r", "4-0", "9-0")) is replay
    other = replay.follows(ReplaySpan("s", "1-0", "2-0"))
    other.wrote(ReplayPlace("r", ""))
    assert other.wants(1) == ReplaySpan("s", "1-0", "2-0")
    assert replay.follows(None).wants(1) is None
