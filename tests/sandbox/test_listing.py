"""Laws of :mod:`poller.sandbox.listing`."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from poller.sandbox.listing import Listing


class Row(msgspec.Struct, frozen=True):
    number: int


def listing_of(rows: list[Row], struck: set[int]) -> Listing[Row]:
    listing: Listing[Row] = Listing()
    for row in rows:
        listing.append(row)
    for row in rows:
        if row.number in struck:
            listing.strike(row)
    return listing


@given(
    numbers=st.lists(st.integers(1, 1000), unique=True, max_size=300).map(sorted),
    struck=st.sets(st.integers(1, 1000), max_size=300),
    after=st.integers(0, 1001),
    limit=st.integers(1, 50),
)
def test_a_page_is_the_next_live_rows(numbers: list[int], struck: set[int], after: int, limit: int) -> None:
    """A page has the first live rows above ``after``, and says whether there are more, compacted or not."""
    listing = listing_of([Row(number) for number in numbers], struck)
    live = [number for number in numbers if number not in struck]
    page = listing.page(after=after, limit=limit)
    ahead = [number for number in live if number > after]
    assert [row.number for row in page.rows] == ahead[:limit]
    assert page.more == (len(ahead) > limit)
    assert len(listing) == len(live)


def test_struck_rows_are_dropped_in_the_end() -> None:
    """However often its one record changes, a listing keeps a bounded number of rows."""
    listing: Listing[Row] = Listing()
    listing.append(Row(1))
    for number in range(2, 10_000):
        listing.strike(Row(number - 1))
        listing.append(Row(number))
    assert len(listing) == 1
    assert len(listing._rows) < 200


def test_a_pick_is_live() -> None:
    """A pick is never a struck row, reaches every live one, and is None when there is none."""
    rng = Random(1)
    listing = listing_of([Row(number) for number in range(1, 21)], set(range(1, 17)))
    picks = [listing.pick(rng) for _ in range(200)]
    assert {row.number for row in picks if row} == {17, 18, 19, 20}
    assert None not in picks
    assert listing_of([Row(1)], {1}).pick(rng) is None
