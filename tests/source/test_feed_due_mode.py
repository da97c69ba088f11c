"""Laws of :mod:`poller.source.feed`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from poller.changes.diff import Change, ChangeKind
from poller.changes.events import Cause
from poller.resources import RESOURCES
from poller.source.feed import Feed, RoundMode, due_mode
from poller.source.paging import ListQuery
from poller.source.writer import event_frame
from poller.store.feed_state import FeedState

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
FEED = Feed(
    id="acme/contractTypes",
    resource=RESOURCES["contractTypes"],
    query=ListQuery(),
    event_source="https://api.example.org/v1",
    type_prefix="org.example.api",
    reconcile=DAY,
)
READ = FeedState("g", 5, delta_token="d", query=FEED.fingerprint, read_at=NOON - DAY / 2)  # noqa: S106 -- no secret


@pytest.mark.parametrize(
    ("feed", "state", "expected"),
    [
        ({}, {"read_at": None}, (RoundMode.BASELINE, None)),
        ({}, {"read_at": None, "query": None, "delta_token": None}, (RoundMode.BASELINE, None)),
        ({}, {}, (RoundMode.DELTA, "d")),
        ({"query": ListQuery(limit=5)}, {}, (RoundMode.RESYNC, None)),
        ({}, {"query": None}, (RoundMode.RESYNC, None)),
        ({"query": ListQuery(keep="last", max_pages=3)}, {}, (RoundMode.DELTA, "d")),
        ({}, {"delta_token": None}, (RoundMode.FULL, None)),
        ({"delta": False}, {}, (RoundMode.FULL, None)),
        ({}, {"read_at": NOON - DAY}, (RoundMode.RECONCILE, None)),
        ({}, {"read_at": NOON - DAY + timedelta(microseconds=1)}, (RoundMode.DELTA, "d")),
        ({"reconcile": None}, {"read_at": NOON - 1000 * DAY}, (RoundMode.DELTA, "d")),
        ({}, {"read_at": NOON + DAY}, (RoundMode.RECONCILE, None)),
        ({"delta": False}, {"read_at": NOON - 2 * DAY}, (RoundMode.FULL, None)),
        ({"query": ListQuery(limit=5)}, {"read_at": NOON - 2 * DAY}, (RoundMode.RESYNC, None)),
    ],
)
def test_the_state_says_which_reading_is_due(
    feed: dict[str, object], state: dict[str, object], expected: tuple[RoundMode, str | None]
) -> None:
    """Never read: baseline. Another query: resync. No token: full. Last full round too old: reconcile. Else: delta."""
    assert due_mode(msgspec.structs.replace(FEED, **feed), msgspec.structs.replace(READ, **state), NOON) == expected


@pytest.mark.parametrize("mode", [mode for mode in RoundMode if mode is not RoundMode.SKIPPED])
def test_events_say_where_they_come_from(mode: RoundMode) -> None:
    """An event's source, type and cause come from its listing, its resource and its round."""
    frame = event_frame(FEED, generation="g", mode=mode, path="/contractTypes")
    change = Change(ChangeKind.CREATED, "k", "k", None, b"{}", b"{}", None, (), 1)
    event = json.loads(frame.encode(change, event_id="0" * 32, sequence=1, recorded="2025-03-01T12:00:00.000Z"))
    assert event["source"] == "https://api.example.org/v1/contractTypes"
    assert event["type"] == "org.example.api.contractType.created.v1"
    assert event["data"]["cause"] == mode


def test_every_reading_is_a_cause_and_nothing_else_is() -> None:
    """The causes of the contract are the modes except ``skipped``, and ``backfill``, which reads nothing."""
    assert {str(mode) for mode in RoundMode} - {"skipped"} == {str(cause) for cause in Cause} - {"backfill"}
