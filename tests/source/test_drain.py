"""Laws of :mod:`poller.source.drain`: a feed of several pages is read again to confirm it, with deltas in between."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from poller.changes.full_readings import Confirmation, confirmation_mark, confirmation_of
from poller.clock import rfc3339
from poller.errors import SourceError, SourceNonsense, SourceRefused
from poller.resources import Resource
from poller.source.client import ConditionalReader, ConditionalResponse, Validators
from poller.source.feed import RoundMode
from poller.source.paging import Params
from poller.source.round import run_round
from poller.store.feed_state import CONFIRMATION, DELTA_TOKEN, RECHECK_AT
from tests.source.round_sides import DAY, DOWN, FEED, GONE, Round, Script, records


def confirmation(feed: Round) -> Confirmation | None:
    return confirmation_of(feed.store.state.confirmation)


def listed(first: list[Any], second: list[Any], *deltas: tuple[str, Any, str | None]) -> Script:
    """A listing of two pages, tokens r1 and r2, and deltas: old token, records, new token."""
    script = Script().on(first, further="p", delta="r1").on(second, page="p", delta="r2")
    for since, brought, token in deltas:
        script.on(brought, since=since, delta=token)
    return script


@pytest.fixture
async def slipped() -> Round:
    """A feed whose baseline had two pages, a and c; b was on neither."""
    feed = Round()
    await feed(Script().on(records("a"), further="p", delta="d1").on(records("c"), page="p"))
    assert confirmation(feed) == Confirmation()
    return feed


async def test_what_slipped_over_an_edge_comes_with_the_next_round(slipped: Round) -> None:
    """Reconciles follow a first reading of several pages until one finds nothing late; then deltas."""
    result = await slipped(listed(records("a", "b"), records("c"), ("d1", [], "d2"), ("d2", [], "d3")))
    assert (result.mode, result.ok, result.created, result.unchanged) == (RoundMode.RECONCILE, True, 1, 2)
    assert slipped.causes[2:] == [("b", "created", "reconcile")]
    assert confirmation(slipped) == Confirmation(1, 1)
    result = await slipped(listed(records("a", "b"), records("c"), ("d3", [], "d4"), ("d4", [], "d5")))
    assert (result.mode, result.changes) == (RoundMode.RECONCILE, 0)
    assert confirmation(slipped) is None
    assert (await slipped(Script().on([], since="d5"))).mode is RoundMode.DELTA


async def test_one_page_is_not_confirmed() -> None:
    """A baseline of one page is not confirmed: the next round is a delta of one request."""
    feed = Round()
    await feed(Script().on(records("a"), delta="d1"))
    script = Script().on([], since="d1")
    assert (await feed(script)).mode is RoundMode.DELTA
    assert len(script.asked) == 1


async def test_a_feed_without_deltas_is_not_confirmed() -> None:
    """A feed without deltas is not confirmed: each of its rounds is a full one anyway."""
    feed = Round(msgspec.structs.replace(FEED, delta=False))
    for mode in (RoundMode.BASELINE, RoundMode.FULL, RoundMode.FULL):
        assert (await feed(listed(records("a"), records("c")))).mode is mode
    assert confirmation(feed) is None


@pytest.mark.parametrize("how", ["resync", "reconcile"])
async def test_other_full_readings_of_several_pages_are_confirmed_too(read: Round, how: str) -> None:
    """A resync or a regular reconcile of several pages starts confirmations; a one-page one does not."""
    if how == "resync":
        read.store.mark("resync", "1")
    else:
        read.clock.pass_by(DAY)
    result = await read(listed(records("a"), records("b"), ("d1", [], "d2"), ("d2", [], "d3")))
    assert result.mode == how
    assert confirmation(read) == Confirmation()
    since = read.kept
    assert since == ("r1" if how == "resync" else "d3")
    one_page = Script().on(records("a", "b"), delta="x").on([], since=since, delta="r9")
    assert (await read(one_page)).mode is RoundMode.RECONCILE
    assert (confirmation(read), read.kept) == (None, "r9")


@pytest.mark.parametrize("failure", [DOWN, SourceNonsense("not JSON"), SourceRefused("400", status=400)])
async def test_deltas_go_on_while_full_readings_fail(read: Round, failure: SourceError) -> None:
    """A reconcile that fails reads a delta all the same and moves its token; the round reports the failure."""
    read.clock.pass_by(DAY)
    for number in (1, 2):
        script = Script().on(failure).on(records(f"z{number}"), since=f"d{number}", delta=f"d{number + 1}")
        result = await read(script)
        assert (result.mode, result.ok, result.created) == (RoundMode.RECONCILE, False, 1)
        assert str(failure) in str(result.error)
        assert (read.causes[-1], read.kept) == ((f"z{number}", "created", "delta"), f"d{number + 1}")
    result = await read(Script().on(failure).on(DOWN, since="d3"))
    assert (result.ok, result.error, read.kept) == (False, str(failure), "d3")
    result = await read(Script().on(records("a", "b", "z1", "z2"), delta="x").on([], since="d3", delta="d9"))
    assert (result.mode, result.ok, result.changes, read.kept) == (RoundMode.RECONCILE, True, 0, "d9")


async def test_what_changed_meanwhile_is_not_late(slipped: Round) -> None:
    """A record that a delta of the same round brings has changed meanwhile and does not count as late."""
    script = listed(
        records("a", "b"),
        [*records("c", value=2), *records("n")],
        ("d1", [], "d2"),
        ("d2", [*records("c", value=2)], "d3"),
    )
    result = await slipped(script)
    assert (result.created, result.modified) == (2, 1)
    assert confirmation(slipped) == Confirmation(1, 2)  # b and n; c has changed


async def test_a_delta_is_read_before_the_reading_goes_on(slipped: Round) -> None:
    """A delta is read after the first page; its events come first, with the cause ``delta``."""
    script = listed(records("a"), records("b", "c"), ("d1", records("z"), "d2"), ("d2", [], "d3"))
    await slipped(script)
    assert slipped.causes[2:] == [("z", "created", "delta"), ("b", "created", "reconcile")]
    asked = [dict(params) for _, params in script.asked]
    assert asked[0] == {}
    assert asked.index({"sinceDeltaToken": "d1"}) < len(asked) - 1
    assert asked[-1] == {"sinceDeltaToken": "d2"}


async def test_deltas_go_on_at_each_interval_while_the_pages_are_read(slipped: Round) -> None:
    """With a very short interval, one delta is read after each page of a long full reading."""
    slipped.feed = msgspec.structs.replace(slipped.feed, slot=timedelta(microseconds=1))
    script = Script().on(records("a"), further="p").on([], page="p", further="q").on(records("c"), page="q")
    for number in range(1, 4):
        script.on(records(f"z{number}"), since=f"d{number}", delta=f"d{number + 1}")
    assert (await slipped(script)).ok
    assert slipped.causes[2:] == [(f"z{number}", "created", "delta") for number in (1, 2, 3)]
    assert slipped.kept == "d4"


async def test_the_token_moves_with_its_own_delta_and_never_by_the_full_reading(slipped: Round) -> None:
    """The delta token moves only by deltas, so a change that slipped out of the full reading still comes."""
    script = listed(records("a"), [], ("d1", [], "d2"), ("d2", records("c", value=2), "d3"))
    await slipped(script)
    assert slipped.causes[2:] == [("c", "modified", "delta")]
    moved = [commit.marks[DELTA_TOKEN] for commit in slipped.store.commits if DELTA_TOKEN in commit.marks]
    assert moved == ["d1", "d2", "d3", "d3"]


async def test_a_reading_that_looks_for_what_was_not_shown_is_confirmed_if_something_is_late(slipped: Round) -> None:
    """It follows others that were confirmed: another one follows only if it has brought a record late."""
    for late, expected in ((), None), (("n",), Confirmation()):
        slipped.store.unmark(CONFIRMATION)
        slipped.store.mark(RECHECK_AT, rfc3339(slipped.clock.now()))
        again = listed(records("a", *late), records("c"), ("d1", [], "d1"))
        assert (await slipped(again)).mode is RoundMode.RECONCILE
        assert confirmation(slipped) == expected


async def test_a_token_that_the_api_has_forgotten_without_a_word_is_replaced(slipped: Round) -> None:
    """If deltas bring neither a token nor what the full reading brings late, they go on from the token of that."""
    slipped.store.unmark(CONFIRMATION)
    slipped.clock.pass_by(DAY)
    forgotten: tuple[str, list[Any], None] = ("d1", [], None)
    result = await slipped(listed(records("a"), records("c", value=2), forgotten))
    assert (result.mode, result.ok, result.late, slipped.kept) == (RoundMode.RECONCILE, True, 1, "r1")
    assert confirmation(slipped) == Confirmation()
    assert (await slipped(listed(records("a"), records("c", value=2), ("r1", [], "d2"), ("d2", [], "d3")))).late == 0
    assert (await slipped(Script().on(records("c", value=3), since="d3", delta="d4"))).modified == 1


@pytest.mark.parametrize(("c", "brought", "own"), [(1, [], "r1"), (2, records("c", value=2), "r1"), (2, [], None)])
async def test_a_token_is_kept_as_long_as_nothing_casts_doubt_on_it(
    slipped: Round, c: int, brought: list[Any], own: str | None
) -> None:
    """Deltas without a token go on from theirs, if nothing came late or the full reading gave none either."""
    script = Script().on(records("a"), further="p", delta=own).on(records("c", value=c), page="p")
    assert (await slipped(script.on(brought, since="d1"))).ok
    assert slipped.kept == "d1"


async def test_a_record_that_slips_while_it_is_confirmed_is_not_removed(slipped: Round) -> None:
    """A record that slips out of a reading is not removed if its own request or a delta finds it."""
    await slipped(
        listed(records("a"), [], ("d1", [], "d2"), ("d2", [], "d3")).whole("/contractTypes/c", records("c")[0])
    )
    slipped.store.mark(CONFIRMATION, confirmation_mark(Confirmation()) or "")
    await slipped(listed(records("a"), [], ("d3", records("c"), "d4"), ("d4", [], "d5")))
    assert [kind for _, kind, _ in slipped.causes] == ["created", "created"]
    script = listed(records("a"), [], ("d5", [], "d6"), ("d6", [], "d7"), ("d7", [], "d8"), ("d8", [], "d9"))
    script.on(GONE, path="/contractTypes/c")
    slipped.store.mark(CONFIRMATION, confirmation_mark(Confirmation()) or "")
    assert (await slipped(script)).removed == 1


class Passes(Script):
    """A listing of two pages, of which one is another one in each pass, and an endpoint that shows no missing record.

    Attributes:
        passes: what the second page has in each pass, the last one from then on; an error is raised.
        age: how old a copy the second page is, seconds; None: it is none.
    """

    def __init__(
        self, *passes: list[Any] | SourceError, age: list[int] | None = None, path: str = "/contractTypes"
    ) -> None:
        super().__init__()
        self._path = path
        self.on(records("a"), path=path, further="p").on(GONE, path=f"{path}/c")
        self._passes = list(passes)
        self._ages = age or [0]
        self._age = 0

    async def get(self, path: str, params: Params) -> bytes:
        if dict(params).get("pageToken") == "p":
            self.on(self._passes.pop(0) if len(self._passes) > 1 else self._passes[0], path=self._path, page="p")
            self._age = self._ages.pop(0) if len(self._ages) > 1 else self._ages[0]
        return await super().get(path, params)

    async def ask(self, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
        assert not unless.headers
        body = await self.get(path, params)
        return ConditionalResponse(body, age=self._age if dict(params).get("pageToken") else 0)


@pytest.fixture
async def two_pages() -> Round:
    """A feed without deltas whose listing has two pages, with a on one, b and c on the other."""
    feed = Round(msgspec.structs.replace(FEED, delta=False))
    await feed(Script().on(records("a"), further="p").on(records("b", "c"), page="p"))
    return feed


async def test_what_slips_over_an_edge_and_has_no_path_of_its_own_is_not_removed(two_pages: Round) -> None:
    """A record that the endpoint never shows and that one pass has missed is listed by the second pass."""
    passes = Passes(records("b"), records("b", "c"))
    result = await two_pages(passes)
    assert (result.ok, result.changes, result.pages) == (True, 0, 2)
    assert [(path, asked) for path, asked in passes.asked if path == "/contractTypes"] == [
        ("/contractTypes", asked) for asked in ({}, {"pageToken": "p"}) * 2
    ]
    assert [(await two_pages(Passes(records("b")))).removed for _ in range(2)] == [0, 1]  # now it is known to lack some


async def test_what_both_passes_lack_is_removed_in_the_same_round(two_pages: Round) -> None:
    """Two answers and two passes decide."""
    assert (await two_pages(Passes(records("b")))).removed == 1
    assert two_pages.causes[-1][:2] == ("c", "removed")


async def test_a_listing_of_one_page_is_read_once() -> None:
    """It has no edge."""
    feed = Round(msgspec.structs.replace(FEED, delta=False))
    await feed(Script().on(records("a", "c")))
    script = Script().on(records("a")).on(GONE, path="/contractTypes/c")
    assert (await feed(script)).removed == 1
    assert [path for path, _ in script.asked].count("/contractTypes") == 1


@pytest.mark.parametrize(
    ("second", "error"),
    [([*records("b"), {"n": 1}], None), ([*records("b"), 7], None), (DOWN, str(DOWN)), (GONE, str(GONE))],
    ids=["a record without an id", "no record", "no answer", "an expired page token"],
)
async def test_a_second_pass_that_does_not_say_what_is_listed_confirms_nothing(
    two_pages: Round, second: Any, error: str | None
) -> None:
    """Then a second full reading decides."""
    result = await two_pages(Passes(records("b"), second))
    assert (result.ok, result.removed, result.error) == (error is None, 0, error)
    assert (await two_pages(Passes(records("b", "c")))).changes == 0
    assert (await two_pages(Passes(records("b"), second))).removed == 0
    assert (await two_pages(Passes(records("b")))).removed == 1


@pytest.mark.parametrize(("age", "removed"), [(1, 1), (2, 0)])
async def test_a_second_pass_that_a_cache_repeats_confirms_nothing(two_pages: Round, age: int, removed: int) -> None:
    """A page that was kept since the first pass says nothing new; an age of a second may be rounded."""
    passes = Passes(records("b"), age=[0, age])
    reader = ConditionalReader(passes.ask)
    result = await run_round(
        two_pages.feed, two_pages.store, reader.get, clock=two_pages.clock, qualifications=_none, unchanged=reader
    )
    assert (result.ok, result.removed) == (True, removed)


async def _none(since: int) -> dict[str, int]:
    return {}


async def test_a_second_pass_that_takes_too_long_confirms_nothing(two_pages: Round) -> None:
    """The round ends in time, and a second full reading decides."""
    passes = Passes(records("b"))
    passes.on(records("b"), page="p", further="q").on([], page="q")
    two_pages.feed = msgspec.structs.replace(two_pages.feed, max_round=timedelta(seconds=10))
    two_pages.clock.seconds = lambda: 20.0 * (len(passes.asked) > 4)
    result = await two_pages(passes)
    assert (result.ok, result.removed) == (True, 0)


async def test_deltas_go_on_beside_a_second_pass(slipped: Round) -> None:
    """What a delta brings there is published, and its token is the next one's; a record that it brings is not gone."""
    slipped.feed = msgspec.structs.replace(slipped.feed, slot=timedelta(microseconds=1))
    passes = Passes(records("b"))
    brought: dict[int, list[Any]] = {4: records("c", value=2)}
    for number in range(1, 9):
        passes.on(brought.get(number, []), since=f"d{number}", delta=f"d{number + 1}")
    result = await slipped(passes)
    assert (result.ok, result.removed) == (True, 0)
    assert slipped.causes[2:] == [("b", "created", "reconcile"), ("c", "modified", "delta")]
    assert slipped.kept == f"d{1 + sum('sinceDeltaToken' in asked for _, asked in passes.asked)}"


