"""Laws of :mod:`poller.source.result`."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from poller.changes.commit import Tally
from poller.source.feed import Mode
from poller.source.result import RoundResult


def test_a_result_has_the_fields_of_the_contract() -> None:
    """What is printed has exactly the contract's names, in its order, as JSON."""
    result = RoundResult.of("acme/f", Mode.DELTA, Tally(15, 1, 2, 3, 4, 5), pages=2, seconds=0.12345, error=None)
    assert msgspec.json.decode(msgspec.json.encode(result.public)) == {
        "feed": "acme/f",
        "mode": "delta",
        "ok": True,
        "pages": 2,
        "records": 15,
        "created": 1,
        "modified": 2,
        "removed": 3,
        "unchanged": 4,
        "quarantined": 5,
        "seconds": 0.123,
        "error": None,
    }
    names = "feed mode ok pages records created modified removed unchanged quarantined seconds error"
    assert list(result.public) == names.split()
    assert result.changes == 6


def test_a_result_is_ok_if_and_only_if_there_is_no_error() -> None:
    """The error says why it is not; how long to wait is nobody's business outside."""
    assert not RoundResult.of("acme/f", Mode.FULL, Tally(), pages=0, seconds=0, error="why").ok
    skipped = RoundResult(feed="acme/f", mode=Mode.SKIPPED, ok=True, wait=timedelta(seconds=3))
    assert "wait" not in skipped.public
