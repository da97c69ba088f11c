"""An API that pages by offset while its records change: records that slip between pages are found soon."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from poller.changes.full_readings import MOST
from tests.harness.reading import reading
from tests.harness.scene import RESOURCES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.reading import Reading

PROFILE: Final = "offset-pages"
WITH_DELTAS: Final = [resource for resource in RESOURCES if resource != "achievements"]


async def missing(read: Reading) -> list[str]:
    """The versions that the source's log has and the streams lack."""
    verdict = await read.verdict()
    assert verdict.sound, verdict
    return verdict.lost


async def begun(read: Reading) -> None:
    """The first reading of each feed while records change; some of them are on no page of it."""
    read.source.restless = read.source.withdrawing = True
    await read.good_rounds()
    assert any(line.endswith("never published") for line in await missing(read))


async def confirmed(read: Reading) -> None:
    """Run rounds until no feed needs confirmation; each includes a full reading."""
    for _ in range(MOST + 1):
        if not any([(await read.state(polled)).confirmation for polled in read.feeds]):
            return
        before = len(read.results)
        await read.good_rounds()
        assert "reconcile" in {result.mode.value for result in read.results[before:]}
    raise AssertionError("a feed still needs confirmation")


@pytest.mark.parametrize("quiet", [True, False])
async def test_nothing_is_missing_once_the_feeds_are_confirmed(tmp_path: Path, store: str, *, quiet: bool) -> None:
    """After confirmation feeds use deltas and nothing is missing, whether or not the records kept changing."""
    async with reading(tmp_path, store, PROFILE, resources=WITH_DELTAS) as read:
        await begun(read)
        read.source.withdrawing = False
        read.source.restless = not quiet
        await confirmed(read)
        read.source.restless = False
        read.now.pass_by(timedelta(minutes=2))
        await read.good_rounds()  # a minute after a removal a feed is read in full once more
        await confirmed(read)
        await read.good_rounds()
        assert {result.mode.value for result in read.results[-len(WITH_DELTAS) :]} == {"delta"}
        assert not await missing(read)


async def test_without_the_confirmation_records_stay_missing(tmp_path: Path, store: str) -> None:
    """Control: without confirmation no delta brings the records that slipped between pages."""
    async with reading(tmp_path, store, PROFILE, resources=WITH_DELTAS) as read:
        await begun(read)
        read.source.restless = read.source.withdrawing = False
        await read.take_as_confirmed()
        for _ in range(3):
            await read.good_rounds()
        assert {result.mode.value for result in read.results[len(WITH_DELTAS) :]} == {"delta"}
        assert any(line.endswith("never published") for line in await missing(read))
