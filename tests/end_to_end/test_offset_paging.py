"""An API that pages by offset while its records change: what slips over the edge of a page is found, and soon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from poller.changes.confirmation import MOST
from tests.harness.reading import reading
from tests.harness.scene import RESOURCES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.reading import Reading

PROFILE: Final = "offset-pages"
WITH_DELTAS: Final = [resource for resource in RESOURCES if resource != "achievements"]


async def missing(read: Reading) -> list[str]:
    """What the source has, by its own log, and the streams have not."""
    verdict = await read.verdict()
    assert verdict.sound, verdict
    return verdict.lost


async def begun(read: Reading) -> None:
    """The first reading of each feed, while records change, come and go; some of them are on no page of it."""
    read.source.restless = read.source.withdrawing = True
    await read.good_rounds()
    assert any(line.endswith("never published") for line in await missing(read))


async def confirmed(read: Reading) -> None:
    """Rounds until no feed is confirmed any more; each is a full reading."""
    for _ in range(MOST + 1):
        if not any([(await read.state(polled)).confirmation for polled in read.feeds]):
            return
        before = len(read.results)
        await read.good_rounds()
        assert "reconcile" in {result.mode.value for result in read.results[before:]}
    raise AssertionError("still being confirmed")


@pytest.mark.parametrize("quiet", [True, False])
async def test_nothing_is_missing_once_the_feeds_are_confirmed(tmp_path: Path, store: str, *, quiet: bool) -> None:
    """Whether the records come to rest after the first reading or not: then a delta, and nothing is missing."""
    async with reading(tmp_path, store, PROFILE, resources=WITH_DELTAS) as read:
        await begun(read)
        read.source.withdrawing = False
        read.source.restless = not quiet
        await confirmed(read)
        read.source.restless = False
        await read.good_rounds()
        assert {result.mode.value for result in read.results[-len(WITH_DELTAS) :]} == {"delta"}
        assert not await missing(read)


async def test_without_the_confirmation_records_stay_missing(tmp_path: Path, store: str) -> None:
    """No delta brings what slipped over an edge, however many there are: the test above can fail."""
    async with reading(tmp_path, store, PROFILE, resources=WITH_DELTAS) as read:
        await begun(read)
        read.source.restless = read.source.withdrawing = False
        await read.take_as_confirmed()
        for _ in range(3):
            await read.good_rounds()
        assert {result.mode.value for result in read.results[len(WITH_DELTAS) :]} == {"delta"}
        assert any(line.endswith("never published") for line in await missing(read))
