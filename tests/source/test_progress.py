"""Laws of :mod:`poller.source.progress`: a round that takes long says how far it has come, and ends in time."""

from __future__ import annotations

import json
from datetime import timedelta

import msgspec
import pytest

from poller.changes.commit import Commit
from poller.changes.confirmation import MOST, Confirmation, confirmation_of
from poller.source.feed import Feed, Mode
from poller.source.paging import Params
from poller.source.progress import Progress, progress_of
from poller.source.result import RoundResult
from poller.source.round import poll
from poller.store.state import PROGRESS
from tests.source.round_sides import ACHIEVEMENTS, FEED, Clock, MemoryStore, records
from tests.source.test_each import slow_clock


class Endless:
    """An API whose listings never end and whose pages always differ; or end after so many pages."""

    def __init__(self, pages: int | None = None) -> None:
        self.store = MemoryStore()
        self.asked: list[str] = []
        self.pages = pages

    async def get(self, path: str, params: Params) -> bytes:
        self.asked.append(path)
        place = int(dict(params).get("pageToken", 0)) + 1
        further = str(place) if self.pages is None or place < self.pages else None
        return json.dumps({"results": records(f"{path} {place}"), "pageToken": further, "deltaToken": "d"}).encode()

    async def round(self, feed: Feed, *, longest: float = 10, per_request: float = 0.5) -> RoundResult:
        async def named(_: int) -> dict[str, int]:
            return {}

        feed = msgspec.structs.replace(feed, max_round=timedelta(seconds=longest))
        async with slow_clock(per_request=per_request, asked=self.asked):
            return await poll(feed, self.store, self.get, now=Clock(), qualifications=named)


async def test_a_round_that_takes_too_long_is_given_up_and_what_it_read_is_kept() -> None:
    """It fails, and says after how long and how much; its records are published; no token moves."""
    api = Endless()
    result = await api.round(FEED)
    assert (result.ok, result.mode) == (False, Mode.BASELINE)
    assert result.error is not None
    assert result.error.startswith("the round is given up after 10 s (max_round), ")
    assert 15 <= result.pages <= 21
    assert len(api.store.events) == result.pages == result.created
    assert (api.store.state.delta_token, api.store.state.read_at) == (None, None)


async def test_one_listing_without_an_end_takes_the_time_of_the_round() -> None:
    """Of a feed with many: the round fails by it, those read before are kept as read, and the next round goes on."""
    api = Endless()
    result = await api.round(ACHIEVEMENTS)
    assert not result.ok
    assert "given up after 10 s (max_round)" in (result.error or "")
    assert api.store.kept_listings["q1"].tried
    assert api.store.state.read_at is None


async def test_many_listings_that_take_too_long_are_given_up_between_two() -> None:
    """Those that were read are kept, and the error says so."""
    api = Endless(1)
    many = msgspec.structs.replace(ACHIEVEMENTS, qualifications=tuple(f"q{number}" for number in range(50)))
    result = await api.round(many, longest=5)
    assert "given up after 5 s (max_round)" in (result.error or "")
    read = [name for name, listing in api.store.kept_listings.items() if listing.read]
    assert 5 <= len(read) < 15
    assert result.pages == len(read)


async def test_confirming_readings_that_take_too_long_are_counted_and_come_to_an_end() -> None:
    """Law: each counts as one of the five; after them deltas go on, and the feed is not read in full for ever."""
    api = Endless(3)
    assert (await api.round(FEED, longest=3600)).ok
    assert confirmation_of(api.store.state.confirmation) == Confirmation()
    api.pages = None
    for number in range(1, MOST + 1):
        result = await api.round(FEED, longest=2)
        assert (result.ok, result.mode) == (False, Mode.RECONCILE)
        assert confirmation_of(api.store.state.confirmation) == Confirmation(number, 0)
    api.pages = 1
    result = await api.round(FEED, longest=2)
    assert (result.ok, result.mode) == (True, Mode.DELTA)


async def test_the_confirming_readings_of_one_listing_that_take_too_long_are_counted() -> None:
    """Law: of a feed with many, each counts as one of the five of that listing, and an ordinary one as none."""
    api = Endless(3)
    one = msgspec.structs.replace(ACHIEVEMENTS, qualifications=("q1",))
    assert (await api.round(one, longest=3600)).ok
    api.pages = None
    for number in (*range(1, MOST + 1), MOST):
        assert not (await api.round(one, longest=2)).ok
        assert api.store.kept_listings["q1"].confirmation == Confirmation(number, 0)


@pytest.mark.parametrize("feed", [FEED, ACHIEVEMENTS], ids=["one listing", "many listings"])
async def test_a_round_that_is_given_up_says_what_to_do(feed: Feed) -> None:
    """Law: its error names the limit and the way out."""
    result = await Endless().round(feed)
    assert "if a whole reading takes longer than that, make max_round longer" in (result.error or "")


async def test_how_far_it_has_come_is_shown_while_it_runs_and_not_after() -> None:
    """About once a second: mode, pages and records that are committed, and for how long it has run."""
    api, shown = Endless(9), list[Progress | None]()

    async def look(commit: Commit) -> None:
        if PROGRESS in commit.marks:
            shown.append(progress_of(commit.marks[PROGRESS]))

    api.store.before_commit = look
    assert (await api.round(FEED)).ok
    *running, last = shown
    assert last is None
    assert 3 <= len(running) <= 5
    assert [(one.mode, one.records) for one in running if one] == [("baseline", one.pages) for one in running if one]
    assert [one.seconds for one in running if one] == sorted(one.seconds for one in running if one)
    assert api.store.state.progress is None


@pytest.mark.parametrize("left", [None, "{}"])
async def test_a_short_round_writes_nothing_of_it(left: str | None) -> None:
    """But takes away what a round has left that died on the way."""
    api = Endless(3)
    if left:
        api.store.mark(PROGRESS, left)
    assert (await api.round(FEED, per_request=0.01)).ok
    assert [PROGRESS in commit.marks for commit in api.store.commits] == [False] * 3 + [left is not None]
    assert (api.store.state.progress, progress_of(left)) == (None, None)
