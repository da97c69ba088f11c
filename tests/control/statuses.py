"""Statuses of feeds and subscriptions with every field set, for tests that show them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from poller.changes.plan import RoundCounts
from poller.control.status import FeedStatus, SubscriptionStatus
from poller.store.stats import Backlog

NOW = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
NAMES = (
    "acme/contractTypes",
    "a-source-of-thirty-two-characters/" + "employmentUnavailabilities" * 3,
    "acme/" + "介" * 60,
)


def feed(name: str = NAMES[0], **differing: Any) -> FeedStatus:
    usual: dict[str, Any] = {
        "feed": name,
        "state": "ok",
        "mode": "reconcile",
        "error": None,
        "good_at": "2026-03-02T08:15:00.000Z",
        "good_age_seconds": 3540.0,
        "round": RoundCounts(1200, 123_456_789, 123_456, 123_456, 123_456),
        "records": 123_456_789,
        "events": 123_456_789,
        "stream_length": 123_456_789,
        "quarantined": 7,
        "delta_token": True,
        "paging": "an empty page",
        "delta_token_on": "the first page",
        "refused": ("limit (taken: 250)",),
        "listings": 0,
        "oldest_seconds": None,
        "lost": None,
        "lost_at": None,
        "lost_age_seconds": None,
        "lease": "held",
        "lease_seconds": 3.0,
        "stream_bytes": 123_456_789,
        "next_at": "2026-03-02T09:15:00.000Z",
        "next_seconds": 3540.0,
    }
    return FeedStatus(**(usual | differing))


def subscription(name: str, **differing: Any) -> SubscriptionStatus:
    usual: dict[str, Any] = {
        "subscription": name,
        "origin": "file",
        "sink": "https://" + "rostering." * 12 + "example.org/介介介介",
        "state": "failing",
        "paused_by": None,
        "reason": None,
        "since": "2026-03-02T07:15:00Z",
        "until": None,
        "handshake": None,
        "delivered": 1,
        "failed": 2,
        "lag_entries": 123_456_789,
        "lag_seconds": 3540.0,
        "parked": 1000,
        "dead_letters": 123_456,
        "lost": 0,
        "all_feeds": False,
        "feeds": tuple(Backlog(one, 7, 3540.0, 1, 2) for one in NAMES),
        "error": "status 503 after 0.1 s: " + "x" * 200 + "\x1b[31m",
    }
    return SubscriptionStatus(**(usual | differing))