async def test_a_refused_token_makes_a_resync_of_it(slipped: Round) -> None:
    """A refused delta token makes the round a resync, with its own token and new confirmations."""
    result = await slipped(listed(records("a", "b"), records("c"), ("d1", GONE, None)))
    assert (result.mode, result.ok, result.created) == (RoundMode.RESYNC, True, 1)
    assert (slipped.kept, slipped.store.state.refusals, confirmation(slipped)) == ("r1", 1, Confirmation())


@pytest.mark.parametrize("failure", [DOWN, SourceRefused("no", status=403)])
async def test_deltas_that_fail_do_not_fail_the_reading(slipped: Round, failure: Any) -> None:
    """Failing deltas do not fail the reading; it is published, unconfirmed, and deltas go on from the old token."""
    result = await slipped(listed(records("a", "b"), records("c"), ("d1", failure, None)))
    assert (result.mode, result.ok, result.created) == (RoundMode.RECONCILE, True, 1)
    assert (slipped.kept, confirmation(slipped)) == ("d1", Confirmation(1, 0))
    result = await slipped(listed(records("a", "b"), records("c"), ("d1", [], "d2"), ("d2", failure, None)))
    assert (result.ok, slipped.kept, confirmation(slipped)) == (True, "d2", Confirmation(2, 0))


