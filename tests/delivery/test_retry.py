"""Laws of :mod:`poller.delivery.retry`."""

from __future__ import annotations

from datetime import timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.retry import (
    BUSY_PATIENCE,
    PAUSE_CAP,
    PAUSE_FLOOR,
    DeadLetter,
    Delivered,
    PauseSink,
    PauseSubscription,
    Retry,
    RetryPolicy,
    Step,
    Tries,
    Withhold,
    next_tries,
    step_after,
)
from poller.delivery.sinks.base import Failure, Outcome
from tests.delivery.outcomes import NOON, answered, unanswered

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
PATIENCE = RetryPolicy((5 * SECOND, 30 * SECOND, 3 * HOUR), 0.2)

WAITS = st.timedeltas(timedelta(milliseconds=1), timedelta(days=365))
PATIENCES = st.builds(RetryPolicy, st.lists(WAITS, min_size=1, max_size=9).map(tuple), st.floats(0, 1))
CHANCES = st.floats(0, 1, exclude_max=True)
OUTCOMES = st.builds(answered, st.integers(-5, 1200), retry_after=st.none() | st.text() | st.integers().map(str))
SINKS = [failure for failure in Failure if failure is not Failure.CREDENTIAL]  # a credential is not the sink's
FAILED = st.builds(unanswered, st.sampled_from(SINKS)) | OUTCOMES.filter(lambda outcome: not outcome.is_delivered)


def step(outcome: Outcome, tries: Tries = Tries(), patience: RetryPolicy = PATIENCE, chance: float = 0.0) -> Step:  # noqa: B008 -- frozen
    return step_after(outcome, tries=tries, patience=patience, chance=chance)


def asks(status: int, retry_after: str, date: str | None = None) -> Outcome:
    return answered(status, retry_after=retry_after, date=date)


def at(seconds: float) -> str:
    return format_datetime(NOON + timedelta(seconds=seconds), usegmt=True)


def asked(seconds: float) -> PauseSink:
    return PauseSink(timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        *[(answered(status), Delivered()) for status in (200, 201, 202, 204, 299)],
        *[(answered(status), Retry(5 * SECOND)) for status in (100, 101, 199, 301, 302, 307, 308, 399)],
        *[(answered(status), Retry(5 * SECOND)) for status in (400, 401, 403, 404, 408, 409, 411, 413, 416, 499)],
        *[(answered(status), Retry(5 * SECOND)) for status in (500, 502, 503, 504, 599, 600, 999, 0, -1)],
        *[(unanswered(failure), Retry(5 * SECOND)) for failure in SINKS],
        (unanswered(Failure.CREDENTIAL), Withhold()),
        *[(asks(status, "60"), Retry(5 * SECOND)) for status in (301, 400, 413, 425, 500, 502)],
        (answered(429), asked(1)),
        (asks(429, "soon"), asked(1)),
        (asks(429, ""), asked(1)),
        (asks(503, "soon"), Retry(5 * SECOND)),
        (asks(503, ""), Retry(5 * SECOND)),
        *[(asks(status, "60"), asked(60)) for status in (429, 503)],
        (asks(429, at(90)), asked(90)),
        (asks(503, at(90), at(30)), asked(60)),
        (asks(503, at(90), "yesterday"), asked(90)),
        *[(asks(429, text), asked(1)) for text in ("0", "0.2", "-60", at(-3600), at(0))],
        (asks(429, "86400"), asked(86_400)),
        (asks(429, "86401"), asked(86_400)),
        (asks(503, "9" * 400), asked(86_400)),
        (asks(503, at(10**9)), asked(86_400)),
    ],
)
def test_the_table(outcome: Outcome, expected: Step) -> None:
    """Each outcome of a first attempt has the step of the table."""
    assert step(outcome) == expected


@pytest.mark.parametrize("tries", [Tries(), Tries(99, 99, 99 * HOUR)])
@pytest.mark.parametrize("status", [410, 415])
def test_a_sink_that_wants_no_more_pauses_the_subscription(status: int, tries: Tries) -> None:
    """A 410 or 415 pauses the subscription; no event becomes a dead letter, however often it was tried."""
    ended = step(answered(status, retry_after="60", error=f"the sink answered {status}"), tries)
    assert isinstance(ended, PauseSubscription)
    assert str(status) in ended.reason


@given(FAILED, PATIENCES, CHANCES, st.integers(1, 12))
def test_jitter_only_adds(outcome: Outcome, patience: RetryPolicy, chance: float, counted: int) -> None:
    """A wait is at least the schedule's, and at most the schedule's plus the jitter."""
    ended = step(outcome, Tries(counted, counted), patience, chance)
    if isinstance(ended, Retry):
        wait = patience.schedule[counted - 1]
        assert wait <= ended.after <= wait * (1 + patience.jitter) + timedelta(microseconds=1)
    if isinstance(ended, PauseSink):
        assert ended.pause <= ended.after


