"""A listing and single records may lag behind the deltas of their API, or show a record only in every other reading."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from poller.changes.full_readings import MOST, Confirmation, confirmation_mark
from poller.clock import rfc3339
from poller.resources import Resource
from poller.source.client import ConditionalReader, ConditionalResponse, Validators
from poller.source.feed import Feed, RoundMode
from poller.source.paging import Params
from poller.source.round import round_start, run_round
from poller.store.feed_state import CONFIRMATION, RECHECK_AT, RECHECKED
from tests.source.round_sides import DAY, FEED, GONE, Round, Script, WallClock, records
from tests.source.test_drain import Passes

MINUTE = timedelta(minutes=1)
LAG = timedelta(seconds=10)
LAGGING = msgspec.structs.replace(FEED, lag=LAG, apart=timedelta(seconds=2))
LISTED_ONLY = msgspec.structs.replace(LAGGING, resource=Resource("positions", "position", "/positions"))


class Moving(WallClock):
    """A clock that only waits move.

    Attributes:
        slept: the seconds of each wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.drive_monotonic()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds:
            self.slept.append(seconds)
        self.pass_by(timedelta(seconds=seconds))


class Copy(Script):
    """An API whose listing and single records show n only from a moment on, while deltas show it immediately."""

    def __init__(self, clock: Moving, *, shows_after: timedelta, path: str = "/contractTypes") -> None:
        super().__init__()
        self._clock = clock
        self._shown_at = clock.now() + shows_after
        self._path = path
        for token in ("d1", "d2", "d9"):
            self.on([], since=token, delta=token, path=path)

    async def get(self, path: str, params: Params) -> bytes:
        shown = self._clock.now() >= self._shown_at
        self.on(records("a", *["n"] * shown), path=self._path, delta="d9")
        if shown:
            self.whole(f"{self._path}/n", {"id": "n", "n": 1})
        else:
            self.on(GONE, path=f"{self._path}/n")
        return await super().get(path, params)


async def brought(feed: Feed) -> tuple[Round, Moving]:
    """A feed that has had n by a delta, and whose next round is a full reading."""
    read, path = Round(feed), feed.resource.path
    read.clock = clock = Moving()
    read.store = type(read.store)(clock)
    await read(Script().on(records("a"), path=path, delta="d1"))
    await read(Script().on(records("n"), path=path, since="d1", delta="d2"))
    assert read.causes[-1] == ("n", "created", "delta")
    read.store.mark(CONFIRMATION, confirmation_mark(Confirmation()) or "")
    for mark in (RECHECK_AT, RECHECKED):  # of the first reading
        read.store.unmark(mark)
    return read, clock


def kinds(read: Round) -> list[tuple[str, str]]:
    return [(subject, kind) for subject, kind, _ in read.causes[2:]]


async def test_what_a_delta_has_just_brought_is_asked_for_again_when_the_copy_has_caught_up() -> None:
    """The second request waits until the delta is as old as the API may lag behind."""
    read, clock = await brought(LAGGING)
    result = await read(Copy(clock, shows_after=timedelta(seconds=9)))
    assert (result.mode, result.ok, result.removed) == (RoundMode.RECONCILE, True, 0)
    assert clock.slept == [10.0]


async def test_what_a_delta_brought_some_time_ago_is_asked_for_again_after_two_seconds() -> None:
    """Only a young record is waited for."""
    read, clock = await brought(LAGGING)
    clock.pass_by(LAG + timedelta(milliseconds=1))
    assert (await read(Copy(clock, shows_after=DAY))).removed == 1
    assert clock.slept == [2.0]


async def test_what_a_delta_has_just_brought_and_has_no_path_of_its_own_is_left_alone() -> None:
    """It is not even marked missing: two later full readings decide, and one more follows the removal."""
    read, clock = await brought(LISTED_ONLY)
    path = LISTED_ONLY.resource.path
    assert [(await read(Copy(clock, shows_after=DAY, path=path))).removed for _ in range(2)] == [0, 0]
    assert not any(snapshot.missing for snapshot in read.store.snapshots.values())
    results = []
    for _ in range(4):
        clock.pass_by(MINUTE)
        read.store.now_ms += 60_000
        results.append(await read(Copy(clock, shows_after=DAY, path=path)))
    assert [(result.mode, result.removed) for result in results] == [
        (RoundMode.RECONCILE, 0),
        (RoundMode.RECONCILE, 1),
        (RoundMode.RECONCILE, 0),
        (RoundMode.DELTA, 0),
    ]


