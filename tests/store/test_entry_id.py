"""Laws of :mod:`poller.store.entry_id`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poller.store.entry_id import before, place_of

PARTS = st.integers(0, 2**64 - 1)


@given(PARTS, PARTS)
def test_before_is_the_place_just_before(milliseconds: int, number: int) -> None:
    """Nothing fits in between; before the first there is nothing."""
    entry = f"{milliseconds}-{number}"
    earlier = place_of(before(entry))
    if (milliseconds, number) == (0, 0):
        assert earlier == (0, 0)
    else:
        assert earlier[0] * 2**64 + earlier[1] + 1 == milliseconds * 2**64 + number
