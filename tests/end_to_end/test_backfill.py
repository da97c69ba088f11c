"""A backfill by real daemons that are killed, before the judge of the acceptance."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.backfill import played


async def test_a_late_subscription_gets_the_present_state_and_what_follows(tmp_path: Path, store: str) -> None:
    """Law: nothing is missed and no revision falls, although daemons are killed; a naive reader misses changes."""
    outcome = await played(store, tmp_path, records=4000, rate=400, kills=3, seed=1)
    assert outcome.held, outcome
    assert outcome.judge.records == 4000
    assert outcome.kills >= 1, outcome
    assert outcome.naive_missed, outcome
