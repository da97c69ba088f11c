"""Deltas that hold only the changed members: the real program over real sockets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.processes import ran
from tests.harness.scene import Scene, scene

if TYPE_CHECKING:
    from pathlib import Path

RECONCILE_OFF = 'reconcile = "off"\n'


async def once(config: Path) -> list[str]:
    """A round of each feed; their modes."""
    _, said = await ran("-c", str(config), "once", "--json")
    results = [json.loads(line) for line in said.splitlines()]
    assert all(result["ok"] for result in results)
    return [result["mode"] for result in results]


async def present(played: Scene) -> list[dict[str, Any]]:
    """The contract types that the source has now, without their times of change."""
    log = [version for version in await played.log() if version["resource"] == "contractTypes"]
    records = {version["id"]: version["record"] for version in log}
    return [{name: record[name] for name in record if name != "lastModifiedAt"} for record in records.values()]


@pytest.mark.thorough
async def test_parts_are_published_as_whole_records(tmp_path: Path, store: str) -> None:
    """Every event holds the whole record and names what changed, judged by the source's own history."""
    async with scene(tmp_path, store=store, changes_per_second=0, profile="partial-deltas") as played:
        config = played.config()
        config.write_text(config.read_text().replace(RECONCILE_OFF, RECONCILE_OFF + "partial = true\n"))
        assert set(await once(config)) == {"baseline"}
        for change in ({"name": "other"}, {"code": None}, {"note": {"new": [1]}, "name": "third"}):
            before = await played.published()
            records = await present(played)
            for record in records:
                await played.put("contractTypes", record | change)
            assert "delta" in await once(config)
            verdict = await played.verdict()
            assert verdict.clean, verdict
            assert await played.published() == before + len(records) > before
