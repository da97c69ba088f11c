"""Laws of :mod:`poller.source.substreams`: a feed of many substreams, each with its own state, read in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.full_readings import Confirmation, confirmation_of
from poller.changes.plan import RemovalGuard, SubstreamSnapshot
from poller.errors import (
    CredentialUnusable,
    SourceError,
    SourceNonsense,
    SourceRefused,
    SourceUnavailable,
    StoreUnavailable,
)
from poller.source.client import ConditionalReader, ConditionalResponse, Validators
from poller.source.feed import Feed, RoundMode, RoundResult
from poller.source.paging import Params
from poller.source.round import run_round
from poller.source.substreams import MOVED, Rotation
from tests.harness.waiting import turns
from tests.source.round_sides import ACHIEVEMENTS, DAY, MemoryStore, WallClock, records
from tests.source.round_sides import FEED as LISTED

SECOND = timedelta(seconds=1)
NAMES = tuple(f"q{number:02d}" for number in range(20))
FEED = msgspec.structs.replace(
    ACHIEVEMENTS, qualifications=(), discover=True, breaker=RemovalGuard(None), slot=SECOND * 3600
)


class Many:
    """A source of many substreams, and their names; each substream has one record unless the test sets others."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = WallClock()
        self.names: dict[str, int] = dict.fromkeys(NAMES, 0)
        self.failing: dict[str, Exception] = {}
        self.values: dict[str, list[dict[str, Any]]] = {}
        self.asked: list[str] = []
        self.at_once = self.most_at_once = 0
        self.on_asked: dict[str, Any] = {}
        self.paged: dict[str, list[list[dict[str, Any]]]] = {}
        self.refused_pages: dict[tuple[str, int], list[Exception]] = {}

    @property
    def milliseconds(self) -> int:
        return int(self.clock.time.timestamp() * 1000)

    async def get(self, path: str, params: Params) -> bytes:
        name = path.split("/")[2]
        self.asked.append(name)
        if then := self.on_asked.pop(name, None):
            then()
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await turns()  # lets the other requests reach this point
        self.at_once -= 1
        if failure := self.failing.get(name):
            raise failure
        if name in self.paged:
            place = int(dict(params).get("pageToken", 0))
            if refusals := self.refused_pages.get((name, place)):
                raise refusals.pop()
            further = str(place + 1) if place + 1 < len(self.paged[name]) else None
            return msgspec.json.encode({"results": self.paged[name][place], "pageToken": further})
        assert not params
        return msgspec.json.encode({"results": self.values.get(name, records(f"r-{name}"))})

    async def named(self, since: int) -> dict[str, int]:
        return {name: when for name, when in self.names.items() if when >= since}

    @property
    def confirmation(self) -> Confirmation | None:
        return confirmation_of(self.store.state.confirmation)

    @property
    def causes(self) -> list[tuple[str, str]]:
        return [(event["subject"], event["data"]["cause"]) for event in self.store.events]

    async def __call__(self, *, names: int = 20, **changed: Any) -> RoundResult:
        self.names = {name: self.names.get(name, 0) for name in list(self.names)[:names]}
        self.asked.clear()
        self.clock.pass_by(SECOND)
        self.store.now_ms = self.milliseconds
        feed = msgspec.structs.replace(FEED, **changed)
        return await run_round(feed, self.store, self.get, clock=self.clock, qualifications=self.named)


@pytest.fixture
def many() -> Many:
    return Many()


async def test_all_are_read_some_at_a_time_and_committed_in_order(many: Many) -> None:
    """Substreams are requested within the limit, and committed in the order of their turns."""
    result = await many(at_once=5)
    assert (result.mode, result.pages, result.created, many.most_at_once) == (RoundMode.BASELINE, 20, 20, 5)
    assert [event["subject"] for event in many.store.events] == [f"r-{name}" for name in many.asked]
    assert (many.store.state.read_at, many.store.state.oldest) == (many.clock.time, many.clock.time)
    assert many.store.state.rotation is None


async def test_a_crash_forgets_only_the_last_listings_that_were_read(many: Many) -> None:
    """Listings without news are committed when they are many, and not at the end of the round alone."""
    many.names = dict.fromkeys((f"q{number:03}" for number in range(150)), 0)
    many.values = {name: [] for name in many.names}

    def crash() -> None:
        if len(many.asked) == 140:
            raise RuntimeError("killed")

    many.on_asked = dict.fromkeys(many.names, crash)
    with pytest.raises(RuntimeError, match="killed"):
        await many(names=150, at_once=1)
    assert len(many.store.kept_listings) == 128


