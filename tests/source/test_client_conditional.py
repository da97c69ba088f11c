"""Laws of :class:`poller.source.client.ConditionalReader`: rounds over real sockets, and an API with entity tags."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from poller.changes.plan import Commit, RemovalGuard
from poller.errors import StoreUnavailable
from poller.source.client import ConditionalReader, ConditionalResponse, FeedPosition, Validators, validators_of
from poller.source.feed import Feed, RoundMode, RoundResult
from poller.source.paging import ListQuery, Params
from poller.source.round import run_round
from poller.store.feed_state import GOOD_AT, READ_AT, RELEASED, ROUND, ROUND_AT
from tests.source.api import Request, http, serving
from tests.source.clients import client_of
from tests.source.round_sides import ACHIEVEMENTS, DAY, FEED, MemoryStore, WallClock, records

FULL = msgspec.structs.replace(FEED, delta=False, removals=False)
REMOVING = msgspec.structs.replace(FULL, removals=True)
LISTED = msgspec.structs.replace(REMOVING, resource=FEED.resource._replace(detail_path=None))
CACHED = msgspec.structs.replace(ACHIEVEMENTS, qualifications=("q1",), breaker=RemovalGuard(None))
MINUTE = timedelta(minutes=1)


class Lists:
    """An API whose lists have entity tags: changing ``pages`` changes the tag."""

    def __init__(self) -> None:
        self.pages: list[list[Any]] = [records("a", "b")]
        self.by_path: dict[str, list[Any]] = {}  # one-page lists that replace ``pages`` for a path
        self.delta: str | None = None
        self.status = 200
        self.gone = ""
        self.age = 0
        self.conditions: list[str | None] = []

    async def __call__(self, request: Request, _: Any) -> bytes:
        asked = dict(request.params) if "?" in request.target else {}
        condition = request.headers.get("if-none-match")
        self.conditions.append(condition)
        pages = [self.by_path[request.path]] if request.path in self.by_path else self.pages
        page = int(asked.get("pageToken", "0"))
        further = str(page + 1) if page + 1 < len(pages) else None
        tag = f'"{hash((request.path, json.dumps(pages[page])))}"'
        if request.path == self.gone:
            return http(404)
        listing, _, subject = request.path.rpartition("/")
        if listing == "/contractTypes":
            return http(200, json.dumps(records(subject)[0]).encode())
        if self.status != 200:
            return http(self.status)
        if tag == condition:
            return http(304, b"", f"ETag: {tag}", f"Age: {self.age}")
        body = {"results": pages[page], "pageToken": further, "deltaToken": self.delta}
        return http(200, json.dumps(body).encode(), f"ETag: {tag}", f"Age: {self.age}")

    @property
    def conditional(self) -> list[bool]:
        """For each request since the last look, whether it was conditional."""
        found = [condition is not None for condition in self.conditions]
        self.conditions.clear()
        return found


class Rounds:
    """A feed's rounds, a minute apart."""

    def __init__(self, lists: Lists, unchanged: ConditionalReader, feed: Feed) -> None:
        self.lists = lists
        self.unchanged = unchanged
        self.feed = feed
        self.store = MemoryStore()
        self.clock = WallClock()

    async def __call__(self, **changed: Any) -> RoundResult:
        async def none(since: int) -> dict[str, int]:
            assert not since
            return {}

        self.clock.pass_by(MINUTE)
        return await run_round(
            msgspec.structs.replace(self.feed, **changed),
            self.store,
            self.unchanged.get,
            clock=self.clock,
            qualifications=none,
            unchanged=self.unchanged,
        )


@asynccontextmanager
async def rounds_of(feed: Feed = FULL) -> AsyncIterator[Rounds]:
    lists = Lists()
    async with serving(lists) as api, client_of(api.url) as client:
        yield Rounds(lists, ConditionalReader(client.ask), feed)


async def test_an_unchanged_list_costs_one_request_and_writes_the_rounds_end_only() -> None:
    """A 304 is a good round of no pages: one commit that marks the round and the reading."""
    async with rounds_of() as rounds:
        assert (await rounds()).mode is RoundMode.BASELINE
        assert rounds.lists.conditional == [False]
        for _ in range(3):
            result, read_at = await rounds(), rounds.store.state.read_at
            assert (result.ok, result.mode, result.pages, result.records) == (True, RoundMode.FULL, 0, 0)
            assert rounds.lists.conditional == [True]
            assert set(rounds.store.commits[-1].marks) == {ROUND, ROUND_AT, GOOD_AT, READ_AT}
            assert read_at == rounds.clock.time
        assert len(rounds.store.events) == 2


