"""Laws of :mod:`poller.telemetry.attempts`: the series of a subscription are there while it is delivered here."""

from __future__ import annotations

from poller.telemetry.attempts import STEPS, attempts_of, no_attempts_of
from tests.telemetry.series import value


def test_all_steps_are_there_from_the_start() -> None:
    """So that the first of each is seen to be one more."""
    attempts_of("begun")
    assert {value("poller_attempts_total", subscription="begun", outcome=step) for step in STEPS} == {0}
    assert value("poller_delivery_delay_seconds_count", subscription="begun") == 0
    no_attempts_of("begun")


def test_one_that_is_gone_has_none() -> None:
    """Whoever begins it again counts from nothing; to end what never was is nothing."""
    attempts_of("gone").steps["delivered"].inc()
    assert attempts_of("gone") is attempts_of("gone")
    for _ in range(2):
        no_attempts_of("gone")
    assert value("poller_attempts_total", subscription="gone", outcome="delivered") is None
    assert value("poller_attempt_duration_seconds_count", subscription="gone") is None
    attempts_of("gone").steps["delivered"].inc()
    assert value("poller_attempts_total", subscription="gone", outcome="delivered") == 1
    no_attempts_of("gone")
