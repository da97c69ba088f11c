"""Laws of :mod:`poller.source.feed`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from poller.changes.diff import Change, Kind
from poller.changes.events import Cause
from poller.source.feed import KNOWN, Feed, Mode, due
from poller.source.paging import Query
from poller.store.feed_state import FeedState

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
FEED = Feed(
    id="acme/contractTypes",
    resource=KNOWN["contractTypes"],
    query=Query(),
    event_source="https://api.example.org/v1",
    type_prefix="org.example.api",
    reconcile=DAY,
)
READ = FeedState("g", 5, delta_token="d", query=FEED.fingerprint, read_at=NOON - DAY / 2)  # noqa: S106 -- no secret


@pytest.mark.parametrize(
    ("feed", "state", "expected"),
    [
        ({}, {"read_at": None}, (Mode.BASELINE, None)),
        ({}, {"read_at": None, "query": None, "delta_token": None}, (Mode.BASELINE, None)),
        ({}, {}, (Mode.DELTA, "d")),
        ({"query": Query(limit=5)}, {}, (Mode.RESYNC, None)),
        ({}, {"query": None}, (Mode.RESYNC, None)),
        ({"query": Query(keep="last", max_pages=3)}, {}, (Mode.DELTA, "d")),
        ({}, {"delta_token": None}, (Mode.FULL, None)),
        ({"delta": False}, {}, (Mode.FULL, None)),
        ({}, {"read_at": NOON - DAY}, (Mode.RECONCILE, None)),
        ({}, {"read_at": NOON - DAY + timedelta(microseconds=1)}, (Mode.DELTA, "d")),
        ({"reconcile": None}, {"read_at": NOON - 1000 * DAY}, (Mode.DELTA, "d")),
        ({}, {"read_at": NOON + DAY}, (Mode.RECONCILE, None)),
        ({"delta": False}, {"read_at": NOON - 2 * DAY}, (Mode.FULL, None)),
        ({"query": Query(limit=5)}, {"read_at": NOON - 2 * DAY}, (Mode.RESYNC, None)),
    ],
)
def test_the_state_says_which_reading_is_due(
    feed: dict[str, object], state: dict[str, object], expected: tuple[Mode, str | None]
) -> None:
    """Never read: baseline. Another query: resync. No token: full. Too long ago: reconcile. Else a delta."""
    assert due(msgspec.structs.replace(FEED, **feed), msgspec.structs.replace(READ, **state), NOON) == expected


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.SKIPPED])
def test_events_say_where_they_come_from(mode: Mode) -> None:
    """Source, type and cause of an event are the listing's, the resource's and the round's."""
    frame = FEED.frame(generation="g", mode=mode, path="/contractTypes")
    change = Change(Kind.CREATED, "k", "k", None, b"{}", b"{}", None, (), 1)
    event = json.loads(frame.encode(change, event_id="0" * 32, sequence=1, recorded="2025-03-01T12:00:00.000Z"))
    assert event["source"] == "https://api.example.org/v1/contractTypes"
    assert event["type"] == "org.example.api.contractType.created.v1"
    assert event["data"]["cause"] == mode


def test_every_reading_is_a_cause_and_nothing_else_is() -> None:
    """The modes but ``skipped`` are the causes of the contract."""
    assert {str(mode) for mode in Mode} - {"skipped"} == {str(cause) for cause in Cause}
