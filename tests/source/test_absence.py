"""Laws of :mod:`poller.source.absence`: a listing and single records may lag behind the deltas of their API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from poller.changes.full_readings import Confirmation, confirmation_mark
from poller.resources import Resource
from poller.source.feed import Feed, RoundMode
from poller.source.paging import Params
from poller.store.feed_state import CONFIRMATION, RECHECK_AT
from tests.source.round_sides import DAY, FEED, GONE, Round, Script, WallClock, records

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
        self.seconds = self._moment
        self.slept: list[float] = []

    def _moment(self) -> float:
        return self.time.timestamp()

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


async def test_what_that_reading_removes_asks_for_no_further_one() -> None:
    """Else records that are removed all the time would make every minute's round a full one."""
    read, clock = await brought(LAGGING)
    assert (await read(Copy(clock, shows_after=DAY))).removed == 1
    clock.pass_by(MINUTE)
    gone = Script().on(records("b"), delta="d9").on(GONE, path="/contractTypes/a").on([], since="d9", delta="d9")
    result = await read(gone)
    assert (result.mode, result.ok, result.removed) == (RoundMode.RECONCILE, True, 1)
    clock.pass_by(2 * MINUTE)
    assert (await read(gone)).mode is RoundMode.DELTA


@pytest.mark.parametrize("feed", [{"delta": False}, {"removals": False}], ids=["no deltas", "no removals"])
async def test_a_feed_that_a_copy_cannot_mislead_is_not_read_again(feed: dict[str, Any]) -> None:
    """Without deltas each round is a full one; without removals nothing was removed."""
    read = Round(msgspec.structs.replace(LAGGING, **feed))
    read.clock = clock = Moving()
    read.store = type(read.store)(clock)
    await read(Script().on(records("a", "n"), delta="d1"))
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