@given(st.sampled_from([429, 503]), st.integers(-10, 10**7), PATIENCES, CHANCES, st.integers(1, 12))
def test_what_is_asked_for_is_never_cut_below_the_cap(
    status: int, seconds: int, patience: RetryPolicy, chance: float, counted: int
) -> None:
    """A pause lasts as long as the sink asked for, but at least a second and at most the cap."""
    ended = step(asks(status, str(seconds)), Tries(counted, counted), patience, chance)
    assert isinstance(ended, PauseSink)
    assert ended.pause == min(max(timedelta(seconds=seconds), PAUSE_FLOOR), PAUSE_CAP)
    assert ended.after >= ended.pause


@given(FAILED, PATIENCES, CHANCES)
def test_every_event_comes_to_an_end(outcome: Outcome, patience: RetryPolicy, chance: float) -> None:
    """An event that always fails becomes a dead letter, but not before the schedule is used up."""
    tries, waited = Tries(), timedelta(0)
    for _ in range(200):
        ended = step(outcome, tries, patience, chance)
        if isinstance(ended, PauseSubscription):
            return
        if isinstance(ended, DeadLetter):
            assert waited >= patience.whole
            assert ended.reason.startswith(f"given up after {tries.attempts} attempts")
            return
        assert isinstance(ended, Retry | PauseSink)
        waited, tries = waited + ended.after, next_tries(tries, ended)
        if isinstance(ended, PauseSink):
            # Skip the rest of the pauses: some schedules would take a million of them.
            tries = Tries(tries.attempts, tries.counted, tries.paused + patience.whole + BUSY_PATIENCE)
            waited += patience.whole + BUSY_PATIENCE
    pytest.fail("no dead letter after 200 attempts")


def test_what_is_our_own_fault_gives_up_no_event() -> None:
    """A missing credential withholds the event and uses up no attempt."""
    for tries in (Tries(), Tries(4, 4), Tries(99, 99, 99 * HOUR)):
        assert step(unanswered(Failure.CREDENTIAL), tries) == Withhold()


def test_the_schedule_is_used_up_wait_by_wait() -> None:
    """A schedule of three waits allows four attempts; after the fourth failure the event is a dead letter."""
    tries, waits = Tries(), []
    while isinstance(ended := step(answered(500, error="the sink answered 500"), tries), Retry):
        waits.append(ended.after)
        tries = next_tries(tries, ended)
    assert waits == list(PATIENCE.schedule)
    assert ended == DeadLetter("given up after 4 attempts; the last one: the sink answered 500")


def test_a_busy_sink_does_not_use_up_the_schedule() -> None:
    """However often a sink asks for a pause, the event still has its whole schedule."""
    tries = Tries()
    for _ in range(1000):
        ended = step(asks(429, "1"), tries)
        assert isinstance(ended, PauseSink)
        tries = next_tries(tries, ended)
    assert tries == Tries(1001, 1, 1000 * SECOND)
    assert step(answered(500), tries) == Retry(5 * SECOND)


def test_pauses_that_add_up_to_the_schedule_are_the_end() -> None:
    """When the pauses add up to the schedule, the event becomes a dead letter, and the sink is paused nevertheless."""
    ended = step(asks(503, "60"), Tries(9, 1, PATIENCE.whole))
    assert isinstance(ended, DeadLetter)
    assert ended.pause == 60 * SECOND


@pytest.mark.parametrize("seconds", ["2", "-5"])
def test_a_short_schedule_does_not_end_at_a_busy_sink(seconds: str) -> None:
    """A sink that asks for pauses is busy: with a schedule of seconds an event still waits for an hour of them."""
    hasty = RetryPolicy((SECOND, 2 * SECOND), 0)
    assert isinstance(step(asks(429, seconds), Tries(9, 1, BUSY_PATIENCE - SECOND), hasty), PauseSink)
    assert isinstance(step(asks(429, seconds), Tries(9, 1, BUSY_PATIENCE), hasty), DeadLetter)


def test_a_sink_that_did_not_say_how_long_uses_up_no_attempt() -> None:
    """A 429 without Retry-After uses up no attempt: the event waits for the pause that its sink is in.

    The event becomes a dead letter after an hour of such pauses, or after the whole schedule if that is longer.
    """
    hasty = RetryPolicy((SECOND / 10,), 0)
    for counted in (1, 2):
        tries = Tries(counted, counted, BUSY_PATIENCE - SECOND)
        ended = step_after(answered(429), tries=tries, patience=hasty, chance=0, busy=7 * SECOND)
        assert ended == PauseSink(7 * SECOND)
        assert next_tries(tries, ended) == Tries(counted + 1, counted, BUSY_PATIENCE + 6 * SECOND)
    assert isinstance(step(answered(429), Tries(9, 1, BUSY_PATIENCE), hasty), DeadLetter)
    assert isinstance(step(answered(429), Tries(9, 1, BUSY_PATIENCE)), PauseSink)
    assert isinstance(step(answered(429), Tries(9, 1, PATIENCE.whole)), DeadLetter)


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (answered(500), "status 500"),
        (unanswered(Failure.TIMEOUT), "no answer: timeout"),
        (answered(500, error="the sink answered 500: oh"), "the sink answered 500: oh"),
    ],
)
def test_a_dead_letter_says_why(outcome: Outcome, told: str) -> None:
    """A dead letter's reason has the number of attempts and how the last one ended."""
    assert step(outcome, Tries(7, 4)) == DeadLetter(f"given up after 7 attempts; the last one: {told}")