async def test_a_change_is_found_and_its_version_is_the_next_ones_condition() -> None:
    """A changed list is read, also one that returns to an earlier version; its tag is the next condition."""
    async with rounds_of() as rounds:
        await rounds()
        for value in (2, 1, 3):
            rounds.lists.pages = [records("a", "b", value=value)]
            assert [(await rounds()).modified for _ in range(3)] == [2, 0, 0]
        assert rounds.lists.conditional == [False, *[True] * 9]


async def test_a_list_of_several_pages_is_never_asked_for_on_condition() -> None:
    """A list is requested conditionally only while its last full reading had one page."""
    async with rounds_of() as rounds:
        rounds.lists.pages = [records("a"), records("b")]
        await rounds()
        rounds.lists.pages = [records("a"), records("b", value=2)]
        assert (await rounds()).modified == 1
        assert rounds.lists.conditional == [False] * 4
        rounds.lists.pages = [records("a", "b", value=2)]
        await rounds()
        await rounds()
        assert rounds.lists.conditional == [False, True]
        rounds.lists.pages = [records("a", "b", value=3), records("c")]
        await rounds()
        await rounds()
        assert rounds.lists.conditional == [True, False, False, False]


@pytest.mark.parametrize("feed", [FULL, ACHIEVEMENTS], ids=["one listing", "many"])
async def test_a_version_that_is_held_back_is_shown_by_a_reading(feed: Feed) -> None:
    """A listing with a held version is read unconditionally until that version is published."""
    async with rounds_of(msgspec.structs.replace(feed, newest=True)) as rounds:
        rounds.lists.pages = [[{"id": "a", "n": 2, "lastModifiedAt": "2025-03-01T09:00:00Z"}]]
        await rounds()
        rounds.lists.pages = [[{"id": "a", "n": 1, "lastModifiedAt": "2025-03-01T08:00:00Z"}]]
        modified = []
        for _ in range(3):
            modified.append((await rounds()).modified)
            rounds.store.now_ms += 61_000
        assert modified == [0, 1, 0]


async def test_a_list_that_is_unchanged_for_days_is_read_all_the_same() -> None:
    """After two days of 304, the list is requested unconditionally, then conditionally again."""
    async with rounds_of() as rounds:
        await rounds()
        for _ in range(6):
            rounds.clock.pass_by(DAY - MINUTE)
            assert (await rounds()).ok
        assert rounds.lists.conditional == [False, True, True, False, True, True, False]


async def test_a_reconcile_is_on_condition_and_a_delta_is_not() -> None:
    """A reconcile may be conditional, a delta, also one beside it, may not; both keep the token."""
    async with rounds_of(msgspec.structs.replace(FEED, removals=False)) as rounds:
        rounds.lists.delta = "d1"
        await rounds()
        assert (await rounds()).mode is RoundMode.DELTA
        rounds.clock.pass_by(DAY)
        result = await rounds()
        assert (result.mode, result.ok, result.pages) == (RoundMode.RECONCILE, True, 1)  # the delta's
        assert rounds.lists.conditional == [False, False, True, False]
        assert rounds.store.state.delta_token == "d1"  # noqa: S105 -- no secret
        assert (await rounds()).mode is RoundMode.DELTA


@pytest.mark.parametrize("marks", [{"generation": "h"}, {"sequence": "7"}, {"read_at": "2025-03-01T11:00:00.000Z"}])
async def test_a_state_that_another_has_written_is_read_without_condition(marks: dict[str, str]) -> None:
    """If another process or a restore changed the state, the list is read unconditionally."""
    async with rounds_of() as rounds:
        await rounds()
        for name, value in marks.items():
            rounds.store.mark(name, value)
        assert (await rounds()).pages == 1
        assert rounds.lists.conditional == [False, False]
        assert (await rounds()).pages == 0


async def test_a_flushed_store_is_filled_again() -> None:
    """After a flush of the store the baseline is unconditional, though the process knows the tag."""
    async with rounds_of() as rounds:
        await rounds()
        rounds.store = MemoryStore()
        result = await rounds()
        assert (result.mode, result.created) == (RoundMode.BASELINE, 2)


