"""Who gets baselines, and when the store has to be asked for that."""

from __future__ import annotations

from poller.delivery.sinks.base import meets_baseline
from tests.delivery.events import entry as written
from tests.delivery.test_delivery_tracker import subscription


def test_the_store_is_asked_only_where_a_baseline_may_have_been_told() -> None:
    """By subscriptions that began at the beginning, and among entries of which one is a baseline."""
    baseline = written().replace(b'"cause":"delta"}}', b'"cause":"baseline"}}')
    entries = [("4-0", baseline), ("5-0", None), ("6-0", written())]
    assert meets_baseline(subscription(start="earliest"), entries)
    assert not meets_baseline(subscription(start="earliest"), entries[1:])
    assert not meets_baseline(subscription(start="now"), entries)
