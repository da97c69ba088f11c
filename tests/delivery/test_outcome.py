"""Laws of :mod:`poller.delivery.sinks.base`."""

from __future__ import annotations

from datetime import timedelta

import pytest

from poller.delivery.sinks.base import Outcome, OutcomeKind


def test_a_wait_is_one_of_an_overloaded_sink() -> None:
    """Only an outcome of an overloaded sink has a wait."""
    with pytest.raises(ValueError, match="overloaded"):
        Outcome(OutcomeKind.RETRY, wait=timedelta(seconds=1))
    assert not Outcome(OutcomeKind.RETRY, wait=timedelta(seconds=1), is_overloaded=True).is_unexplained
    assert Outcome(OutcomeKind.RETRY, is_overloaded=True).is_unexplained


def test_only_what_is_delivered_is_delivered() -> None:
    """Only DELIVERED counts as delivered; REJECTED and NOT_SENT count as not sent unless a request was made."""
    assert [kind for kind in OutcomeKind if Outcome(kind).is_delivered] == [OutcomeKind.DELIVERED]
    unsent = [kind for kind in OutcomeKind if not Outcome(kind).was_sent]
    assert unsent == [OutcomeKind.REJECTED, OutcomeKind.NOT_SENT]
    assert Outcome(OutcomeKind.REJECTED, seconds=0.1).was_sent  # the sink itself rejected it


def test_a_batch_has_one_outcome_for_all_or_one_for_each() -> None:
    """A batch has one outcome for all events or one for each; outcomes of the sink itself are for the whole batch."""
    good, bad = Outcome(OutcomeKind.DELIVERED), Outcome(OutcomeKind.RETRY)
    assert list(bad.of_each(3)) == [bad] * 3
    assert list(Outcome(OutcomeKind.DELIVERED, each=(good, bad)).of_each(2)) == [good, bad]
    with pytest.raises(ValueError, match="2 outcomes of 3 events"):
        Outcome(OutcomeKind.DELIVERED, each=(good, bad)).of_each(3)
    for kind in (OutcomeKind.ENDPOINT_GONE, OutcomeKind.NOT_SENT):
        with pytest.raises(ValueError, match="the whole batch"):
            Outcome(OutcomeKind.RETRY, each=(Outcome(kind),))