async def test_a_delta_beside_a_listing_leaves_its_version() -> None:
    """The next full reading is conditional on the version of the listing, whatever was read beside it."""
    sent: list[str | None] = []

    async def ask(path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
        sent.append(unless.etag)
        return ConditionalResponse(b"{}", Validators(etag=f'"{path}{len(params)}"'))

    reader, position = ConditionalReader(ask), FeedPosition("g", 1, "2026-01-01T00:00:00Z")
    for _ in range(2):
        reader.start_round(position, now=datetime(2026, 1, 1, tzinfo=UTC))
        await reader.get("/x", ())
        await reader.get("/x", (("sinceDeltaToken", "d"),))
        reader.finish_round(position)
    assert sent == [None, None, '"/x0"', None]


async def test_another_query_is_another_list() -> None:
    """Validators of one query are not used for another."""
    async with rounds_of() as rounds:
        await rounds()
        assert (await rounds(query=ListQuery(limit=5))).mode is RoundMode.RESYNC
        assert rounds.lists.conditional == [False, False]
        assert (await rounds(query=ListQuery(limit=5))).pages == 0


@pytest.mark.parametrize("where", ["event", "end"])
async def test_a_version_that_was_not_committed_is_no_condition(where: str) -> None:
    """If the commit fails, the next round reads the list again and writes it."""
    async with rounds_of() as rounds:
        await rounds()
        rounds.lists.pages = [records("a", "b", value=2)]

        def failing(commit: Commit) -> StoreUnavailable | None:
            return StoreUnavailable("no answer") if bool(commit.events) == (where == "event") else None

        rounds.store.failing = failing
        assert not (await rounds()).ok
        rounds.store.failing = lambda _: None
        result = await rounds()
        assert (result.ok, result.pages) == (True, 1)
        assert rounds.lists.conditional == [False, True, False]
        assert [event["data"]["record"]["n"] for event in rounds.store.events] == [1, 1, 2, 2]


async def test_a_listing_that_was_committed_and_not_stored_is_read_whole() -> None:
    """A version that was committed before a kill does not stay if the listing returns to the version before it."""
    async with rounds_of(msgspec.structs.replace(ACHIEVEMENTS, removals=False, qualifications=("q1",))) as rounds:
        await rounds()
        rounds.lists.pages = [records("a", "b", value=2)]
        rounds.store.failing = lambda commit: (
            StoreUnavailable("killed") if commit.listings and not commit.events else None
        )
        assert (await rounds()).modified == 2
        rounds.store.failing = lambda _: None
        rounds.lists.pages = [records("a", "b")]
        assert [(await rounds()).modified for _ in range(2)] == [2, 0]
        assert rounds.lists.conditional == [False, True, False, True]
        assert [event["data"]["record"]["n"] for event in rounds.store.events] == [1, 1, 2, 2, 1, 1]


async def test_an_api_that_was_away_is_asked_on_condition_again() -> None:
    """A round without an answer changes nothing, and the next one is conditional again."""
    async with rounds_of() as rounds:
        await rounds()
        rounds.lists.status = 503
        assert not (await rounds()).ok
        rounds.lists.status = 200
        rounds.lists.conditional  # noqa: B018 -- forgets what was asked so far
        assert (await rounds()).pages == 0
        assert rounds.lists.conditional == [True]


async def test_a_304_that_nobody_asked_for_is_a_refusal() -> None:
    """A 304 to an unconditional request is refused."""
    async with rounds_of() as rounds:
        rounds.lists.status = 304
        result = await rounds()
        assert (result.ok, "answered 304" in (result.error or "")) == (False, True)


async def test_each_listing_of_a_feed_has_a_version_of_its_own() -> None:
    """Each substream has its own tag: unchanged ones cost one request each, the others are read."""
    async with rounds_of(msgspec.structs.replace(ACHIEVEMENTS, removals=False)) as rounds:
        await rounds()
        assert (await rounds()).pages == 0
        assert (await rounds(qualifications=("q1", "q2", "q3"))).pages == 1
        assert rounds.lists.conditional == [False, False, True, True, False, True, True]


@pytest.mark.parametrize("feed", [LISTED, CACHED], ids=["one listing", "many"])
async def test_a_listing_that_a_cache_repeats_is_no_second_reading(feed: Feed) -> None:
    """A copy of the listing that first lacked a record removes nothing, and the error says so; a later one does."""
    async with rounds_of(feed) as rounds:
        rounds.store.now_ms = int(rounds.clock.time.timestamp() * 1000)
        found, errors = [], []
        for listed, age in (("ab", 0), ("a", 0), ("a", 90), ("ab", 0), ("a", 0), ("a", 120), ("a", 50)):
            rounds.lists.pages = [records(*listed)]
            rounds.lists.age = age
            rounds.store.now_ms += 60_000
            result = await rounds()
            found.append((result.ok, result.removed))
            errors.append(result.error or "")
        assert found == [(True, 0), (True, 0), (False, 0), (True, 0), (True, 0), (False, 0), (True, 1)]
        assert "a cache on the way has kept the listing for 120 s" in errors[-2]


async def test_an_older_version_that_a_cache_repeats_is_not_shown_twice() -> None:
    """A copy of the reading that first showed an older version does not publish it."""
    async with rounds_of(msgspec.structs.replace(FULL, newest=True)) as rounds:
        modified = []
        for value, age in ((2, 0), (1, 0), (1, 61), (1, 0)):
            at = f"2025-03-01T0{value}:00:00Z"
            rounds.lists.pages = [[{"id": "a", "n": value, "lastModifiedAt": at}]]
            rounds.lists.age = age
            rounds.store.now_ms += 61_000
            modified.append((await rounds()).modified)
        assert modified == [0, 0, 0, 1]


async def test_a_record_that_is_missing_is_looked_for_in_a_whole_reading() -> None:
    """A missing record is removed when a second full reading lacks it; only then is the list read conditionally."""
    async with rounds_of(LISTED) as rounds:
        await rounds()
        await rounds()
        assert rounds.lists.conditional == [False, False]  # the baseline has nothing to compare with
        rounds.lists.pages = [records("a")]
        assert [(await rounds()).removed for _ in range(4)] == [0, 1, 0, 0]
        assert rounds.lists.conditional == [True, False, True, True]


async def test_a_record_that_is_there_and_not_listed_is_looked_for_in_each_round() -> None:
    """While a list omits an existing record, each round is unconditional, so that its removal is found."""
    async with rounds_of(REMOVING) as rounds:
        await rounds()
        rounds.lists.pages = [records("a")]
        rounds.lists.conditions.clear()
        assert [(await rounds()).removed for _ in range(3)] == [0, 0, 0]
        rounds.lists.gone = "/contractTypes/b"
        assert [(await rounds()).removed for _ in range(3)] == [1, 0, 0]
        assert rounds.lists.conditional == [False] * 10 + [True] * 2


async def test_what_an_unchanged_listing_holds_is_known_without_reading_it() -> None:
    """Only a changed substream is read; the records that it lost are found missing and removed."""
    async with rounds_of(msgspec.structs.replace(ACHIEVEMENTS, breaker=RemovalGuard(None))) as rounds:
        rounds.lists.by_path = {"/qualifications/q2/achievements": records("c")}
        for _ in range(3):
            await rounds()
        assert rounds.lists.conditional == [False] * 2 + [True] * 4
        rounds.lists.pages = [records("a")]
        results = [await rounds() for _ in range(4)]
        assert [result.removed for result in results] == [0, 1, 0, 0]
        assert [result.pages for result in results] == [1, 0, 0, 0]
        assert [event["subject"] for event in rounds.store.events] == ["a", "b", "c", "b"]


async def test_a_listing_that_nobody_asks_for_any_more_keeps_its_records() -> None:
    """Records of a substream whose qualification is no longer named are not removed."""
    async with rounds_of(msgspec.structs.replace(ACHIEVEMENTS, breaker=RemovalGuard(None))) as rounds:
        rounds.lists.by_path = {"/qualifications/q2/achievements": records("c")}
        for _ in range(3):
            await rounds()
        assert [(await rounds(qualifications=("q1",))).removed for _ in range(4)] == [0, 0, 0, 0]


async def test_a_release_is_a_whole_reading() -> None:
    """A release reads the whole list unconditionally."""
    async with rounds_of() as rounds:
        await rounds()
        rounds.store.mark(RELEASED, "1")
        await rounds()
        assert rounds.lists.conditional == [False, False]


# Laws of :mod:`poller.source.client`.

CHANGED = "Sat, 01 Mar 2025 12:00:00 GMT"
MINUTE_LATER = "Sat, 01 Mar 2025 12:01:00 GMT"
TOO_SOON = "Sat, 01 Mar 2025 12:00:59 GMT"
MODIFIED = {"Last-Modified": CHANGED, "Date": MINUTE_LATER}


@pytest.mark.parametrize(
    ("sent", "condition"),
    [
        ({"ETag": '"a"'}, {"If-None-Match": '"a"'}),
        ({"ETag": 'W/"a!#~"'}, {"If-None-Match": 'W/"a!#~"'}),
        ({"ETag": '"a"', **MODIFIED}, {"If-None-Match": '"a"'}),
        (MODIFIED, {"If-Modified-Since": CHANGED}),
        ({"ETag": "bare", **MODIFIED}, {"If-Modified-Since": CHANGED}),
        ({}, {}),
        ({"ETag": ""}, {}),
        ({"ETag": '""'}, {}),
        ({"ETag": 'W/""'}, {}),
        ({"ETag": "*"}, {}),
        ({"ETag": '"a", "b"'}, {}),
        ({"ETag": '"a b"'}, {}),
        ({"ETag": '"' + "a" * 1025 + '"'}, {}),
        ({"Last-Modified": CHANGED}, {}),
        ({"Last-Modified": CHANGED, "Date": TOO_SOON}, {}),
        ({"Last-Modified": MINUTE_LATER, "Date": CHANGED}, {}),
        ({"Last-Modified": "lately", "Date": CHANGED}, {}),
        ({"Date": CHANGED}, {}),
    ],
)
def test_what_an_answer_says_of_its_version(sent: dict[str, str], condition: dict[str, str]) -> None:
    """The condition is the entity tag, else a Last-Modified well before Date, else none, so no change is hidden."""
    assert validators_of(httpx.Headers(sent)).headers == condition