async def test_a_reading_that_looks_for_what_was_not_shown_is_not_on_condition() -> None:
    """A 304 would leave it due for ever, and no delta would be read meanwhile."""
    read, clock = await brought(LAGGING)
    assert (await read(Copy(clock, shows_after=DAY))).removed == 1
    start = round_start(read.feed, read.store.state, clock.now())
    assert (start.mode, start.on_condition) == (RoundMode.DELTA, False)
    clock.pass_by(MINUTE)
    start = round_start(read.feed, read.store.state, clock.now())
    assert (start.mode, start.rechecks, start.on_condition) == (RoundMode.RECONCILE, True, False)


async def test_the_token_of_one_page_is_not_used_while_deltas_have_one() -> None:
    """What changed before it may not be in the page: a delta is read, and its token is kept."""
    read, _ = await brought(LAGGING)
    page = Script().on(records("a", "n"), delta="later").on(records("x"), since="d2", delta="d3")
    assert (await read(page)).created == 1
    assert (read.kept, read.causes[-1]) == ("d3", ("x", "created", "delta"))


async def test_a_listing_that_lags_does_not_bring_back_what_a_delta_has_just_replaced() -> None:
    """The older version is passed over, for no later delta would bring the newer one again."""
    read, clock = await brought(LAGGING)
    old = Script().on([*records("a"), *records("n", value=0)], delta="d9")
    assert (await read(old)).changes == 0
    read.store.mark(CONFIRMATION, confirmation_mark(Confirmation()) or "")
    clock.pass_by(LAG + timedelta(milliseconds=1))
    assert (await read(old)).modified == 1


async def test_a_feed_whose_token_is_lost_may_lag_too() -> None:
    """A full reading after a lost token gives young records the same time."""
    read, clock = await brought(LAGGING)
    read.store.unmark("delta_token")
    result = await read(Copy(clock, shows_after=timedelta(seconds=9)))
    assert (result.mode, result.ok, result.removed) == (RoundMode.FULL, True, 0)
    assert clock.slept == [10.0]


async def test_what_a_first_reading_has_just_published_may_be_missing_from_the_next() -> None:
    """It came from another copy: whatever published it, it is asked for again when the copy has caught up."""
    read = Round(LAGGING)
    read.clock = clock = Moving()
    read.store = type(read.store)(clock)
    await read(Script().on(records("a", "n"), delta="d1"))
    read.store.mark(CONFIRMATION, confirmation_mark(Confirmation()) or "")
    assert (await read(Copy(clock, shows_after=timedelta(seconds=9)))).removed == 0


async def test_a_full_reading_follows_a_first_one() -> None:
    """What was made within the lag is on no page of the first reading, and no delta after its token brings it."""
    read = Round(LAGGING)
    read.clock = clock = Moving()
    read.store = type(read.store)(clock)
    await read(Script().on(records("a"), delta="d1"))
    assert (await read(Script().on([], since="d1", delta="d1"))).mode is RoundMode.DELTA
    clock.pass_by(MINUTE)
    found = await read(Script().on(records("a", "n"), delta="d9"))
    assert (found.mode, found.created, read.kept) == (RoundMode.RECONCILE, 1, "d1")
    clock.pass_by(MINUTE)
    assert (await read(Script().on([], since="d1", delta="d1"))).mode is RoundMode.DELTA


@pytest.mark.parametrize("passed", [MINUTE * 2, MINUTE - timedelta(seconds=5)], ids=["overdue", "soon"])
async def test_a_resync_is_followed_by_a_reading_of_its_own(passed: timedelta) -> None:
    """One that was due for an earlier reading says nothing of what this one did not show."""
    read, clock = await brought(LAGGING)
    read.store.mark(RECHECK_AT, rfc3339(clock.now() + MINUTE))
    clock.pass_by(passed)
    read.store.mark("resync", "1")
    assert (await read(Script().on(records("a", "n"), delta="d9"))).mode is RoundMode.RESYNC
    assert read.store.state.recheck_at == clock.now() + MINUTE


async def test_a_full_reading_that_gives_a_token_is_followed_by_another() -> None:
    """A hold, or a lost token, may end with a reading of a listing that lags."""
    read, clock = await brought(LAGGING)
    read.store.unmark("delta_token")
    assert (await read(Script().on(records("a", "n"), delta="d9"))).mode is RoundMode.FULL
    assert read.store.state.recheck_at == clock.now() + MINUTE


