"""What the demo claims of its webhooks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from poller.cli.demo_webhooks import Webhooks
from poller.cli.lines import Content, Event
from poller.errors import PollerError

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
SOON = NOON + timedelta(milliseconds=20)


def event(name: str, revision: int, *, cause: str = "delta") -> Event:
    record = msgspec.Raw(b'{"id":"a"}')
    return Event(name, "p.contractType.modified.v1", "a", NOON.isoformat(), "", Content(revision, cause, record))


def test_what_came() -> None:
    """An event counts once, by whichever way it was seen first; a first reading counts and is not shown."""
    webhooks = Webhooks()
    for at, one in ((NOON, event("1", 1, cause="baseline")), (NOON, event("2", 2))):
        webhooks.publish(one, at=at)
    assert webhooks.missing == 2
    shown = [webhooks.take(one, at=SOON) for one in (event("1", 1, cause="baseline"), event("2", 2), event("2", 2))]
    assert shown == [False, True, False]
    assert webhooks.after("2") == 0.02
    assert webhooks.take(event("3", 3), at=NOON)
    assert webhooks.after("3") is None
    webhooks.publish(event("3", 3), at=SOON)
    assert webhooks.after("3") == 0.0
    assert webhooks.tally.text == (
        "by webhook: 3 events, all verified, median 10 ms after the stream, nothing lost, order kept"
    )
    webhooks.tally.judge()


@pytest.mark.parametrize("wrong", ["1 missing", "1 not verified", "1 out of order"])
def test_what_went_wrong(wrong: str) -> None:
    """An event that did not come, a signature that did not verify and a revision that came too early all fail it."""
    webhooks = Webhooks()
    webhooks.publish(event("1", 1), at=NOON)
    webhooks.take(event("1", 2 if "order" in wrong else 1), at=SOON)
    if "missing" in wrong:
        webhooks.publish(event("2", 2), at=NOON)
    if "verified" in wrong:
        webhooks.refuse()
    with pytest.raises(PollerError, match=wrong):
        webhooks.tally.judge()
