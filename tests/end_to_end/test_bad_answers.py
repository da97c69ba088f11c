"""Unusable answers: the round fails with a reason, the checkpoint stays, memory is bounded, and the feed recovers.

The profiles of the sandbox are the cases.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from poller.sandbox.faults.base import ProfileKind
from poller.sandbox.faults.registry import PROFILES
from tests.harness.peak import once
from tests.harness.reading import DAY, TOKEN, Reading, reading
from tests.harness.scene import RESOURCES

FEED: Final = ("employmentUnavailabilities",)
BAD: Final = [name for name, profile in PROFILES.items() if profile.kind is ProfileKind.ANSWER]
LACKING: Final = [name for name, profile in PROFILES.items() if profile.kind is ProfileKind.LACK]
WITH_PAGES: Final = {"page-loop", "endless-pages", "million-pages"}
"""Their pages are usable but never end; the records on them count."""

LARGE: Final = ("gzip-bomb", "huge-page", "million-pages")
"""Profiles whose answers take long to produce."""

HEAVY: Final = (
    "gzip-bomb",
    *(
        pytest.param(name, marks=pytest.mark.thorough)
        for name in ("million-pages", "endless-body", "huge-page", "deep-200", "drip")
    ),
)
"""Profiles that might cost memory."""

MOST_MEMORY: Final = 200 * 2**20
BOUNDS: Final = 'timeout = "5s"\nmax_page_bytes = "4MiB"'
SHORT: Final = BOUNDS.replace("5s", "1s")  # a good answer may take longer on a busy machine
UNENDING: Final = ("drip", "silent")  # each of these is waited for until the timeout


def assert_told(error: str | None) -> None:
    """The error of a failed round is one printable line without a credential."""
    assert error
    assert error.isprintable()
    assert len(error) < 500
    assert not any(TOKEN[start : start + 8] in error for start in range(len(TOKEN) - 7)), error


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in LARGE else ()) for name in BAD]
)
async def test_a_bad_answer_moves_nothing_and_is_got_over(name: str, tmp_path: Path, store: str) -> None:
    """A bad answer fails the round and keeps the token; after the next good round nothing is missing."""
    source = SHORT if name in UNENDING else BOUNDS
    async with reading(tmp_path, store, name, resources=FEED, feed="limit = 7\nmax_pages = 30", source=source) as read:
        for _ in ("first reading", "delta"):
            await read.switch("profiles?on=1")
            before = await read.state()
            (result,) = await read.rounds()
            after = await read.state()
            assert not result.ok
            assert_told(result.error)
            assert (after.delta_token, after.read_at, after.query) == (before.delta_token, before.read_at, before.query)
            assert after.sequence == before.sequence or name in WITH_PAGES
            await read.switch("profiles?on=0")
            await read.good_rounds()
            verdict = await read.verdict(made_up=await made_up(read))
            assert verdict.clean, verdict
            await read.take_as_confirmed()
            read.source.change(30)


async def made_up(read: Reading) -> list[tuple[str, bytes]]:
    """Published events whose records are not the source's: one profile has records of its own."""
    published = await read.played.events(FEED[0])
    return read.not_of_source(published)


@pytest.mark.parametrize("name", HEAVY)
async def test_a_bad_answer_costs_little_memory(name: str, tmp_path: Path, store: str) -> None:
    """With its default limits a daemon stays below 200 MB on a bad answer and reports one line."""
    async with reading(
        tmp_path,
        store,
        name,
        resources=FEED,
        feed="max_pages = 200",
        source='timeout = "5s"' if name != "drip" else SHORT,
    ) as read:
        ended = await once(
            read.config, PATH=os.environ["PATH"], PYTHONPATH=os.environ.get("PYTHONPATH", ""), API_TOKEN=TOKEN
        )
        assert not ended.result["ok"]
        assert_told(ended.result["error"])
        assert TOKEN not in ended.said
        assert ended.peak < MOST_MEMORY


@pytest.mark.parametrize("name", LACKING)
async def test_listings_that_lack_records_remove_none(name: str, tmp_path: Path, store: str) -> None:
    """A record missing from full readings is not removed while the source has it; whole listings restore the stream."""
    async with reading(tmp_path, store, name) as read:
        await read.switch("profiles?on=0")
        await read.good_rounds()
        await read.switch("profiles?on=1")
        read.source.change(30)
        read.now.pass_by(DAY)
        assert [result.removed for result in await read.rounds()] == [0] * len(RESOURCES)
        assert (verdict := await read.verdict()).sound, verdict
        await read.switch("profiles?on=0")
        read.now.pass_by(DAY)
        await read.good_rounds()
        assert (verdict := await read.verdict()).clean, verdict
