"""Laws of :mod:`poller.delivery.delivery_codec`: decoding returns what was encoded, and the size is bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from poller.delivery.delivery_codec import Delivery, deliveries_of, encode
from poller.delivery.retry import Tries
from poller.delivery.sinks.base import Failure
from tests.delivery.outcomes import answered, unanswered

NOW = datetime(2026, 3, 2, tzinfo=UTC)


def test_what_is_written_is_what_is_read() -> None:
    """Stored deliveries are read in the order of the stream."""
    some = Delivery("a", 7, 9, Tries(3, 2, timedelta(seconds=1))).after(answered(500, error="no"), NOW)
    kept = {"10-0": encode(some), "9-10": encode(Delivery("b")), "9-9": encode(Delivery("b"))}
    assert deliveries_of(kept) == {"9-9": Delivery("b"), "9-10": Delivery("b"), "10-0": some}
    assert list(deliveries_of(kept)) == ["9-9", "9-10", "10-0"]


def test_members_of_a_later_version_are_passed_over_and_rubbish_is_not() -> None:
    """Unknown members of a stored delivery are ignored; a delivery without its key is an error."""
    assert deliveries_of({"1-0": b'{"key":"a","later":1}'}) == {"1-0": Delivery("a")}
    with pytest.raises(ValueError, match="key"):
        deliveries_of({"1-0": b"{}"})


def test_attempts_are_kept_up_to_a_number() -> None:
    """Of many attempts the first and the latest are kept, with short excerpts as text."""
    delivery = Delivery("a")
    for number in range(100):
        outcome = answered(500 + number % 50, excerpt=b"\xff" * 1024, seconds=0.12345)
        delivery = delivery.after(outcome, NOW + timedelta(seconds=number))
    assert len(delivery.attempts) == 24
    assert [one.at[17:19] for one in delivery.attempts[:2]] == ["00", "17"]
    assert delivery.attempts[-1].at.startswith("2026-03-02T00:01:39")
    assert delivery.attempts[0].excerpt == "\ufffd" * 256
    failed = Delivery("a").after(unanswered(Failure.DNS), NOW).attempts[0]
    assert (failed.status, failed.failure) == (None, "dns")
