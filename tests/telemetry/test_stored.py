"""Laws of :mod:`poller.telemetry.stored`: what is known becomes series, and what is not known none."""

from __future__ import annotations

import msgspec

from poller.telemetry.stored import FeedFigures, StoredFigures, SubscriptionFigures, blocks
from tests.telemetry.series import Key, key, values

FEED = FeedFigures(
    feed="a/x",
    failing=True,
    paused=False,
    held=False,
    unidentified=2,
    backward_versions=4,
    held_versions=3,
    owned=True,
    interval=60.0,
    last_round=100.5,
    last_good_round=None,
    delta_token=None,
    oldest_reading=None,
    records=7,
    events=9,
    stream_entries=8,
    stream_bytes=1000,
    quarantine_entries=1,
)
SUBSCRIPTION = SubscriptionFigures(
    "s", failing=False, paused=True, ungranted=True, lag=None, backlog=None, parked=2, dead_letters=3, overrun=4
)


def exported(figures: StoredFigures) -> dict[Key, float]:
    return values("".join(blocks(figures, openmetrics=False)))


def test_what_is_not_known_has_no_series() -> None:
    """A moment that never was, a lag without a group: absent, which is not 0."""
    found = exported(StoredFigures([FEED], [SUBSCRIPTION], 2))
    assert found[key("poller_feed_failing", feed="a/x")] == 1
    assert found[key("poller_feed_unidentified_records", feed="a/x")] == 2
    assert found[key("poller_feed_backward_versions_total", feed="a/x")] == 4
    assert found[key("poller_feed_held_versions", feed="a/x")] == 3
    assert found[key("poller_feed_last_round_timestamp_seconds", feed="a/x")] == 100.5
    assert found[key("poller_feed_events_total", feed="a/x")] == 9
    assert found[key("poller_subscription_paused", subscription="s")] == 1
    assert found[key("poller_subscription_overrun_events_total", subscription="s")] == 4
    assert found[key("poller_members")] == 2
    names = {name for name, _ in found}
    assert not names & {"poller_feed_last_good_round_timestamp_seconds", "poller_subscription_lag_seconds"}


def test_each_figure_has_a_metric() -> None:
    """Each field of both values is exported under a name of its own."""
    whole = msgspec.structs.replace(FEED, last_good_round=1.0, delta_token=2.0, oldest_reading=3.0)
    told = msgspec.structs.replace(SUBSCRIPTION, lag=1.0, backlog=5)
    found = exported(StoredFigures([whole], [told], 1))
    assert sum(("feed", "a/x") in labels for _, labels in found) == len(FeedFigures.__struct_fields__) - 1
    assert sum(("subscription", "s") in labels for _, labels in found) == len(SubscriptionFigures.__struct_fields__) - 1
