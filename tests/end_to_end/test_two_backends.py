"""An API behind two backends of different age: older versions are counted, and held with ``versions = "newest"``."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import datetime
from pathlib import Path

import pytest

from tests.harness.reading import Reading, reading

FEED = "employmentUnavailabilities"


async def backwards(read: Reading) -> int:
    """How many events have an older version than the record's previous event."""
    found, last = 0, defaultdict[str, datetime | None](lambda: None)
    for event in map(json.loads, await read.played.events(FEED)):
        record = event["data"].get("record")
        modified = datetime.fromisoformat(record["lastModifiedAt"]) if record else None
        before, last[event["subject"]] = last[event["subject"]], modified
        found += modified is not None and before is not None and modified < before
    return found


@pytest.mark.parametrize("versions", ["last", "newest"])
async def test_an_old_version_is_published_or_held_back(versions: str, tmp_path: Path, store: str) -> None:
    """``newest`` publishes no old version and loses no new one; ``last`` publishes and counts each old one."""
    feed = f'limit = 500\nversions = "{versions}"\ndelta = "off"'
    async with reading(tmp_path, store, "two-backends", resources=(FEED,), feed=feed) as read:
        for _ in range(4):
            for _ in range(3):  # an odd number, so that rounds start at alternating backends
                await read.good_rounds()
            read.source.change(25)
        await read.good_rounds()
        while read.results[-1].held_versions:
            await read.good_rounds()
        counted, state = sum(result.backwards for result in read.results), await read.state()
        assert state.backwards == counted > 0
        if versions == "last":
            assert await backwards(read) == counted
        else:
            assert await backwards(read) == 0
            assert (state.held_versions, state.second_look) == (0, None)
            verdict = await read.verdict()
            assert verdict.clean, verdict
