"""Laws of :mod:`poller.source.retry`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.source.retry import (
    ATTEMPTS,
    CAP,
    DOUBLINGS,
    FIRST_PAUSE,
    FLOOR,
    ExchangeOutcome,
    NoRetry,
    PauseSource,
    RetryLater,
    Step,
    affordable,
    step_after,
)

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def step(outcome: ExchangeOutcome, *, attempt: int = 1, jitter: float = 1.0) -> Step:
    return step_after(outcome, attempt=attempt, jitter=jitter, now=NOON)


@pytest.mark.parametrize(
    ("outcome", "expected", "answering"),
    [
        (ExchangeOutcome(200), NoRetry(), True),
        (ExchangeOutcome(304), NoRetry(), True),
        (ExchangeOutcome(401), NoRetry(), True),
        (ExchangeOutcome(404, retry_after="9"), NoRetry(), True),
        (ExchangeOutcome(429), PauseSource(FLOOR), True),
        (ExchangeOutcome(429, retry_after="0"), PauseSource(FLOOR), True),
        (ExchangeOutcome(429, retry_after="soon"), PauseSource(FLOOR), True),
        (ExchangeOutcome(429, retry_after="9"), PauseSource(9 * SECOND), True),
        (ExchangeOutcome(429, retry_after="999999999"), PauseSource(CAP), True),
        (ExchangeOutcome(503, retry_after="9"), PauseSource(9 * SECOND), False),
        (ExchangeOutcome(503, retry_after="soon"), PauseSource(FLOOR), False),
        (ExchangeOutcome(500, retry_after="9"), PauseSource(9 * SECOND), False),
        (ExchangeOutcome(503), RetryLater(FIRST_PAUSE), False),
        (ExchangeOutcome(599), RetryLater(FIRST_PAUSE), False),
        (ExchangeOutcome(408, retry_after="9"), RetryLater(FIRST_PAUSE), False),
        (ExchangeOutcome(425), RetryLater(FIRST_PAUSE), False),
        (ExchangeOutcome(), RetryLater(FIRST_PAUSE), False),
        (ExchangeOutcome(closed=True), RetryLater(timedelta(0)), False),
    ],
)
def test_the_table(outcome: ExchangeOutcome, expected: Step, answering: bool) -> None:
    """What each outcome leads to, and whether it shows an API that is there."""
    assert (step(outcome), outcome.answering) == (expected, answering)


@given(st.integers(100, 999), st.integers(1, 50), st.floats(0.5, 1.5))
def test_only_what_may_pass_is_tried_again(status: int, attempt: int, jitter: float) -> None:
    """408, 425, 429 and 5xx, and nothing else."""
    stands = isinstance(step(ExchangeOutcome(status), attempt=attempt, jitter=jitter), NoRetry)
    assert stands == (status not in {408, 425, 429} and status < 500)


@given(st.integers(1, 20), st.floats(0.5, 1.5))
def test_pauses_double_and_are_jittered(attempt: int, jitter: float) -> None:
    """Each is twice the one before, up to a bound; so is that after a connection that was closed a second time."""
    for outcome in (ExchangeOutcome(502), ExchangeOutcome()):
        expected = FIRST_PAUSE * 2 ** min(attempt - 1, DOUBLINGS) * jitter
        assert step(outcome, attempt=attempt, jitter=jitter) == RetryLater(expected)
    assert step(ExchangeOutcome(closed=True), attempt=attempt + 1) == RetryLater(
        FIRST_PAUSE * 2 ** min(attempt, DOUBLINGS)
    )


@given(st.sampled_from([429, 500, 503]), st.integers(1, 20), st.floats(0.0, 1.5))
def test_the_jitter_never_shortens_what_was_asked_for(status: int, attempt: int, jitter: float) -> None:
    """Ten seconds are ten seconds."""
    assert step(ExchangeOutcome(status, retry_after="10"), attempt=attempt, jitter=jitter) == PauseSource(10 * SECOND)


@given(
    st.integers(1, 10),
    st.timedeltas(timedelta(0), timedelta(hours=2)),
    st.timedeltas(timedelta(hours=-1), timedelta(hours=2)),
)
def test_attempts_and_waiting_stay_within_their_bounds(attempt: int, wait: timedelta, left: timedelta) -> None:
    """No attempt too many, and none that would begin when the patience is over."""
    assert affordable(wait, attempt=attempt, left=left) == (attempt < ATTEMPTS and wait < left)