async def test_what_a_delta_brings_while_it_is_asked_for_is_not_removed() -> None:
    """It was made again: the endpoint may not show it yet."""
    read, clock = await brought(msgspec.structs.replace(LAGGING, slot=timedelta(seconds=3)))
    gone = Copy(clock, shows_after=DAY).on(records("n", value=2), since="d2", delta="d3").on([], since="d3", delta="d3")
    result = await read(gone)
    assert (result.ok, result.removed, read.causes[-1]) == (True, 0, ("n", "modified", "delta"))


async def test_what_a_delta_has_just_brought_unchanged_is_young_too() -> None:
    """A record that was deleted and restored between two deltas gives no event, and the listing may lack it still."""
    read, clock = await brought(LAGGING)
    clock.pass_by(MINUTE)
    read.store.unmark(CONFIRMATION)
    assert (await read(Script().on(records("n"), since="d2", delta="d2"))).unchanged == 1
    read.store.mark(CONFIRMATION, confirmation_mark(Confirmation()) or "")
    result = await read(Copy(clock, shows_after=timedelta(seconds=9)))
    assert (result.mode, result.removed, clock.slept) == (RoundMode.RECONCILE, 0, [10.0])


async def test_deltas_go_on_while_a_removal_waits() -> None:
    """A change need not wait until the copy has caught up."""
    read, clock = await brought(msgspec.structs.replace(LAGGING, slot=timedelta(seconds=3)))
    gone = Copy(clock, shows_after=DAY).on(records("x"), since="d2", delta="d3")
    for since in ("d3", "d4", "d5"):
        gone.on([], since=since, delta=since)
    assert (await read(gone)).removed == 1
    assert ("x", "created", "delta") in read.causes
    assert "/contractTypes/x" not in [path for path, _ in gone.asked]  # what a delta brings exists
    assert sum(clock.slept) == 10.0
    assert len(clock.slept) > 2


async def test_what_a_second_pass_lists_is_not_removed_by_readings_either() -> None:
    """A record without a path of its own that slipped out of two readings is found by the second pass."""
    feed = msgspec.structs.replace(FEED, delta=False, resource=Resource("positions", "position", "/positions"))
    read, path = Round(feed), "/positions"
    for listed in ("bc", "b", "b"):
        read.store.now_ms += 60_000
        assert (await read(Passes(records(*listed), records("b", "c"), path=path))).removed == 0
    read.store.now_ms += 60_000
    assert (await read(Passes(records("b"), path=path))).removed == 1


async def test_a_full_reading_follows_a_minute_after_a_removal() -> None:
    """A record that was removed because the API lags by more is published again."""
    read, clock = await brought(LAGGING)
    late = Copy(clock, shows_after=timedelta(seconds=30))
    assert (await read(late)).removed == 1
    assert (await read(late)).mode is RoundMode.DELTA
    clock.pass_by(MINUTE)
    result = await read(late)
    assert (result.mode, result.created) == (RoundMode.RECONCILE, 1)
    assert kinds(read) == [("n", "removed"), ("n", "created")]
    clock.pass_by(MINUTE)
    assert (await read(late)).mode is RoundMode.DELTA


async def test_what_those_readings_remove_comes_to_an_end() -> None:
    """Law: records that are removed all the time do not make every minute's round a full one."""
    read, clock = await brought(LAGGING)
    assert (await read(Copy(clock, shows_after=DAY))).removed == 1
    modes = []
    for number in range(MOST + 2):
        clock.pass_by(MINUTE)
        new, old = (f"r{at}" for at in (number, number - 1))
        gone = Script().on(records("b", new), delta="d9").on(GONE, path=f"/contractTypes/{old if number else 'a'}")
        result = await read(gone.on(records(new), since="d9", delta="d9").on(GONE, path="/contractTypes/n"))
        modes.append(result.mode)
        assert result.removed == (result.mode is RoundMode.RECONCILE)
    assert modes == [RoundMode.RECONCILE] * MOST + [RoundMode.DELTA] * 2


@pytest.mark.parametrize("feed", [{"delta": False}, {"removals": False}], ids=["no deltas", "no removals"])
async def test_a_feed_that_a_copy_cannot_mislead_is_not_read_again(feed: dict[str, Any]) -> None:
    """Without deltas each round is a full one; without removals nothing was removed."""
    read = Round(msgspec.structs.replace(LAGGING, **feed))
    read.clock = clock = Moving()
    read.store = type(read.store)(clock)
    await read(Script().on(records("a", "n"), delta="d1"))
    read.store.unmark(RECHECK_AT)
    clock.pass_by(DAY)
    await read(Copy(clock, shows_after=DAY))
    assert read.store.state.recheck_at is None