async def test_a_round_lasts_a_slot_and_the_next_goes_on(many: Many) -> None:
    """A rotation reads each substream once, over several rounds; only its end counts as a full round."""
    await many()
    read_at = many.store.state.read_at
    asked: list[str] = []
    rounds = 0
    with slow_clock(many):
        while len(asked) < 20:
            result = await many(slot=SECOND)
            assert (result.ok, result.mode) == (True, RoundMode.FULL)
            assert 0 < len(many.asked) < 20
            asked += many.asked
            rounds += 1
            over = len(asked) == 20
            assert (many.store.state.rotation is None) == over
            assert (many.store.state.read_at != read_at) == over
    assert sorted(asked) == sorted(NAMES)
    assert rounds >= 4


async def test_whoever_wants_all_to_be_read_begins_anew(many: Many) -> None:
    """Without a slot an interrupted rotation starts again and reads each substream."""
    await many()
    with slow_clock(many):
        assert 0 < len((await many(slot=SECOND), many.asked)[1]) < 20
    result = await many(slot=None)
    assert (result.pages, sorted(many.asked)) == (20, sorted(NAMES))


async def test_what_a_change_has_named_comes_first_even_in_the_middle(many: Many) -> None:
    """A substream named during the round is read next, after the requests in flight; a new one too."""
    await many()
    with slow_clock(many):

        def change() -> None:
            many.names |= {"q19": many.milliseconds + 1, "new": many.milliseconds + 1}

        many.on_asked["q03"] = change
        await many(names=21)
    place = many.asked.index("q03")
    assert {"q19", "new"} <= set(many.asked[place + 1 : place + 8])
    assert "r-new" in [event["subject"] for event in many.store.events]
    assert many.store.events[-1]["data"]["cause"] == "full"


async def test_what_is_named_for_a_time_to_come_hides_nothing_of_now(many: Many) -> None:
    """A name dated in the future (the store's clock was set back) does not hide names of now."""
    await many()
    many.names["q05"] = many.milliseconds + 30 * 86_400_000
    with slow_clock(many):
        many.on_asked["q03"] = lambda: many.names.update(new=many.milliseconds + 1)
        await many(names=21)
    assert "r-new" in [event["subject"] for event in many.store.events]


async def test_one_that_cannot_be_read_costs_itself(many: Many) -> None:
    """A failed substream leaves the others read; its records stay, and it is tried again at its turn."""
    await many()
    for failure in (SourceNonsense("not JSON"), SourceUnavailable("503"), SourceRefused("403", status=403)):
        many.failing = {"q05": failure, "q11": failure}
        result = await many()
        assert (result.ok, result.pages, result.error) == (False, 18, f"{failure} (and 1 more listings)")
    many.failing = {}
    result = await many()
    assert (result.ok, result.removed, result.changes, len(many.asked)) == (True, 0, 0, 20)


async def test_what_no_listing_holds_any_more_is_removed_though_another_fails(many: Many) -> None:
    """A record missing in two rotations is removed; after an hour a failed substream protects only its own records."""
    await many()
    many.failing = {"q05": SourceNonsense("not JSON")}
    await many()
    many.clock.pass_by(MOVED)
    many.values = {"q02": []}
    assert [(await many()).removed for _ in range(3)] == [0, 1, 0]
    assert [event["subject"] for event in many.store.events][20:] == ["r-q02"]


async def test_a_listing_with_a_record_without_an_id_keeps_what_any_other_lacks(many: Many) -> None:
    """While a record of any substream has no id, no missing record is removed, for it may be that one."""
    await many()
    many.values = {"q02": [], "q03": [{"id": None}]}
    results = [await many() for _ in range(3)]
    assert [(result.ok, result.removed, result.unidentified) for result in results] == [(True, 0, 1)] * 3
    many.values = {"q02": []}
    assert [(await many()).removed for _ in range(3)] == [0, 1, 0]
    assert [event["subject"] for event in many.store.events][20:] == ["r-q02"]


