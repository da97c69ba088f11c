"""What the demo claims at its end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from poller.cli.demo_ledger import Ledger
from poller.cli.lines import Content, Event
from poller.sandbox.history import History

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)


def event(name: str, *, cause: str = "delta") -> Event:
    record = msgspec.Raw(msgspec.json.encode({"name": name, "id": "A"}))
    return Event("1", "p.contractType.modified.v1", "a", NOON.isoformat(), "", Content(1, cause, record))


def test_reckoning() -> None:
    """The latest version must have arrived; one that was replaced before may be absent, and is counted as such."""
    history = History()
    for name in ("seeded", "one", "two", "three"):
        history.put("contractTypes", {"id": "A", "name": name}, NOON)
    ledger = Ledger()
    ledger.take("contractTypes", event("seeded", cause="baseline"), at=NOON)
    ledger.take("contractTypes", event("one"), at=NOON + timedelta(seconds=3))
    reckoning = ledger.reckon(history.since(0), after=1)
    assert (reckoning.changes, reckoning.seen, reckoning.replaced, reckoning.missing) == (3, 1, 1, 1)
    ledger.take("contractTypes", event("three"), at=NOON + timedelta(seconds=1))
    assert ledger.reckon(history.since(0), after=1).missing == 0
    assert ledger.delay == (2.0, 3.0)
    assert ledger.rows(["contractTypes"]) == [("contractTypes", "1", "0", "2", "0")]
