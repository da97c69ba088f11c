"""Laws of :mod:`poller.changes.full_readings`: how often a listing is read again, and when that ends."""

from __future__ import annotations

import pytest

from poller.changes.full_readings import (
    MOST,
    Confirmation,
    after_doubtful_delta,
    after_reading,
    confirmation_mark,
    confirmation_of,
)


def _read(before: Confirmation | None, *late: int | None, pages: int = 2) -> Confirmation | None:
    for brought in late:
        before = after_reading(before, pages=pages, confirming=True, late=brought)
    return before


@pytest.mark.parametrize("confirming", [False, True])
def test_a_listing_of_one_page_has_nothing_to_confirm(*, confirming: bool) -> None:
    """A listing of one page needs no confirmation."""
    assert after_reading(Confirmation(1, 2), pages=1, confirming=confirming, late=None) is None


def test_it_is_read_again_until_a_reading_brings_nothing_late() -> None:
    """Late records are summed; a reading that cannot count them is treated as one that brought some."""
    begun = after_reading(None, pages=2, confirming=False, late=None)
    assert begun == Confirmation()
    assert begun.due
    assert _read(begun, 0) is None
    assert _read(begun, 3, None) == Confirmation(2, 3)
    assert _read(begun, 3, None, 0) is None


def test_after_five_readings_it_is_given_up_and_what_came_late_is_kept() -> None:
    """A listing that always moves is read again at most five times; the next regular reading starts over."""
    given_up = _read(Confirmation(), *[1] * MOST)
    assert given_up == Confirmation(5, 5)
    assert not given_up.due
    assert _read(given_up, 1) == Confirmation()
    assert after_reading(Confirmation(3, 1), pages=2, confirming=False, late=None) == Confirmation()


def test_a_reading_whose_records_cannot_be_told_apart_is_followed_by_others() -> None:
    """A jumbled reading is repeated whatever its page count, until a one-page reading is good or five have failed."""
    begun = after_reading(None, pages=1, confirming=False, late=None, doubtful=True)
    assert begun == Confirmation()
    assert after_reading(begun, pages=1, confirming=True, late=0) is None
    assert after_reading(begun, pages=2, confirming=True, late=0, doubtful=True) == Confirmation(1)
    assert after_reading(Confirmation(4), pages=1, confirming=True, late=None, doubtful=True) == Confirmation(MOST)


@pytest.mark.parametrize("before", [None, Confirmation(), Confirmation(2, 3), Confirmation(MOST, 7)])
def test_after_a_doubtful_delta_a_reading_is_always_due(before: Confirmation | None) -> None:
    """A full reading is always due after a jumbled delta, because the delta token has moved past records."""
    after = after_doubtful_delta(before)
    assert after.due
    assert after.late == (before.late if before else 0)


@pytest.mark.parametrize("confirmation", [None, Confirmation(), Confirmation(3, 17, 4)])
def test_the_mark_gives_it_back(confirmation: Confirmation | None) -> None:
    """A confirmation survives storage as a mark; a mark in an unknown format counts as none."""
    assert confirmation_of(confirmation_mark(confirmation)) == confirmation
    assert confirmation_of("{}") is None
