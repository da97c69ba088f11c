"""Laws of :mod:`poller.telemetry.metrics`: rounds are counted by feed while the feed is polled here, and no longer."""

from __future__ import annotations

from poller.changes.plan import KINDS, RoundCounts
from poller.telemetry.metrics import RoundMetrics
from tests.telemetry.series import Key, key, values


def ended(
    rounds: RoundMetrics, feed: str, result: str = "ok", *, mode: str = "delta", pages: int = 1, **kinds: int
) -> None:
    rounds.ended(feed, RoundCounts(pages=pages, seconds=0.1, **kinds), mode=mode, result=result)


def exported(rounds: RoundMetrics) -> dict[Key, float]:
    return values("".join(rounds.blocks(openmetrics=False)))


def test_rounds_add_up() -> None:
    """Each feed by itself; by mode and result, with all kinds of records from the first one on."""
    rounds = RoundMetrics()
    ended(rounds, "a/x", pages=2, created=3, unchanged=4)
    ended(rounds, "a/x", created=1, quarantined=1)
    ended(rounds, "a/x", "failed", pages=0)
    ended(rounds, "a/y", "skipped", mode="skipped", pages=0)
    found = exported(rounds)
    kinds = {kind: found[key("poller_records_total", feed="a/x", kind=kind)] for kind in KINDS}
    assert kinds == {"created": 4, "modified": 0, "removed": 0, "unchanged": 4, "quarantined": 1}
    assert found[key("poller_pages_total", feed="a/x")] == 3
    assert found[key("poller_rounds_total", feed="a/x", mode="delta", result="ok")] == 2
    assert found[key("poller_rounds_total", feed="a/x", mode="delta", result="failed")] == 1
    assert found[key("poller_rounds_total", feed="a/y", mode="skipped", result="skipped")] == 1


def test_a_feed_that_went_to_another_process_has_no_series_here() -> None:
    """All of them go, and it begins anew when it is back."""
    rounds = RoundMetrics()
    ended(rounds, "a/x", created=3)
    ended(rounds, "a/y")
    rounds.gone("a/x")
    rounds.gone("a/never")
    assert {dict(labels)["feed"] for _, labels in exported(rounds)} == {"a/y"}
    ended(rounds, "a/x", created=1)
    assert exported(rounds)[key("poller_records_total", feed="a/x", kind="created")] == 1
