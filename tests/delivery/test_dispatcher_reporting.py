"""Laws of :mod:`poller.delivery.dispatcher`: each attempt is counted and logged once, with all its fields."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, get_args

import pytest
from structlog.testing import capture_logs

from poller.delivery.delivery_tracker import AttemptReport
from poller.delivery.dispatcher import STEPS, count, report
from poller.delivery.retry import DeadLetter, Delivered, PauseSink, PauseSubscription, Retry, Step, Withhold
from poller.delivery.sinks.base import Failure
from poller.telemetry.metrics import AttemptSeries, attempts_of, no_attempts_of
from tests.delivery.outcomes import answered, unanswered
from tests.telemetry.series import grown

NOW: Final = datetime(2026, 3, 2, 8, 15, 4, tzinfo=UTC)
RECORDED: Final = "2026-03-02T08:15:01.500Z"
OK: Final = answered(204, seconds=0.0123)


def told(step: Step, *, recorded: str | None = RECORDED) -> AttemptReport:
    return AttemptReport("1-0", "id", 2, step, recorded, 660)


@pytest.fixture
def series() -> Iterator[AttemptSeries]:
    yield attempts_of("counted")
    no_attempts_of("counted")


@pytest.fixture
def spoken(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set the log's level to this one."""
    log = logging.getLogger("poller.delivery")
    before = log.level
    log.setLevel(request.param)
    yield
    log.setLevel(before)


def test_each_event_of_a_request_is_counted_and_the_request_once(series: AttemptSeries) -> None:
    """Each event of a request is counted by its step, the request once; delay is measured for delivered events."""
    steps: list[Step] = [Delivered(), Delivered(), Retry(timedelta(seconds=5)), DeadLetter("gone")]
    count([*map(told, steps), told(Delivered(), recorded=None)], OK, series, now=NOW)
    count([told(DeadLetter("too large"))], None, series, now=NOW)
    count([told(Withhold())] * 2, unanswered(Failure.CREDENTIAL), series, now=NOW)  # no request was made
    found = {step: grown("poller_attempts_total", subscription="counted", outcome=step) for step in STEPS.values()}
    assert found == {"delivered": 3, "retried": 1, "dead_letter": 2, "subscription_paused": 0} | {
        "sink_paused": 0,
        "withheld": 2,
    }
    assert grown("poller_attempt_duration_seconds_count", subscription="counted") == 1
    assert grown("poller_delivery_delay_seconds_count", subscription="counted") == 2
    assert grown("poller_delivery_delay_seconds_sum", subscription="counted") == 5.0


@pytest.mark.parametrize(
    ("recorded", "delay"), [("2026-03-02T08:16:00Z", 0.0), ("no time", None), ("2026-03-02", None)]
)
def test_a_strange_moment_hurts_nobody(series: AttemptSeries, recorded: str, delay: float | None) -> None:
    """An event from the future has a delay of 0; an event without a valid time has no delay."""
    count([told(Delivered(), recorded=recorded)], OK, series, now=NOW)
    known = grown("poller_delivery_delay_seconds_count", subscription="counted")
    assert (known, grown("poller_delivery_delay_seconds_sum", subscription="counted")) == (
        delay is not None,
        delay or 0,
    )


def test_every_step_has_a_name() -> None:
    """Every step has its own label."""
    assert set(get_args(Step)) == set(STEPS)
    assert len(set(STEPS.values())) == len(STEPS)


@pytest.mark.parametrize("spoken", ["DEBUG"], indirect=True)
@pytest.mark.usefixtures("spoken")
def test_a_line_says_what_one_wants_to_know() -> None:
    """An attempt's line has its destination, outcome, delay and next step, at the level of its outcome."""
    broken = unanswered(Failure.TIMEOUT, seconds=15, error="no answer within 15 s")
    with capture_logs() as logs:
        for step, outcome in (
            (Delivered(), OK),
            (Retry(timedelta(seconds=30)), broken),
            (
                PauseSink(timedelta(seconds=60)),
                answered(429, error="busy"),
            ),
            (PauseSubscription("gone for good"), answered(410)),
            (DeadLetter("given up"), None),
            (Withhold(), unanswered(Failure.CREDENTIAL, error="no such file")),
        ):
            report([told(step)], outcome, feed="a/x", subscription="s", sink="sink.example.org", now=NOW)
    assert [(line["log_level"], line["step"]) for line in logs] == [
        ("debug", "delivered"),
        ("warning", "retried"),
        ("warning", "sink_paused"),
        ("error", "subscription_paused"),
        ("error", "dead_letter"),
        ("debug", "withheld"),
    ]
    where = {"feed": "a/x", "subscription": "s", "sink": "sink.example.org", "id": "id", "entry": "1-0", "attempt": 2}
    for line in logs:
        assert line.items() >= (where | {"event": "attempt", "bytes": 660, "delay_seconds": 2.5}).items()
    assert (logs[0]["status"], logs[0]["seconds"]) == (204, 0.012)
    assert (logs[1]["failure"], logs[1]["next_seconds"], logs[1]["error"]) == ("timeout", 30.0, "no answer within 15 s")
    assert (logs[2]["pause_seconds"], logs[2]["next_seconds"]) == (60.0, 60.0)
    assert (logs[3]["reason"], logs[4]["reason"]) == ("gone for good", "given up")
    assert (logs[5]["failure"], logs[5]["error"]) == ("credential", "no such file")
    assert not {"next_seconds", "pause_seconds"} & set(logs[5])


@pytest.mark.parametrize("spoken", ["INFO"], indirect=True)
@pytest.mark.usefixtures("spoken")
def test_what_goes_well_is_a_detail() -> None:
    """At level ``info`` only the failed events of a batch are logged; withheld events are not."""
    with capture_logs() as logs:
        many = [told(Delivered()), told(Retry(timedelta(seconds=5))), told(Delivered()), told(Withhold())]
        report(many, OK, feed="a/x", subscription="s", sink="h", now=NOW)
    assert [line["step"] for line in logs] == ["retried"]
