"""An API with endless, always different pages: the round reports its progress and ends at its limit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.processes import daemon, ran
from tests.harness.scene import scene
from tests.harness.waiting import patience

if TYPE_CHECKING:
    from pathlib import Path

FEED = "acme/contractTypes"


async def status(config: Path) -> dict[str, Any]:
    """What ``poller status`` reports of the feed."""
    _, said = await ran("-c", str(config), "status", "--json")
    lines: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines()]
    return next(line for line in lines if line.get("feed") == FEED)


@pytest.mark.thorough
async def test_a_listing_without_an_end_is_given_up_in_time(tmp_path: Path, store: str) -> None:
    """The status shows pages and records while the round runs; at max_round it fails, and what it read is published."""
    async with scene(tmp_path, store=store, changes_per_second=0, profile="million-pages") as played:
        config = played.config(resources=["contractTypes"])
        config.write_text(config.read_text() + 'max_round = "20s"\n')
        async with daemon(config) as running:
            async with patience("a round that reports its progress"):
                while (progress := (await status(config))["progress"]) is None:
                    assert not running.rounds()
            assert (progress["mode"], progress["pages"]) == ("baseline", progress["records"])
            assert progress["pages"] > 0
            line = await running.until(lambda line: line.get("event") == "round", "the end of the round")
            assert not line["ok"]
            assert line["error"].startswith("the round is given up after 20 s (max_round), ")
            assert line["created"] >= progress["records"]
