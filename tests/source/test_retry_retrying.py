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
    Again,
    Outcome,
    Pause,
    Stands,
    Step,
    affordable,
    step_after,
)

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def step(outcome: Outcome, *, attempt: int = 1, jitter: float = 1.0) -> Step:
    return step_after(outcome, attempt=attempt, jitter=jitter, now=NOON)


@pytest.mark.parametrize(
    ("outcome", "expected", "answering"),
    [
        (Outcome(200), Stands(), True),
        (Outcome(304), Stands(), True),
        (Outcome(401), Stands(), True),
        (Outcome(404, retry_after="9"), Stands(), True),
        (Outcome(429), Pause(FLOOR), True),
        (Outcome(429, retry_after="0"), Pause(FLOOR), True),
        (Outcome(429, retry_after="soon"), Pause(FLOOR), True),
        (Outcome(429, retry_after="9"), Pause(9 * SECOND), True),
        (Outcome(429, retry_after="999999999"), Pause(CAP), True),
        (Outcome(503, retry_after="9"), Pause(9 * SECOND), False),
        (Outcome(503, retry_after="soon"), Pause(FLOOR), False),
        (Outcome(500, retry_after="9"), Pause(9 * SECOND), False),
        (Outcome(503), Again(FIRST_PAUSE), False),
        (Outcome(599), Again(FIRST_PAUSE), False),
        (Outcome(408, retry_after="9"), Again(FIRST_PAUSE), False),
        (Outcome(425), Again(FIRST_PAUSE), False),
        (Outcome(), Again(FIRST_PAUSE), False),
        (Outcome(closed=True), Again(timedelta(0)), False),
    ],
)
def test_the_table(outcome: Outcome, expected: Step, answering: bool) -> None:
    """What each outcome leads to, and whether it shows an API that is there."""
    assert (step(outcome), outcome.answering) == (expected, answering)


@given(st.integers(100, 999), st.integers(1, 50), st.floats(0.5, 1.5))
def test_only_what_may_pass_is_tried_again(status: int, attempt: int, jitter: float) -> None:
    """408, 425, 429 and 5xx, and nothing else."""
    stands = isinstance(step(Outcome(status), attempt=attempt, jitter=jitter), Stands)
    assert stands == (status not in {408, 425, 429} and status < 500)


@given(st.integers(1, 20), st.floats(0.5, 1.5))
def test_pauses_double_and_are_jittered(attempt: int, jitter: float) -> None:
    """Each is twice the one before, up to a bound; so is that after a connection that was closed a second time."""
    for outcome in (Outcome(502), Outcome()):
        expected = FIRST_PAUSE * 2 ** min(attempt - 1, DOUBLINGS) * jitter
        assert step(outcome, attempt=attempt, jitter=jitter) == Again(expected)
    assert step(Outcome(closed=True), attempt=attempt + 1) == Again(FIRST_PAUSE * 2 ** min(attempt, DOUBLINGS))


@given(st.sampled_from([429, 500, 503]), st.integers(1, 20), st.floats(0.0, 1.5))
def test_the_jitter_never_shortens_what_was_asked_for(status: int, attempt: int, jitter: float) -> None:
    """Ten seconds are ten seconds."""
    assert step(Outcome(status, retry_after="10"), attempt=attempt, jitter=jitter) == Pause(10 * SECOND)


@given(
    st.integers(1, 10),
    st.timedeltas(timedelta(0), timedelta(hours=2)),
    st.timedeltas(timedelta(hours=-1), timedelta(hours=2)),
)
def test_attempts_and_waiting_stay_within_their_bounds(attempt: int, wait: timedelta, left: timedelta) -> None:
    """No attempt too many, and none that would begin when the patience is over."""
    assert affordable(wait, attempt=attempt, left=left) == (attempt < ATTEMPTS and wait < left)