async def test_after_five_readings_deltas_go_on(slipped: Round) -> None:
    """After five full rounds with late records the confirmation is given up, and the state counts the late ones."""
    for number in range(1, 6):
        every = [f"b{known}" for known in range(number)]
        tokens = (f"d{2 * number - 1}", f"d{2 * number}", f"d{2 * number + 1}")
        script = listed(records("a", *every), records("c"), (tokens[0], [], tokens[1]), (tokens[1], [], tokens[2]))
        assert (await slipped(script)).mode is RoundMode.RECONCILE
    assert confirmation(slipped) == Confirmation(5, 5)
    assert (await slipped(Script().on([], since="d11"))).mode is RoundMode.DELTA
    assert confirmation(slipped) == Confirmation(5, 5)


async def test_a_reading_that_breaks_off_confirms_nothing(slipped: Round) -> None:
    """A broken reading confirms nothing: the next round reads in full again from the deltas' token."""
    script = Script().on(records("a"), further="p").on(DOWN, page="p").on([], since="d1", delta="d2")
    assert not (await slipped(script)).ok
    assert (slipped.kept, confirmation(slipped)) == ("d2", Confirmation())


async def test_a_page_that_was_on_its_way_does_not_undo_a_delta(slipped: Round) -> None:
    """A page requested before a delta does not undo the delta's version of a record without a time."""
    script = listed(records("a"), records("c"), ("d1", records("c", value=2), "d2"), ("d2", [], "d3"))
    result = await slipped(script)
    assert result.ok
    assert slipped.causes[2:] == [("c", "modified", "delta")]


