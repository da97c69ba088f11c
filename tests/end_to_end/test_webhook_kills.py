"""The short form of :mod:`tests.end_to_end.webhook_kills`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.end_to_end.webhook_kills import kill

if TYPE_CHECKING:
    from pathlib import Path

_KILLS = 20


async def test_kills_between_read_and_settled_lose_nothing(tmp_path: Path, store: str) -> None:
    """Each fail point five times: all arrives, in order, and nothing that was on record as settled is sent again."""
    tally = await kill(tmp_path, _KILLS, 1, store=store, changes_per_second=60)
    assert len(tally.moments) == _KILLS
    assert all(verdict.clean for verdict in tally.verdicts), tally