async def test_a_record_that_moves_to_another_listing_is_not_removed(many: Many) -> None:
    """A record stays while any substream lists it."""
    await many()
    many.values = {"q02": [], "q03": records("r-q02", "r-q03")}
    assert [(await many()).removed for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("known", [True, False], ids=["a listing that was read", "a new one"])
async def test_a_record_that_may_have_moved_to_a_failing_listing_is_not_removed(many: Many, known: bool) -> None:
    """What another substream lacks waits an hour for a failing one, also after a long pause, and is removed then."""
    here, there = "00000001-0000-4000-8000-000000000000", "q03" if known else "new"
    moving = [{"id": "moving", "qualificationID": here}]
    many.names[here] = 0
    many.values = {here: moving}
    await many(names=21)
    many.clock.pass_by(2 * MOVED)
    many.names[there] = 0
    many.values = {here: [], there: [*moving, *records(f"r-{there}")]}
    many.failing = {there: SourceUnavailable("503")}
    results = [await many(names=22) for _ in range(3)]
    assert [result.removed for result in results] == [0, 0, 0]
    assert "1 missing records are not removed" in (results[-1].error or "")
    many.clock.pass_by(MOVED)
    if known:
        many.failing = {}
        assert [(await many(names=22)).changes for _ in range(2)] == [0, 0]
        assert not any(snapshot.missing for snapshot in many.store.snapshots.values())
    else:
        assert (await many(names=22)).removed == 1


async def test_other_listings_that_fail_each_time_do_not_stop_removals(many: Many) -> None:
    """If another substream fails in each rotation, records go once all were read since they were first missed."""
    await many()
    removed: list[int] = []
    for number in range(8):
        many.values = {f"q{number // 2:02d}": []}
        many.values |= {name: [] for name in NAMES[: number // 2]}
        many.failing = {NAMES[10 + number]: SourceUnavailable("503")}
        removed.append((await many()).removed)
    assert sum(removed) >= 3
    many.failing = {}
    assert sum(removed) + sum([(await many()).removed for _ in range(2)]) == 4


async def test_a_listing_that_is_unchanged_for_days_is_read_all_the_same() -> None:
    """An API whose tag does not change with a deletion: the substream is read after two days."""
    found = [{"id": "a"}, {"id": "b"}]

    async def ask(path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
        body = None if unless.etag else msgspec.json.encode({"results": found})
        return ConditionalResponse(body, Validators(etag='"same"'))

    async def named(_: int) -> dict[str, int]:
        return {"q00": 0}

    store, clock, unchanged = MemoryStore(), WallClock(), ConditionalReader(ask)

    async def read() -> RoundResult:
        clock.pass_by(DAY / 2)
        return await run_round(FEED, store, unchanged.get, clock=clock, qualifications=named, unchanged=unchanged)

    assert (await read()).created == 2
    del found[0]
    assert [result.removed for result in [await read() for _ in range(8)]] == [0, 0, 0, 0, 0, 1, 0, 0]


async def test_a_parent_that_is_gone_empties_its_listing_once_that_is_confirmed(many: Many) -> None:
    """A 404 twice removes a substream's records, once does not; if it comes back they are created again."""
    await many()
    many.failing = {"q07": SourceRefused("no such qualification", status=404)}
    first = await many()
    assert (first.ok, first.removed) == (True, 0)
    assert (await many()).removed == 1
    many.failing = {}
    result = await many()
    assert (result.created, many.store.events[-1]["data"]["revision"]) == (1, 3)


@pytest.mark.parametrize("status", [404, 410, 403])
async def test_a_later_page_that_is_refused_removes_nothing(many: Many, status: int) -> None:
    """A 404 or 410 for a page token fails the substream, and removes none of its records."""
    many.paged = {"q07": [records("a"), records("b")]}
    await many()
    many.refused_pages = {("q07", 1): [SourceRefused("no such page", status=status)] * 99}
    results = [await many() for _ in range(4)]
    assert [(result.ok, result.removed) for result in results] == [(False, 0)] * 4
    assert many.asked.count("q07") == (2 if status == 403 else 4)
    many.refused_pages = {}
    result = await many()
    assert (result.ok, result.changes) == (True, 0)


async def test_a_listing_whose_page_token_expires_is_read_once_more(many: Many) -> None:
    """An expired page token costs a second reading of its substream in the same turn."""
    many.paged = {"q07": [records("a"), records("b")]}
    await many()
    many.refused_pages = {("q07", 1): [SourceRefused("the page token has expired", status=410)]}
    many.paged = {"q07": [records("a"), records("b", "c")]}
    result = await many()
    assert (result.ok, result.created, many.asked.count("q07")) == (True, 1, 4)


async def test_an_api_that_is_away_is_not_asked_for_every_listing(many: Many) -> None:
    """Three substreams in a row without an answer end the round; the next one starts with the others."""
    await many()
    many.failing = dict.fromkeys(NAMES, SourceUnavailable("503"))
    result = await many()
    assert (result.ok, len(many.asked)) == (False, 3)
    many.failing = {}
    assert (await many()).ok
    assert len(many.asked) == 17


@pytest.mark.parametrize("silent", [False, True])
async def test_a_listing_that_was_never_read_has_its_first_reading_later(many: Many, *, silent: bool) -> None:
    """The late first reading of a substream is a baseline; that of a new qualification is not."""
    many.failing = {"q05": SourceRefused("not yours", status=403)}
    assert not (await many(silent_baseline=silent)).ok
    assert many.store.state.read_at is not None
    told = len(many.store.events)
    many.names["new"] = 0
    result = await many(names=21, silent_baseline=silent)
    assert (result.ok, result.mode, result.created) == (False, RoundMode.FULL, 1)
    many.failing = {}
    result = await many(names=21, silent_baseline=silent)
    assert (result.ok, result.mode, result.created) == (True, RoundMode.FULL, 1)
    assert many.causes[told:] == [("r-new", "full"), ("r-q05", "baseline")][: 1 if silent else 2]
    many.values = {"q05": [{"id": "r-q05", "n": 2}]}
    await many(names=21, silent_baseline=silent)
    assert many.causes[-1] == ("r-q05", "full")


async def test_a_new_qualification_that_fails_at_first_is_published_as_new(many: Many) -> None:
    """The records of a new qualification are created whenever it is first read, not a baseline."""
    await many()
    many.names["new"] = 0
    many.failing = {"new": SourceNonsense("not JSON")}
    assert not (await many(names=21)).ok
    many.failing = {}
    assert (await many(names=21)).created == 1
    assert many.causes[-1] == ("r-new", "full")


async def test_time_in_which_the_feed_is_not_polled_is_no_time_of_failing(many: Many) -> None:
    """Law: a listing that failed right before a pause of two hours, and after it, has not failed for an hour."""
    slot = timedelta(minutes=1)
    await many(slot=slot)
    many.failing = {"q03": SourceNonsense("not JSON")}
    many.values = {"q02": []}
    await many(slot=slot)
    many.clock.pass_by(2 * MOVED)
    results = [await many(slot=slot) for _ in range(3)]
    assert [result.removed for result in results] == [0, 0, 0]
    assert "1 missing records are not removed" in (results[-1].error or "")
    for _ in range(8):
        many.clock.pass_by(MOVED / 6)
        results.append(await many(slot=slot))
    assert sum(result.removed for result in results) == 1


async def test_a_listing_that_was_never_read_keeps_no_other_from_losing_records(many: Many) -> None:
    """Records missing from read listings are removed; those that may be in an unread one stay and are counted."""
    unread, other = (f"0000000{digit}-0000-4000-8000-000000000000" for digit in (1, 2))
    many.names |= {unread.upper(): 0, other: 0}
    many.failing = {unread.upper(): SourceRefused("not yours", status=403)}
    many.values = {
        other: [{"id": "mine", "qualificationID": other}, {"id": "theirs", "qualificationID": unread}, {"id": "whose"}]
    }
    await many(names=22)
    many.clock.pass_by(MOVED)
    many.values = {other: []}
    results = [await many(names=22) for _ in range(3)]
    assert [(result.ok, result.removed) for result in results] == [(False, 0), (False, 1), (False, 0)]
    assert many.store.events[-1]["subject"] == "mine"
    assert results[-1].error == (
        "not yours; 2 missing records are not removed, for they may be in a listing that could not be read"
    )
    many.failing = {}
    assert [(await many(names=22)).removed for _ in range(3)] == [0, 2, 0]


async def test_what_a_listing_showed_before_it_failed_is_not_removed(many: Many) -> None:
    """A new record on a page before a failure is not removed while its substream cannot be read."""
    many.paged = {"q07": [records("a"), records("b")]}
    await many()
    many.paged = {"q07": [records("a", "new"), records("b")]}
    many.refused_pages = {("q07", 1): [SourceRefused("no", status=403)]}
    assert (await many()).created == 1
    many.failing = {"q07": SourceNonsense("not JSON")}
    assert [(await many()).removed for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    "expired", [SourceRefused("GET /x: the API answered 401", status=401), CredentialUnusable("no token")]
)
@pytest.mark.parametrize("paged", [[records("r-q07", "new")], [records("r-q07", "new"), records("b")]])
async def test_what_was_read_before_the_token_expired_is_not_removed(
    many: Many, expired: SourceError, paged: list[list[dict[str, Any]]]
) -> None:
    """A new record read in a round that ends without a usable token is not removed while its substream fails."""
    await many()
    many.paged = {"q07": paged}
    many.refused_pages = {("q07", len(paged) - 1): [expired]} if len(paged) > 1 else {}
    many.failing = {} if len(paged) > 1 else {"q19": expired}
    result = await many()
    assert (result.ok, result.created) == (False, 1)
    many.failing = {"q07": SourceRefused("not yours", status=403)}
    assert [(await many()).removed for _ in range(3)] == [0, 0, 0]


async def test_what_was_committed_before_a_crash_is_not_removed(many: Many) -> None:
    """A record whose substream was not stored with it, as by version 0.1, is not removed while that cannot be read."""
    name = "00000001-0000-4000-8000-000000000000"
    many.names[name.upper()] = 0
    many.values = {name.upper(): []}
    await many(names=21)
    many.values = {name.upper(): [{"id": "new", "qualificationID": name}], "q02": []}
    listings = dict(many.store.kept_listings)
    many.store.failing = lambda commit: StoreUnavailable("killed") if commit.listings and not commit.events else None
    assert (await many(names=21)).created == 1
    many.store.failing, many.store.kept_listings = lambda _: None, listings
    many.failing = {name.upper(): SourceRefused("not yours", status=403)}
    results = [await many(names=21) for _ in range(2)]
    many.clock.pass_by(MOVED)
    results += [await many(names=21) for _ in range(2)]
    assert [result.removed for result in results] == [0, 0, 1, 0]
    assert many.store.events[-1]["subject"] == "r-q02"
    assert results[-1].error == (
        "not yours; 1 missing records are not removed, for they may be in a listing that could not be read"
    )
    many.failing = {}
    assert [(await many(names=21)).changes for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("before", [[], None], ids=["read before", "new"])
async def test_what_names_no_qualification_is_not_removed_after_a_crash(many: Many, before: list[Any] | None) -> None:
    """A record that names no qualification, committed before a crash, is not removed while its listing fails."""
    many.values = {"q07": [] if before is None else before}
    await many()
    many.names = {**many.names, **({"q99": 0} if before is None else {})}
    name = "q99" if before is None else "q07"
    many.values = {"q07": [], name: [{"id": "new"}]}
    many.store.failing = lambda commit: StoreUnavailable("killed") if commit.listings and not commit.events else None
    assert (await many(names=21)).created == 1
    many.store.failing = lambda _: None
    many.failing = {name: SourceRefused("not yours", status=403)}
    assert [(await many(names=21)).removed for _ in range(3)] == [0, 0, 0]
    many.failing = {}
    assert [(await many(names=21)).changes for _ in range(2)] == [0, 0]


async def test_what_a_listing_lacked_once_is_not_removed_while_it_fails(many: Many) -> None:
    """A record that names no qualification is not removed because its listing lacked it once and then failed."""
    many.values = {"q07": records("a", "b")}
    await many()
    many.values = {"q07": records("a"), "q02": []}
    assert (await many()).removed == 0
    many.failing = {"q07": SourceRefused("not yours", status=403)}
    assert (await many()).removed == 0
    many.clock.pass_by(MOVED)
    assert [(await many()).removed for _ in range(3)] == [1, 0, 0]
    assert many.store.events[-1]["subject"] == "r-q02"
    many.failing = {}
    assert (await many()).removed == 1
    many.values["q07"] = records("a", "b")
    assert [(await many()).created for _ in range(2)] == [1, 0]


class Cache:
    """A cache before many substreams, which says how old its copies are."""

    def __init__(self, many: Many) -> None:
        self.many = many
        self.ages: dict[str, int] = {}

    async def ask(self, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:  # noqa: ARG002 -- none has a version
        body = await self.many.get(path, params)
        return ConditionalResponse(body, age=self.ages.get(path.split("/")[2], 0))


async def test_an_answer_that_a_cache_repeats_does_not_say_again_that_a_listing_is_gone(many: Many) -> None:
    """A backend answers 404 once, and a cache repeats that."""
    feed = msgspec.structs.replace(FEED, apart=2 * SECOND)

    async def read() -> RoundResult:
        many.clock.pass_by(3 * SECOND)
        many.store.now_ms = many.milliseconds
        return await run_round(feed, many.store, many.get, clock=many.clock, qualifications=many.named)

    await read()
    many.failing = {"q07": SourceRefused("no such qualification", status=404)}
    assert (await read()).removed == 0
    many.failing = {"q07": SourceRefused("no such qualification", status=404, age=3)}
    result = await read()
    assert (result.ok, result.removed, "a cache on the way has kept the listing" in str(result.error)) == (
        False,
        0,
        True,
    )
    many.failing = {"q07": SourceRefused("no such qualification", status=404)}
    assert (await read()).removed == 1


async def test_a_copy_in_an_earlier_round_of_a_rotation_is_no_second_reading(many: Many) -> None:
    """A copy of the listing that first lacked a record removes nothing, also if the rotation ends in a later round."""
    cache = Cache(many)
    reader = ConditionalReader(cache.ask)
    feed = msgspec.structs.replace(FEED, slot=SECOND, apart=2 * SECOND)

    async def rotation(*, age: int = 0) -> list[RoundResult]:
        results: list[RoundResult] = []
        cache.ages = {"q03": age}
        while not results or many.store.state.rotation is not None:
            many.asked.clear()
            many.clock.pass_by(60 * SECOND)
            many.store.now_ms = many.milliseconds
            round_ = run_round(
                feed, many.store, reader.get, clock=many.clock, qualifications=many.named, unchanged=reader
            )
            results.append(await round_)
        return results

    with slow_clock(many):
        for listed, age, removed in (("ab", 0, 0), ("a", 0, 0), ("a", 3600, 0), ("a", 3600, 0), ("a", 0, 1)):
            many.values = {"q03": records(*listed)}
            results = await rotation(age=age)
            assert sum(result.removed for result in results) == removed
            assert [result.ok for result in results].count(False) == (age > 0)
            assert "a cache on the way has kept the listing" in (results[-1].error or "") or not age
            assert len(results) > 2 or listed == "ab"


async def test_a_rotation_that_a_crash_ended_is_no_second_reading(many: Many) -> None:
    """A record is not removed after one reading because the round died when it had marked what is missing."""
    with slow_clock(many):
        many.values = {"q03": records("a", "b")}
        assert (await rotation(many)).ok
        many.values = {"q03": records("a")}
        many.store.failing = lambda _: (
            StoreUnavailable("killed") if any(one.missing for one in many.store.snapshots.values()) else None
        )
        assert (await rotation(many)).error == "killed"
        assert many.store.snapshots["b"].missing
        many.store.failing = lambda _: None
        many.values = {"q03": records("a", "b")}
        assert ((await rotation(many)).removed, [subject for subject, _ in many.causes].count("b")) == (0, 1)
        assert not many.store.snapshots["b"].missing


@pytest.mark.parametrize("back", [SECOND * 3600, SECOND * 90, SECOND * 30])
@pytest.mark.parametrize("name", ["q15", "q18"])
async def test_a_clock_that_is_set_back_makes_no_second_reading(many: Many, name: str, back: timedelta) -> None:
    """Listings with a try dated in the future are no part of a rotation before they are read in it."""
    with slow_clock(many):
        many.values = {name: records("a", "b")}
        await rotation(many)
        many.values = {name: records("a")}
        assert (await rotation(many)).removed == 0
        assert any(one.missing for one in many.store.snapshots.values())
        many.values = {name: records("a", "b")}
        many.clock.pass_by(-back)
        results = [await rotation(many) for _ in range(8)]
        assert [(result.ok, result.removed, result.created) for result in results] == [(True, 0, 0)] * 8
        assert not any(one.missing for one in many.store.snapshots.values())
        many.values = {name: records("a")}
        assert [(await rotation(many)).removed for _ in range(2)] == [0, 1]


async def test_an_unchanged_listing_shows_what_another_one_has_hidden(many: Many) -> None:
    """A record that an old answer of another listing has set back is published again, though its own is unchanged."""
    reader = ConditionalReader(partial(answered_with_tag, many))
    modified: list[int] = []
    for first, second in ((1, None), (None, 2), (1, 2), (None, 2), (None, 2)):
        many.values = {
            name: records("x", value=value) if value else [] for name, value in (("q00", first), ("q01", second))
        }
        many.names = {"q00": 0, "q01": 0}
        many.clock.pass_by(SECOND)
        result = await run_round(
            FEED, many.store, reader.get, clock=many.clock, qualifications=many.named, unchanged=reader
        )
        modified.append(result.modified)
    assert modified == [0, 1, 1, 1, 0]
    assert many.store.events[-1]["data"]["record"]["n"] == 2


async def answered_with_tag(many: Many, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
    """The substream, unless it has this tag."""
    body = await many.get(path, params)
    tag = f'"{hash(body)}"'
    return ConditionalResponse(None if unless.etag == tag else body, Validators(etag=tag))


async def test_however_short_the_slot_is_a_round_reads_a_listing(many: Many) -> None:
    """A rotation goes on although the slot is over before the first substream is requested."""
    await many()
    for _ in range(3):
        assert (await many(slot=timedelta(microseconds=1))).pages == 1


async def test_a_silent_baseline_is_silent_for_each_listing_once(many: Many) -> None:
    """Changes in a substream that was read are published, though others still have a silent baseline."""
    many.failing = {"q05": SourceNonsense("not JSON")}
    await many(silent_baseline=True)
    many.values = {"q02": [{"id": "r-q02", "n": 2}]}
    await many(silent_baseline=True)
    assert [(event["subject"], event["data"]["cause"]) for event in many.store.events] == [("r-q02", "full")]


async def test_a_listing_of_several_pages_is_read_again_until_nothing_comes_late(many: Many) -> None:
    """A substream of several pages is read first in each round, until nothing comes late or five times."""
    many.paged = {"q07": [records("a"), records("c")]}
    await many(slot=SECOND)
    assert many.confirmation == Confirmation()
    many.paged = {"q07": [records("a", "b"), records("c")]}
    await many(slot=SECOND)
    assert many.asked[0] == "q07"
    assert many.causes[-1] == ("b", "reconcile")
    assert many.confirmation == Confirmation(1, 1)
    for number in range(4):
        many.paged["q07"][0] = records("a", "b", value=number + 5)
        await many(slot=SECOND)
    assert many.confirmation == Confirmation(5, 9)
    many.paged["q07"][0] = records("a", "b", value=20)
    await many(slot=SECOND)
    assert many.causes[-1] == ("b", "full")
    assert many.confirmation == Confirmation(5, 9)
    await many(slot=SECOND)
    assert many.confirmation is None


async def test_of_several_listings_the_one_that_was_read_least_says_whether_it_goes_on(many: Many) -> None:
    """The least confirmed substream decides whether confirming goes on; late records are summed."""
    many.paged = {name: [records(f"{name}a"), records(f"{name}c")] for name in ("q07", "q08")}
    await many(slot=SECOND)
    kept = many.store.kept_listings
    kept["q07"] = msgspec.structs.replace(kept["q07"], confirmation=Confirmation(5, 2))
    many.paged["q07"][0] = records("q07a", value=2)
    many.paged["q08"][0] = records("q08a", "q08b")
    await many(slot=SECOND)
    assert many.confirmation == Confirmation(1, 3, 2)
    assert many.confirmation.due


async def test_a_listing_that_is_confirmed_has_its_turn_in_each_round_of_a_rotation(many: Many) -> None:
    """A substream to be confirmed is read in each round of a rotation, until it is confirmed."""
    many.paged = {"q19": [records("a"), records("c")]}
    await many()
    many.paged["q19"][0] = records("a", "b")
    turns: list[bool] = []
    with slow_clock(many):
        for _ in range(3):
            await many(slot=SECOND)
            assert many.store.state.rotation is not None
            turns.append("q19" in many.asked)
    assert turns == [True, True, False]
    assert many.causes[-1] == ("b", "reconcile")


async def test_a_listing_that_nobody_names_any_more_is_read_on(many: Many) -> None:
    """A substream is read on if the feeds that had named its qualification have forgotten that (a reset, a rename)."""
    await many()
    many.names = {"q03": 0}
    many.values = {"q07": [{"id": "r-q07", "n": 2}]}
    result = await many()
    assert (result.ok, result.modified, sorted(many.asked)) == (True, 1, list(NAMES))


class Tagged:
    """Pages with an entity tag each; a request with a matching tag gets a 304."""

    def __init__(self, pages: list[list[dict[str, Any]]]) -> None:
        self.pages = pages
        self.unchanged = 0

    async def ask(self, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:  # noqa: ARG002 -- all have the same
        place = int(dict(params).get("pageToken", 0))
        body = {"results": self.pages[place], "pageToken": str(place + 1) if place + 1 < len(self.pages) else None}
        raw = msgspec.json.encode({**body, "deltaToken": "d"})
        tag = f'"{hash(raw)}"'
        if unless.etag == tag:
            self.unchanged += 1
            return ConditionalResponse(None)
        return ConditionalResponse(raw, Validators(etag=tag))


async def test_a_listings_version_says_nothing_of_other_rules(many: Many) -> None:
    """Of a record that changed in a member that does not count any version may be known: other rules compare it."""
    tagged = Tagged([records("a")])
    reader, one = ConditionalReader(tagged.ask), msgspec.structs.replace(FEED, qualifications=("q00",), discover=False)

    async def read(feed: Feed) -> RoundResult:
        many.clock.pass_by(SECOND)
        many.store.now_ms = many.milliseconds
        return await run_round(
            feed, many.store, reader.get, clock=many.clock, qualifications=many.named, unchanged=reader
        )

    ignoring = msgspec.structs.replace(one, ignore=("/n",))
    await read(ignoring)
    tagged.pages = [records("a", value=2)]
    assert [(await read(ignoring)).changes for _ in range(2)] == [0, 0]
    assert tagged.unchanged == 1
    assert ((await read(one)).modified, tagged.unchanged) == (1, 1)
    assert ((await read(one)).changes, tagged.unchanged) == (0, 2)


async def test_an_empty_listing_beside_an_unchanged_one_is_believed(many: Many) -> None:
    """Law: the other one shows that the API is sound, although none of its records was sent."""
    listings = {"q00": Tagged([records("a")]), "q01": Tagged([records("b")])}

    async def ask(path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
        return await listings[path.split("/")[2]].ask(path, params, unless=unless)

    feed = msgspec.structs.replace(FEED, qualifications=("q00", "q01"), discover=False, breaker=RemovalGuard())
    reader, removed = ConditionalReader(ask), []
    for emptied in (False, True, True):
        many.clock.pass_by(60 * SECOND)
        many.store.now_ms = many.milliseconds
        listings["q01"].pages = [[] if emptied else records("b")]
        result = await run_round(
            feed, many.store, reader.get, clock=many.clock, qualifications=many.named, unchanged=reader
        )
        assert result.ok
        removed.append(result.removed)
    assert (removed, listings["q00"].unchanged) == ([0, 0, 1], 2)


@pytest.mark.parametrize("feed", [FEED, LISTED])
@pytest.mark.parametrize("pages", [1, 2])
async def test_the_first_pages_version_says_nothing_of_the_others(feed: Feed, pages: int) -> None:
    """A listing of several pages is requested unconditionally, one of a single page conditionally."""
    store, clock = MemoryStore(), WallClock()
    tagged = Tagged([records("a"), records("b")][:pages])
    unchanged = ConditionalReader(tagged.ask)

    async def named(_: int) -> dict[str, int]:
        return {"q00": 0}

    async def read() -> RoundResult:
        clock.pass_by(DAY)
        return await run_round(feed, store, unchanged.get, clock=clock, qualifications=named, unchanged=unchanged)

    for _ in range(3):
        assert (await read()).ok
    assert tagged.unchanged == (0 if pages > 1 else 1 + feed.resource.per_qualification)
    tagged.pages[-1] = records("b" if pages > 1 else "a", value=2)
    assert (await read()).modified == 1


@contextmanager
def slow_clock(many: Many) -> Iterator[None]:
    """The clock moves by a quarter of a second with each request of a round, and only so."""
    many.clock.seconds = lambda: len(many.asked) / 4
    try:
        yield
    finally:
        many.clock.seconds = None


async def rotation(many: Many) -> RoundResult:
    """The last round of a rotation of several, a minute apart, or the one that failed."""
    while True:
        many.clock.pass_by(60 * SECOND)
        many.store.now_ms = many.milliseconds
        result = await many(slot=SECOND, apart=2 * SECOND)
        if not result.ok or many.store.state.rotation is None:
            return result


ROTATED = st.sampled_from("abcdefgh")


def turns_left(rotation: Rotation, now: int = 1_000) -> list[str]:
    return list(iter(lambda: rotation.turn(now) or "", ""))


@given(
    st.dictionaries(ROTATED, st.integers(0, 900)),
    st.dictionaries(ROTATED, st.integers(0, 990)),
    st.booleans(),
    st.integers(0, 1_000),
)
def test_each_that_is_due_has_one_turn(tried: dict[str, int], named: dict[str, int], resumed: bool, since: int) -> None:
    """Each named substream has one turn, unless a resumed rotation tried it and nothing named it since."""
    rotation = Rotation(
        {name: SubstreamSnapshot(tried=when) for name, when in tried.items()}, since=since, resumed=resumed
    )
    rotation.named(named)
    done = {name for name, when in tried.items() if resumed and when >= since and named.get(name, 0) <= when}
    assert sorted(turns_left(rotation)) == sorted(named.keys() - done)


def test_the_order_is_fresh_then_never_read_then_hot_and_old() -> None:
    """Substreams named since their last try come first, the latest named before the others."""
    listings = {
        "old": SubstreamSnapshot(tried=100, read=100),
        "hot": SubstreamSnapshot(tried=400, read=400, heat=2.0),
        "cold": SubstreamSnapshot(tried=400, read=400),
        "fresh": SubstreamSnapshot(tried=500, read=500),
        "fresher": SubstreamSnapshot(tried=500, read=500),
    }
    rotation = Rotation(listings, since=1_000)
    rotation.named({"cold": 0, "old": 50, "hot": 10, "fresh": 600, "new": 0, "fresher": 700})
    assert turns_left(rotation) == ["fresher", "fresh", "new", "hot", "old", "cold"]


def test_one_that_is_named_meanwhile_is_next_though_it_had_its_turn() -> None:
    """A substream named during the round is next, even if it had its turn."""
    rotation = Rotation({}, since=1_000)
    rotation.named(dict.fromkeys("abc", 0))
    assert [rotation.turn(1_001), rotation.turn(1_001)] == ["a", "b"]
    rotation.named({"a": 1_005, "d": 1_004})
    assert turns_left(rotation, 1_010) == ["a", "d", "c"]
    rotation.named({"a": 1_005})
    assert turns_left(rotation, 1_011) == []
    assert set(rotation.names) == set("abcd")


def test_what_a_wrong_clock_has_noted_keeps_nothing_from_its_turn() -> None:
    """A substream with a try dated in the future has not had its turn, and is read first.

    A substream with a name dated in the future is not read again and again until that time.
    """
    listings = {
        "late": SubstreamSnapshot(tried=900_000),
        "done": SubstreamSnapshot(tried=1_500),
        "old": SubstreamSnapshot(tried=500),
    }
    rotation = Rotation(listings, since=1_000, resumed=True, now=2_000)
    rotation.named({"late": 0, "done": 950_000, "old": 0})
    assert [rotation.turn(2_001), rotation.turn(2_002), rotation.turn(2_003)] == ["late", "old", None]
    rotation.named({"done": 950_000})
    assert rotation.turn(2_004) is None
