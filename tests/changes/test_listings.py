"""Laws of :mod:`poller.changes.listings`: what a listing held is kept exactly, and small."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from poller.changes.listings import Listing, packed

UUIDS = st.uuids().map(str)
KEYS = st.lists(UUIDS | UUIDS.map(str.upper) | st.text(min_size=1, max_size=40) | st.just("{" + "0" * 34 + "}"))


@given(KEYS)
def test_keys_come_back_as_they_were(keys: list[str]) -> None:
    """Whatever a key looks like, a UUID in an unusual spelling too."""
    assert list(Listing(held=packed(keys)).keys) == keys


def test_a_uuid_takes_18_bytes() -> None:
    """Its 16 and two around them: there are many."""
    assert len(packed([str(UUID(int=number)) for number in range(10)])) == 10 * 18 + 1


def test_a_reading_that_ended_replaces_what_was_held_and_one_that_failed_does_not() -> None:
    """A failure says nothing of the records, and what the answer said of its version is not used again."""
    listing = Listing().after(5, keys=["a", "b"], changed=True, validators={"If-None-Match": '"1"'})
    failed = listing.failed(9)
    assert (list(failed.keys), failed.tried, failed.read, failed.validators) == (["a", "b"], 9, 5, {})
    same = listing.unchanged(9)
    assert (list(same.keys), same.tried, same.read, same.validators) == (["a", "b"], 9, 9, listing.validators)
    gone = same.after(11, gone=True)
    assert (list(gone.keys), gone.read, gone.gone) == ([], 11, True)


def test_heat_rises_with_changes_and_cools_with_rest() -> None:
    """Always changing tends to two, never changing to nought."""
    listing = Listing()
    for moment in range(20):
        listing = listing.after(moment, changed=True)
    assert 1.99 < listing.heat <= 2
    for moment in range(20):
        listing = listing.unchanged(moment)
    assert listing.heat < 0.01
