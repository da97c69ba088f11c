"""What was seen is remembered, small and exactly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poller.changes.removal import Seen


@given(st.lists(st.text(max_size=40)), st.lists(st.text(max_size=40)))
def test_what_was_seen_is_in_it_and_nothing_else(some: list[str], others: list[str]) -> None:
    """Law: a set of keys, whatever the order of adding and asking."""
    seen = Seen()
    assert not seen
    seen.update(some)
    assert all(key in seen for key in some)
    assert [key in seen for key in others] == [key in set(some) for key in others]
    seen.update(others)
    assert all(key in seen for key in (*some, *others))
    assert bool(seen) == bool(some or others)