async def test_pages_of_an_older_listing_do_not_undo_a_delta(slipped: Round) -> None:
    """A page requested long after a delta may show the listing as it was before: it does not undo the delta."""
    script = Script().on(records("a"), further="p").on([], page="p", further="q").on(records("c"), page="q")
    script.on(records("c", value=2), since="d1", delta="d2").on([], since="d2", delta="d3")
    assert (await slipped(script)).ok
    assert slipped.causes[2:] == [("c", "modified", "delta")]


async def test_a_record_that_takes_two_readings_to_remove_waits_for_no_regular_one() -> None:
    """Where a second full reading decides about a missing record, it follows, also for a single page with deltas."""
    feed = Round(msgspec.structs.replace(FEED, resource=Resource("positions", "position", "/positions")))
    await feed(Script().on(records("a", "b", "c"), path="/positions", delta="d1"))
    feed.clock.pass_by(DAY)
    results = []
    for left in (["a", "b"], ["a"], ["a"], ["a"]):
        feed.store.now_ms += 60_000
        script = Script().on(records(*left), path="/positions", delta="d1").on([], path="/positions", since="d1")
        results.append(await feed(script))
    assert [(result.mode, result.removed) for result in results] == [
        (RoundMode.RECONCILE, 0),
        (RoundMode.RECONCILE, 1),
        (RoundMode.RECONCILE, 1),
        (RoundMode.DELTA, 0),
    ]


