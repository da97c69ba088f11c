"""Laws of :mod:`poller.telemetry.sources`: requests are counted by source and status, and no source makes up series."""

from __future__ import annotations

from poller.telemetry.sources import SourceSeries
from tests.telemetry.series import grown, value


def test_a_status_that_http_does_not_know_is_another() -> None:
    """Whatever numbers a source thinks of, there is one series for all of them."""
    series = SourceSeries("hostile")
    for status in (200, 200, 999, 299, 600):
        series.ended(status, 0.1)
    series.ended("timeout", 30.0)
    counts = {
        status: grown("poller_source_requests_total", source="hostile", status=status)
        for status in ("200", "other", "timeout", "999", "299", "600")
    }
    assert counts == {"200": 2, "other": 3, "timeout": 1, "999": 0, "299": 0, "600": 0}
    assert grown("poller_source_request_duration_seconds_count", source="hostile") == 6


def test_whether_it_is_left_alone_is_looked_up_when_somebody_asks() -> None:
    """While it is asked at all; then there is no such series."""
    series, paused = SourceSeries("busy"), False
    series.opened(lambda: paused)
    assert value("poller_source_paused", source="busy") == 0
    paused = True
    assert value("poller_source_paused", source="busy") == 1
    series.closed()
    assert value("poller_source_paused", source="busy") is None
