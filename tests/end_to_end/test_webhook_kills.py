"""The short form of :mod:`tests.end_to_end.webhook_kills`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.webhook_kills import kill

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.thorough
@pytest.mark.parametrize("kills", [4, 20])
async def test_kills_between_read_and_settled_lose_nothing(kills: int, tmp_path: Path, store: str) -> None:
    """After kills at each failpoint all events are delivered in order, and no settled one is repeated."""
    tally = await kill(tmp_path, kills, 1, store=store, changes_per_second=60)
    assert len(tally.moments) == kills
    assert all(verdict.clean for verdict in tally.verdicts), tally