class Offsets(Script):
    """Deltas in the order of changes, paged by offset, two records a page; the token is that of the last page."""

    def __init__(self, *subjects: str) -> None:
        super().__init__()
        self.changes = list(subjects)
        self.then: str | None = None  # changes before the second page is given
        self.takes_tokens_once = False

    async def get(self, path: str, params: Params) -> bytes:
        asked = dict(params)
        self.asked.append((path, asked))
        if self.takes_tokens_once and self.asked.count((path, asked)) > 1:
            raise GONE
        start = int(asked.get("pageToken", 0))
        if start and self.then:
            self.changes.append(self.then)
            self.then = None
        since = int(asked["sinceDeltaToken"])
        latest = {subject: number for number, subject in enumerate(self.changes, start=1) if number > since}
        changed = sorted(latest, key=lambda subject: latest[subject])
        found = [{"id": one, "n": latest[one]} for one in changed[start : start + 2]]
        further = str(start + 2) if start + 2 < len(changed) else None
        return json.dumps({"results": found, "pageToken": further, "deltaToken": str(len(self.changes))}).encode()


@pytest.mark.parametrize("once", [False, True], ids=["a token again", "a token once"])
async def test_a_delta_of_several_pages_is_read_until_it_brings_nothing(once: bool) -> None:
    """A record that shifts over the edge of a delta's page is read again, unless the API refuses the token then."""
    feed = Round()
    await feed(Script().on(records("a", "b", "c", "d"), delta="0"))
    script = Offsets("a", "b", "c", "d")
    script.then, script.takes_tokens_once = "a", once
    result = await feed(script)
    assert (result.ok, result.mode, feed.store.state.refusals) == (True, RoundMode.DELTA, 0)
    assert {"id": "c", "n": 3} in [event["data"]["record"] for event in feed.store.events] or once
    asked = len(script.asked)
    assert (await feed(script)).changes == 0
    assert len(script.asked) == asked + 1


async def test_a_page_token_that_dies_in_a_delta_is_no_refused_delta_token(slipped: Round) -> None:
    """If a later page of a delta is refused, the delta token stays valid and the round's mode stays."""
    script = listed(records("a", "b"), records("c")).on([], since="d1", further="q").on(GONE, page="q", since="d1")
    result = await slipped(script.on(GONE, page="q"))
    assert (result.mode, result.ok, result.created) == (RoundMode.RECONCILE, True, 1)
    assert (slipped.store.state.refusals, confirmation(slipped)) == (0, Confirmation(1, 0))
