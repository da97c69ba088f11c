"""Laws of :class:`poller.store.stream.EntryId`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.store.stream import FIRST_ID, LAST_ID, EntryId, before

LARGEST = 2**64 - 1
PARTS = st.one_of(st.integers(0, LARGEST), st.sampled_from([0, 1, LARGEST - 1, LARGEST]))
IDS = st.builds(EntryId, PARTS, PARTS)


def number(entry: EntryId) -> int:
    """The rank of this id among all possible ids."""
    return entry.ms * 2**64 + entry.n


@given(IDS)
def test_an_id_is_what_the_store_writes(entry: EntryId) -> None:
    """Law: parsing gives back the id that was written, as text or bytes; a missing sequence part is 0."""
    assert EntryId.parse(str(entry)) == EntryId.parse(str(entry).encode()) == EntryId.checked(str(entry)) == entry
    assert EntryId.parse(str(entry.ms)) == EntryId(entry.ms, 0)


@given(IDS, IDS)
def test_ids_are_ordered_as_their_entries(one: EntryId, other: EntryId) -> None:
    """Law: ids are ordered by their two numbers, and lie between the first and the last id."""
    assert (one < other) == (number(one) < number(other))
    assert FIRST_ID <= one <= LAST_ID


@given(IDS)
def test_nothing_fits_between_an_id_and_its_neighbours(entry: EntryId) -> None:
    """Law: the neighbours of an id differ from it by one; the first and last id are their own neighbours."""
    assert number(entry.before) == max(number(entry) - 1, 0)
    assert number(entry.following) == min(number(entry) + 1, number(LAST_ID))
    assert before(str(entry)) == str(entry.before)


@pytest.mark.parametrize(
    "wrong", ["", "x", "1-", "-1", "1-x", "+1-0", "1-0-0", "٣", " 1", "1" * 50, "²-0", f"{2**64}-0", f"1-{2**64}"]
)
def test_what_is_no_id_is_refused(wrong: str) -> None:
    """Law: a text from a client that is not a possible entry id raises ValueError."""
    with pytest.raises(ValueError, match="not an entry's id"):
        EntryId.checked(wrong)