async def test_a_clock_that_was_set_back_does_not_put_it_off() -> None:
    """A moment further ahead than it can have been means that the server's clock was set back: it is due."""
    read, clock = await brought(LAGGING)
    assert (await read(Copy(clock, shows_after=DAY))).removed == 1
    clock.pass_by(-2 * timedelta(hours=1))
    assert RECHECK_AT.encode() in read.store.fields
    assert (await read(Copy(clock, shows_after=DAY))).mode is RoundMode.RECONCILE


class Slipping(Script):
    """A listing of two pages without an endpoint for records, read at a second a request; deltas go on beside it.

    Attributes:
        passes: the second page of each pass over the listing.
        changed: what the delta brings as soon as the second pass has begun.
    """

    def __init__(self, clock: Moving, *passes: list[Any], changed: list[dict[str, Any]]) -> None:
        super().__init__()
        self._clock = clock
        self._passes = list(passes)
        self._changed = changed
        self.on(records("a"), path="/positions", further="p", delta="d1")
        self.on([], path="/positions", since="d1", delta="d1")

    async def get(self, path: str, params: Params) -> bytes:
        self._clock.pass_by(timedelta(seconds=1))
        if dict(params).get("pageToken") == "p":
            self.on(self._passes.pop(0), path="/positions", page="p", delta="d1")
            if not self._passes:
                self.on(self._changed, path="/positions", since="d1", delta="d2")
                self.on([], path="/positions", since="d2", delta="d2")
        return await super().get(path, params)


@pytest.mark.parametrize(
    "second", [records("x", value=2), [*records("x", value=2), {"n": 0}]], ids=["listed", "unknown"]
)
async def test_what_a_delta_brings_during_a_second_pass_is_not_written_over(second: list[Any]) -> None:
    """A record that slipped over the edge and changed, and one that returned, are as the delta has brought them."""
    read, clock = Round(msgspec.structs.replace(LISTED_ONLY, slot=timedelta(seconds=1))), Moving()
    read.clock, read.store = clock, type(read.store)(clock)
    await read(Script().on(records("a", "x", "y"), path="/positions", delta="d1"))
    read.store.unmark(RECHECK_AT)
    clock.pass_by(MINUTE)
    read.store.mark(CONFIRMATION, confirmation_mark(Confirmation()) or "")
    assert (await read(Script().on(records("a", "x"), path="/positions", delta="d1"))).removed == 0
    assert read.store.snapshots["y"].missing
    clock.pass_by(MINUTE)
    read.store.now_ms += 60_000
    read.store.mark(CONFIRMATION, confirmation_mark(Confirmation()) or "")
    slipping = Slipping(clock, [], second, changed=[*records("x", value=2), *records("y", value=2)])
    result = await read(slipping)
    assert (result.ok, result.modified, result.removed) == (True, 2, 0)
    known = {key: (one.revision, one.raw[-4:], one.missing) for key, one in read.store.snapshots.items() if key != "a"}
    assert known == {"x": (2, b": 2}", False), "y": (2, b": 2}", False)}


async def test_a_second_pass_is_made_some_time_after_the_first() -> None:
    """A cache that repeats the first pass would not show it by its age, which is a whole number."""
    read, clock = Round(msgspec.structs.replace(LISTED_ONLY, delta=False)), Moving()
    read.clock, read.store = clock, type(read.store)(clock)
    await read(Passes(records("b", "c"), path="/positions"))
    await read(Passes(records("b"), path="/positions"))
    assert clock.slept == []
    clock.pass_by(MINUTE)
    read.store.now_ms += 60_000
    assert (await read(Passes(records("b"), path="/positions"))).removed == 1
    assert clock.slept == [2.0]


@pytest.mark.parametrize("second", [[], records("b"), [*records("b"), {"id": 1.5}]], ids=["empty", "listed", "unknown"])
async def test_a_second_pass_that_does_not_say_what_is_listed_removes_nothing(second: list[Any]) -> None:
    """Two readings have missed the record; it may be the one whose id cannot be read."""
    read = Round(msgspec.structs.replace(FEED, delta=False, resource=LISTED_ONLY.resource))
    removed = []
    for passes in ([records("b", "c")], [records("b")], [records("b"), second]):
        read.store.now_ms += 60_000
        removed.append((await read(Passes(*passes, path="/positions"))).removed)
    assert removed == [0, 0, 0 if len(second) > 1 else 1]


