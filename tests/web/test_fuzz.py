"""Law: to any request the service answers as its OpenAPI document says, and never with 5xx of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web.fuzz import fuzzed, serving


@pytest.mark.thorough
async def test_made_up_requests(tmp_path: Path, store_url: str) -> None:
    """Schemathesis finds no failure with boundary values and a few random ones."""
    async with serving(tmp_path, store_url) as url:
        found, said = await fuzzed(tmp_path, url, "--phases", "coverage,fuzzing", "--max-examples", "3", "--seed", "1")
    assert found == 0, said
    assert "No issues found" in said or " passed" in said
