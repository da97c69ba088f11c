"""The demo's lines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from poller.cli.demo_lines import stream_line, webhook_line
from poller.cli.lines import Content, Event

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)


def test_the_two_lines_of_an_event() -> None:
    """Kind, record and revision stand in the same columns; then what has changed, and how long it took."""
    content = Content(2, "delta", msgspec.Raw(b'{"id":"abc","name":"x"}'))
    event = Event("1", "p.contractType.modified.v1", "abcdef", NOON.isoformat(), "2025-03-01T12:00:01.000Z", content)
    at = NOON + timedelta(seconds=1, milliseconds=250)
    lines = [
        stream_line("contractTypes", event, at=at),
        webhook_line(event, at=at, after=0.007),
        webhook_line(event, at=at, after=None),
    ]
    texts = ["".join(text for text, _ in line) for line in lines]
    assert texts == [
        '12:00:01  contractTypes               modified  abcd  r2  name: "x"',
        "12:00:01  by webhook, signature ok    modified  abcd  r2  1.25 s, 7 ms after the stream",
        "12:00:01  by webhook, signature ok    modified  abcd  r2  1.25 s",
    ]


def test_the_change_is_seen_on_80_columns() -> None:
    """Of the widest line there is room for the name of what has changed and the beginning of what it was."""
    before, after = msgspec.Raw(b'{"reason":"holiday"}'), msgspec.Raw(b'{"reason":"sick leave"}')
    content = Content(2, "delta", after, before, ("/reason",))
    event = Event("1", "p.x.modified.v1", "abcdef", NOON.isoformat(), NOON.isoformat(), content)
    text = "".join(text for text, _ in stream_line("employmentUnavailabilities", event, at=NOON))
    assert 'reason: "holiday" →' in text[:80]