async def test_behind_a_cache_two_readings_decide() -> None:
    """The second pass is a copy in each reading: it never says more than they do."""
    read = Round(msgspec.structs.replace(FEED, delta=False, resource=LISTED_ONLY.resource))
    removed = []
    for listed in (records("b", "c"), records("b"), records("b")):
        read.store.now_ms += 60_000
        script = Passes(listed, path="/positions", age=[0, 5])
        reader = ConditionalReader(script.ask)
        result = await run_round(
            read.feed, read.store, reader.get, clock=Moving(), qualifications=_no_qualifications, unchanged=reader
        )
        removed.append(result.removed)
    assert removed == [0, 0, 1]


async def test_two_readings_decide_where_a_round_has_no_time_for_a_second_pass() -> None:
    """The listing takes longer than half of the round: no second pass would ever come to its end."""
    feed = msgspec.structs.replace(
        FEED, delta=False, resource=LISTED_ONLY.resource, apart=timedelta(seconds=2), max_round=timedelta(seconds=5)
    )
    read, clock = Round(feed), Moving()
    read.clock, read.store = clock, type(read.store)(clock)

    class Slow(Passes):
        async def get(self, path: str, params: Params) -> bytes:
            clock.pass_by(timedelta(seconds=2))
            return await super().get(path, params)

    removed = []
    for listed in (records("b", "c"), records("b"), records("b")):
        read.store.now_ms += 60_000
        result = await read(Slow(listed, path="/positions"))
        assert result.ok
        removed.append(result.removed)
    assert removed == [0, 0, 1]


async def _no_qualifications(_: int) -> dict[str, int]:
    return {}


@pytest.mark.parametrize("brings", [False, True], ids=["the delta is empty", "the delta brings one"])
@pytest.mark.parametrize("feed", [LISTED_ONLY, LAGGING], ids=["by readings", "by requests"])
async def test_an_empty_listing_is_held_whatever_deltas_bring(feed: Feed, brings: bool) -> None:
    """Law: what a delta brings beside it does not show that the listing is sound."""
    path, names = feed.resource.path, ["n", "o", "p"]
    read, clock = Round(msgspec.structs.replace(feed, slot=timedelta(seconds=30))), Moving()
    read.clock, read.store = clock, type(read.store)(clock)
    await read(Script().on(records(*names), path=path, delta="d1"))
    for number in range(3):
        clock.pass_by(MINUTE)
        read.store.now_ms += 60_000
        read.store.mark(CONFIRMATION, confirmation_mark(Confirmation()) or "")
        api = Script().on([], path=path, further="p").on([], path=path, page="p", delta="d9")
        api.on(records("n", value=number + 2) if brings else [], path=path, since=read.kept, delta=f"e{number}")
        api.on([], path=path, since=f"e{number}", delta=f"e{number}")
        for name in names:
            api.on(GONE, path=f"{path}/{name}")
        assert (await read(api)).removed == 0
    assert "missing from the full reading" in (read.store.state.held or "")


async def test_a_record_that_a_delta_brings_during_its_removal_is_looked_for_again() -> None:
    """It may have been deleted before the delta brought it."""
    read, clock = await brought(msgspec.structs.replace(LAGGING, slot=timedelta(seconds=1)))
    clock.pass_by(MINUTE)

    class Late(Script):
        asked_for_n = False

        async def get(self, path: str, params: Params) -> bytes:
            self.asked_for_n = self.asked_for_n or path.endswith("/n")
            if self.asked_for_n:
                self.on(records("n", value=2), since="d2", delta="d3")
            return await super().get(path, params)

    api = Late().on(records("a"), delta="d9").on(GONE, path="/contractTypes/n").on([], since="d2", delta="d2")
    result = await read(api.on([], since="d3", delta="d3"))
    assert (result.removed, result.modified, read.store.state.recheck_at is not None) == (0, 1, True)
    clock.pass_by(MINUTE)
    assert (await read(Script().on(records("a"), delta="d9").on(GONE, path="/contractTypes/n"))).removed == 1


@pytest.mark.parametrize(("age", "left"), [(0, False), (30, True)])
async def test_a_copy_does_not_lack_what_a_delta_has_brought_since(age: int, left: bool) -> None:
    """A list-only record is not even marked missing by a copy from before the delta."""
    read, clock = await brought(LISTED_ONLY)
    path = LISTED_ONLY.resource.path
    clock.pass_by(timedelta(seconds=20))
    api = Script().on(records("a"), path=path, delta="d9").on([], path=path, since="d2", delta="d2")

    async def ask(path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
        return ConditionalResponse(await api.get(path, params), unless, 0 if dict(params) else age)

    reader = ConditionalReader(ask)
    await run_round(read.feed, read.store, reader.get, clock=clock, qualifications=_no_qualifications, unchanged=reader)
    assert read.store.snapshots["n"].missing is not left
