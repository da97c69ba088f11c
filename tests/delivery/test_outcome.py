"""Laws of :mod:`poller.delivery.outcome`."""

from __future__ import annotations

import pytest

from poller.delivery.outcome import Failure, Outcome


@pytest.mark.parametrize(("status", "failure"), [(None, None), (200, Failure.CLOSED)])
def test_an_outcome_is_an_answer_or_a_failure(status: int | None, failure: Failure | None) -> None:
    """Neither of them, or both, is no outcome."""
    with pytest.raises(ValueError, match="either a status or a failure"):
        Outcome(status=status, failure=failure)


@pytest.mark.parametrize("status", [200, 202, 204, 299])
def test_any_2xx_is_success(status: int) -> None:
    """The whole class, whatever the sink calls it."""
    assert Outcome(status=status).success


@pytest.mark.parametrize("status", [199, 300, 302, 410, 500, 999])
def test_nothing_else_is_success(status: int) -> None:
    """A redirect neither."""
    assert not Outcome(status=status).success
    assert not Outcome(failure=Failure.TIMEOUT).success
