"""What one reading leaves to a later one: what it passed over, what is known only in part, what a cache had kept."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from poller.changes.full_readings import MOST, Confirmation, confirmation_mark, confirmation_of
from poller.changes.plan import RemovalGuard
from poller.errors import SourceRefused, SourceUnavailable
from poller.resources import Resource
from poller.source.client import ConditionalReader, ConditionalResponse, Validators
from poller.source.feed import Feed, RoundMode, RoundResult
from poller.source.paging import Params
from poller.source.round import round_start, run_round
from poller.store.feed_state import CONFIRMATION, RECHECK_AT, RECHECK_FROM, RECHECKED
from tests.source.round_sides import DAY, GONE, Round, Script, records
from tests.source.test_absence import LAG, LAGGING, MINUTE, Moving, brought
from tests.source.test_round_failures import jumbled

SOON = timedelta(seconds=12)
UNASKABLE = msgspec.structs.replace(LAGGING, resource=Resource("contractTypes", "contractType", "/contractTypes"))
PARTIAL = msgspec.structs.replace(UNASKABLE, partial=True)


def full(read: Round) -> None:
    """Make the next round a full reading."""
    read.store.mark(CONFIRMATION, confirmation_mark(Confirmation()) or "")


def due_in(read: Round) -> timedelta | None:
    """The time until the next reading that looks for what was not shown."""
    at = read.store.state.recheck_at
    return None if at is None else at - read.clock.now()


async def settled(feed: Feed, *subjects: str) -> tuple[Round, Moving]:
    """A feed that was read some time ago, with nothing left to look for."""
    read = Round(feed)
    read.clock = clock = Moving()
    read.store = type(read.store)(clock)
    await read(Script().on(records(*subjects), delta="d1", path=feed.resource.path))
    for mark in (RECHECK_AT, RECHECKED):  # of the first reading
        read.store.unmark(mark)
    clock.pass_by(MINUTE)
    return read, clock


async def test_a_reading_that_passes_over_another_version_is_followed_by_one_that_does_not() -> None:
    """The delta may have brought less than the listing shows: a minute later the record is compared."""
    read, clock = await brought(LAGGING)
    listing = Script().on([*records("a"), *records("n", value=2)], delta="d9")
    assert ((await read(listing)).changes, due_in(read), read.store.digests) == (0, SOON, None)
    clock.pass_by(SOON)
    result = await read(listing)
    assert (result.mode, result.modified, due_in(read)) == (RoundMode.RECONCILE, 1, None)


async def test_a_reading_that_passes_over_what_is_known_leaves_nothing() -> None:
    """The listing shows what the delta has brought."""
    read, _ = await brought(LAGGING)
    assert (await read(Script().on(records("a", "n"), delta="d9"))).changes == 0
    assert due_in(read) is None


async def test_a_record_that_deltas_bring_all_the_time_is_not_waited_for() -> None:
    """Each reading passes it over: five follow, at growing distances, and then no more."""
    read, clock = await brought(LAGGING)
    await read(Script().on([*records("a"), *records("n", value=2)], delta="d9"))
    for number in range(MOST):
        expected = SOON if not number else 2 * SOON
        assert due_in(read) == expected
        clock.pass_by(expected - timedelta(seconds=5))
        await read(Script().on(records("n", value=number + 3), since=read.kept, delta=read.kept))
        clock.pass_by(timedelta(seconds=5))
        result = await read(Script().on([*records("a"), *records("n", value=2)], delta="d9"))
        assert (result.mode, result.changes) == (RoundMode.RECONCILE, 0)
    assert due_in(read) is None


async def test_what_is_young_and_missing_is_looked_for_again() -> None:
    """A record that the listing lacks and that a delta has just brought is left alone, even by such a reading."""
    read, clock = await settled(UNASKABLE, "a", "n")
    await read(Script().on(records("n", value=2), since="d1", delta="d1"))
    read.store.mark(RECHECK_AT, clock.now().isoformat())
    assert ((await read(Script().on(records("a"), delta="d9"))).mode, due_in(read)) == (RoundMode.RECONCILE, 2 * SOON)


async def test_a_removed_record_that_a_late_delta_brings_back_is_removed_again() -> None:
    """Law: a reading follows each one that has removed records, also one that follows others."""
    read, clock = await settled(LAGGING, "a", "n")
    read.store.mark(RECHECK_AT, clock.now().isoformat())
    gone = Script().on(records("a"), delta="d9").on(GONE, path="/contractTypes/n").on([], since="d2", delta="d2")
    await read(gone)
    assert (read.causes[-1][:2], due_in(read)) == (("n", "removed"), MINUTE)
    assert read.store.state.recheck_from == clock.now() + LAG
    late = Script().on(records("n", value=2), since="d1", delta="d2")
    assert (await read(late)).created == 1
    clock.pass_by(MINUTE)
    assert (await read(gone)).removed == 1
    assert read.causes[-1][:2] == ("n", "removed")


async def test_after_a_doubtful_delta_a_reading_waits_until_the_listing_has_caught_up() -> None:
    """The one that follows at the next interval may come before the listing shows the changes."""
    read, clock = await settled(LAGGING, "a")
    delta = Script().answer(jumbled("a", "x", value=2), since="d1")
    assert (await read(delta)).mode is RoundMode.DELTA
    assert due_in(read) == SOON
    lagging = Script().on(records("a"), delta="d9")
    assert ((await read(lagging)).mode, confirmation_of(read.store.state.confirmation)) == (RoundMode.RECONCILE, None)
    assert due_in(read) == SOON
    clock.pass_by(SOON)
    result = await read(Script().on([*records("a", value=2), *records("x")], delta="d9"))
    assert (result.mode, result.modified, result.created, due_in(read)) == (RoundMode.RECONCILE, 1, 1, None)


@pytest.mark.parametrize("lag", [LAG, timedelta()])
async def test_that_a_record_is_known_in_part_is_committed_with_it(lag: timedelta) -> None:
    """The delta breaks off on its second page: the next one finds the part known, and the reading follows."""
    read, clock = await settled(msgspec.structs.replace(PARTIAL, lag=lag), "a")
    refused = SourceRefused("no", status=403)
    broken = Script().on(records("n"), since="d1", further="p").on(refused, since="d1", page="p").on(refused, page="p")
    assert ((await read(broken)).ok, read.causes[-1]) == (False, ("n", "created", "delta"))
    assert due_in(read) == lag + LAGGING.apart
    clock.pass_by(timedelta(seconds=1))
    assert (await read(Script().on(records("n"), since="d1", delta="d2"))).mode is RoundMode.DELTA
    clock.pass_by(SOON)
    result = await read(Script().on([*records("a"), {"id": "n", "n": 1, "b": 1}], delta="d9"))
    assert (result.mode, result.modified) == (RoundMode.RECONCILE, 1)


async def test_a_part_that_is_passed_over_is_followed_by_a_full_reading() -> None:
    """A delta lists the newest part first, on two pages: the older one may have what the newer one lacks."""
    read, _ = await settled(PARTIAL, "n")
    new, old = [{"id": "n", "b": 3, "lastModifiedAt": f"2025-03-01T10:0{minute}:00Z"} for minute in (3, 2)]
    old["a"] = old.pop("b")
    delta = Script().on([new], since="d1", further="p").on([old], since="d1", page="p", delta="d2").on([old], page="p")
    delta.on([old], page="p", delta="d2")
    assert (await read(delta)).modified == 1
    assert (confirmation_of(read.store.state.confirmation), due_in(read)) == (Confirmation(), SOON)


async def test_a_version_that_a_later_delta_of_the_round_has_restored_is_published() -> None:
    """Its time is older than that of the version before: a record was restored."""
    read, clock = await settled(msgspec.structs.replace(LAGGING, slot=timedelta(seconds=1)), "a", "n")
    first, then = [{"id": "a", "n": n, "lastModifiedAt": f"2025-03-01T10:0{n}:00Z"} for n in (5, 2)]
    deltas = (
        Script().on([first], since="d1", delta="d2").on([then], since="d2", delta="d3").on([], since="d3", delta="d3")
    )
    full(read)
    result = await read(
        deltas.on(records("a"), delta="d9").on(SourceRefused("gone", status=404), path="/contractTypes/n")
    )
    assert (result.mode, result.removed, clock.slept != []) == (RoundMode.RECONCILE, 1, True)
    published = [event["data"]["record"]["n"] for event in read.store.events if event["data"]["cause"] == "delta"]
    assert published == [5, 2]


async def test_the_token_of_a_listing_is_not_used_where_deltas_fail() -> None:
    """The listing may lag behind its own token, and deltas go on from the old one later."""
    read, _ = await settled(LAGGING, "a")
    full(read)
    listing = Script().on(records("a"), delta="d9").on(SourceRefused("no", status=403), since="d1")
    assert ((await read(listing)).mode, read.kept) == (RoundMode.RECONCILE, "d1")


async def test_a_token_of_a_listing_that_is_used_is_followed_by_a_reading() -> None:
    """The API has forgotten the token without a word: deltas go on from the listing's, which may lag behind it."""
    read, _ = await settled(LAGGING, "a")
    full(read)
    await read(Script().on(records("a", "late"), delta="d9").on([], since="d1"))
    assert (read.kept, due_in(read)) == ("d9", MINUTE)


class Copies(Script):
    """An API behind a cache, which has kept the listing for some time.

    Attributes:
        age: that time, seconds.
        unchanged: whether it calls the listing unchanged.
    """

    def __init__(self, age: int = 0) -> None:
        super().__init__()
        self.age = age
        self.ages: dict[str, int] = {}  # of deltas, by their token
        self.unchanged = False

    async def ask(self, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
        if unless.headers and self.unchanged:
            self.asked.append((path, {"unless": "1"}))
            return ConditionalResponse(None, unless, self.age)
        age = self.ages.get(dict(params).get("sinceDeltaToken", ""), self.age)
        return ConditionalResponse(await self.get(path, params), Validators('"1"'), age)


class Cached:
    """A feed whose listing is requested conditionally."""

    def __init__(self, read: Round, script: Copies) -> None:
        self.read, self.script = read, script
        self._reader = ConditionalReader(script.ask)

    async def __call__(self) -> RoundResult:
        read = self.read
        return await run_round(
            read.feed, read.store, self._reader.get, clock=read.clock, qualifications=_none, unchanged=self._reader
        )


async def _none(since: int) -> dict[str, int]:
    return {}


@pytest.mark.parametrize("kept", [3, MOST])
async def test_a_copy_from_before_does_not_show_what_was_not_shown(kept: int) -> None:
    """A reading a minute after a first one may be the first one's own copy; if a cache keeps it, five follow."""
    read, clock = Round(LAGGING), Moving()
    read.clock, read.store = clock, type(read.store)(clock)
    cached = Cached(read, Copies())
    cached.script.on(records("a"), delta="d1").on([], since="d1", delta="d1")
    assert ((await cached()).mode, due_in(read)) == (RoundMode.BASELINE, MINUTE)
    for number in range(kept):
        clock.pass_by(MINUTE)
        cached.script.age = 51 + 60 * number
        follows = MINUTE if number < MOST - 1 else None
        assert ((await cached()).mode, due_in(read)) == (RoundMode.RECONCILE, follows)
    clock.pass_by(MINUTE)
    cached.script.age = 50 + 60 * kept
    expected = RoundMode.RECONCILE if kept < MOST else RoundMode.DELTA
    assert ((await cached()).mode, due_in(read)) == (expected, None)


async def test_a_copy_does_not_confirm() -> None:
    """The reading that confirms others was made before them: another one follows."""
    read, _ = await settled(LAGGING, "a")
    full(read)
    cached = Cached(read, Copies(2))
    cached.script.on(records("a"), further="p").on([], page="p", delta="d9").on([], since="d1", delta="d1")
    assert ((await cached()).mode, due_in(read)) == (RoundMode.RECONCILE, SOON)
    assert confirmation_of(read.store.state.confirmation) == Confirmation(1)


async def test_a_copy_of_a_delta_says_nothing_of_the_listing() -> None:
    """A cache may keep deltas alone."""
    read, _ = await settled(LAGGING, "a")
    full(read)
    script = Copies()
    script.ages = {"d1": 30}
    cached = Cached(read, script)
    script.on(records("a"), further="p").on([], page="p", delta="d9").on([], since="d1", delta="d1")
    assert ((await cached()).mode, due_in(read)) == (RoundMode.RECONCILE, None)


async def test_a_reading_that_confirms_is_not_on_condition() -> None:
    """An unchanged listing would confirm nothing, so each round would ask for it again, and none for a delta."""
    read, clock = await settled(LAGGING, "a")
    full(read)
    start = round_start(read.feed, read.store.state, clock.now())
    assert (start.mode, start.on_condition) == (RoundMode.RECONCILE, False)


async def test_a_delta_is_read_where_the_listing_is_unchanged() -> None:
    """Changes do not wait for the next round, and the validators say nothing of what it has brought."""
    read, clock = await settled(LAGGING, "a")
    cached = Cached(read, Copies())
    cached.script.on(records("a"), delta="d9").on([], since="d1", delta="d1")
    clock.pass_by(DAY)
    assert (await cached()).pages == 2  # the listing and the delta beside it
    cached.script.unchanged = True
    clock.pass_by(DAY)
    cached.script.on(records("x"), since="d1", delta="d2").on([], since="d2", delta="d2")
    result = await cached()
    assert (result.mode, result.created, result.pages, read.kept) == (RoundMode.RECONCILE, 1, 1, "d2")
    assert ("/contractTypes", {"unless": "1"}) in cached.script.asked
    clock.pass_by(DAY)
    cached.script.asked.clear()
    assert (await cached()).mode is RoundMode.RECONCILE
    assert ("/contractTypes", {"unless": "1"}) not in cached.script.asked


def test_the_words_of_the_state() -> None:
    """A moment further ahead than it can have been is due: the server's clock was set back."""
    read = Round(LAGGING)
    state: Any = msgspec.structs.replace(
        read.store.state,
        read_at=read.clock.now(),
        query=LAGGING.fingerprint,
        delta_token="d1",  # noqa: S106 -- no secret
    )
    for ahead, mode in ((2 * MINUTE, RoundMode.DELTA), (2 * MINUTE + timedelta(seconds=1), RoundMode.RECONCILE)):
        at = msgspec.structs.replace(state, recheck_at=read.clock.now() + ahead)
        assert round_start(LAGGING, at, read.clock.now()).mode is mode


async def test_a_doubtful_delta_moves_the_reading_that_is_due_no_earlier() -> None:
    """It comes no earlier than it was to come, and not before the listing has caught up."""
    read, clock = Round(LAGGING), Moving()
    read.clock, read.store = clock, type(read.store)(clock)
    await read(Script().on(records("a"), delta="d1"))
    delta = Script().answer(jumbled("a", "x", value=2), since="d1")
    assert ((await read(delta)).mode, due_in(read)) == (RoundMode.DELTA, MINUTE)
    clock.pass_by(MINUTE - timedelta(seconds=5))
    read.store.unmark(CONFIRMATION)
    delta = Script().answer(jumbled("a", "x", value=3), since="d2")
    assert ((await read(delta)).mode, due_in(read)) == (RoundMode.DELTA, SOON)


async def test_a_clock_that_was_set_back_makes_no_old_copy() -> None:
    """From when on the listing shows something lies ahead then: nothing is known of that."""
    read, clock = await settled(LAGGING, "a")
    read.store.mark(RECHECK_AT, clock.now().isoformat())
    read.store.mark(RECHECK_FROM, (clock.now() + DAY).isoformat())
    assert ((await read(Script().on(records("a"), delta="d9"))).mode, due_in(read)) == (RoundMode.RECONCILE, None)
    read.store.mark(RECHECK_AT, (clock.now() + DAY).isoformat())
    doubtful = Script().on(records("a"), delta="d9").answer(jumbled("a", "b", value=2), since=read.kept)
    assert ((await read(doubtful)).mode, due_in(read)) == (RoundMode.RECONCILE, MINUTE)


@pytest.mark.parametrize("by", [-DAY, DAY], ids=["back", "ahead"])
async def test_a_clock_that_was_set_makes_no_reading_the_one_that_was_due(by: timedelta) -> None:
    """Law: what was due a minute after the first reading may come at once then, and too early: another one follows."""
    read, clock = Round(LAGGING), Moving()
    read.clock, read.store = clock, type(read.store)(clock)
    await read(Script().on(records("n"), delta="d1"))
    clock.pass_by(by)
    quiet = Script().on(records("n"), delta="d1").on([], since="d1", delta="d1")
    assert ((await read(quiet)).mode, due_in(read)) == (RoundMode.RECONCILE, MINUTE)
    assert read.store.state.recheck_from == clock.now() + LAG
    clock.pass_by(MINUTE)
    late = Script().on(records("n", value=2), delta="d1").on([], since="d1", delta="d1")
    assert ((await read(late)).modified, due_in(read)) == (1, None)


async def test_an_api_that_refuses_every_token_is_not_read_each_minute() -> None:
    """Law: each full reading gives a token; that orders another one five times in a row, then the next turn decides."""
    read, clock = await settled(LAGGING, "a")
    waits = []
    for number in range(MOST + 1):
        refusing = Script().on(records("a"), delta=f"t{number}")
        result = await read(refusing.on(SourceRefused("410", status=410), since=read.kept))
        waits.append(result.recheck)
        clock.pass_by(MINUTE)
    assert waits == [MINUTE] * MOST + [None]


@pytest.mark.parametrize("answer", [[], SourceUnavailable("503")], ids=["is read to its end", "fails"])
async def test_a_reading_that_becomes_due_while_a_delta_is_read_does_not_wait(answer: Any) -> None:
    """Law: it comes next; if it fails, it comes with the next turn."""
    read, clock = await settled(LAGGING, "a")

    class Slow(Script):
        async def get(self, path: str, params: Params) -> bytes:
            clock.pass_by(MINUTE)
            return await super().get(path, params)

    read.store.mark(RECHECK_AT, (clock.now() + MINUTE / 2).isoformat())
    result = await read(Slow().on(answer, since="d1", delta="d1"))
    assert (result.mode, result.recheck) == (RoundMode.DELTA, timedelta())
    down = Script().on(SourceUnavailable("503")).on(SourceUnavailable("503"), since="d1")
    result = await read(down)
    assert (result.mode, result.recheck) == (RoundMode.RECONCILE, None)


def version(subject: str, n: int) -> dict[str, Any]:
    """A record whose n is its time, too."""
    return {"id": subject, "n": n, "lastModifiedAt": f"2025-03-01T10:00:{n:02d}Z"}


async def test_a_version_that_a_delta_restores_on_a_later_page_is_looked_for() -> None:
    """It is older than the one before it, as an old version would be: a full reading tells which is true."""
    read, clock = await settled(LAGGING, "n")
    delta = (
        Script().on([version("n", 9)], since="d1", further="p").on([version("n", 1)], since="d1", page="p", delta="d2")
    )
    assert (await read(delta.on([version("n", 1)], page="p", delta="d2"))).modified == 1
    assert (confirmation_of(read.store.state.confirmation), due_in(read)) == (Confirmation(), SOON)
    clock.pass_by(SOON)
    assert (await read(Script().on([version("n", 1)], delta="d9"))).modified == 1


async def test_a_delta_that_lists_all_versions_is_not_doubtful() -> None:
    """The reading that confirms it shows the older version again."""
    read, _ = await settled(LAGGING, "a")
    await read(Script().on([version("n", 7)], since="d1", delta="d1"))
    delta = (
        Script().on([version("n", 8)], since="d1", further="p").on([version("n", 9)], since="d1", page="p", delta="d2")
    )
    assert (await read(delta.on([version("n", 9)], page="p", delta="d2"))).modified == 2
    assert (confirmation_of(read.store.state.confirmation), due_in(read)) == (None, None)


@pytest.mark.parametrize("how", ["the listing is unchanged", "the next page fails"])
async def test_that_a_delta_beside_a_reading_was_doubtful_is_committed_with_its_token(how: str) -> None:
    """The reading may end before its own end is committed, or have no end of its own."""
    read, clock = await settled(msgspec.structs.replace(LAGGING, slot=timedelta(seconds=1)), "a", "b")
    cached = Cached(read, Copies())
    cached.script.on(records("a", "b"), delta="d9").on([], since="d1", delta="d1")
    clock.pass_by(DAY)
    await cached()
    read.store.unmark(RECHECK_AT)
    clock.pass_by(DAY)
    if how == "the listing is unchanged":
        cached.script.unchanged = True
    else:
        failing = SourceUnavailable("503")
        cached.script.on(records("a", "b"), further="p").on(failing, page="p").on(failing, page="p", since="d1")
        read.store.mark(RECHECK_AT, clock.now().isoformat())
    cached.script.answer(jumbled("a", "b", value=2), since="d1")
    result = await cached()
    assert (result.ok, read.kept) == (how == "the listing is unchanged", "d2")
    assert (confirmation_of(read.store.state.confirmation), due_in(read)) == (Confirmation(), SOON)


async def test_that_a_record_is_passed_over_is_committed_at_once() -> None:
    """The reading fails on its second page, and what made it due has ended on the first."""
    read, _ = await brought(LAGGING)
    listing = Script().on([*records("a"), *records("n", value=2)], further="p").on(SourceUnavailable("503"), page="p")
    assert ((await read(listing)).ok, due_in(read)) == (False, SOON)


async def test_a_reading_that_is_due_sooner_does_not_take_the_place_of_one_that_is_needed_later() -> None:
    """A doubtful delta beside a reading, while another one is due in three seconds: that may come too early."""
    read, clock = await settled(LAGGING, "a", "b")
    read.store.mark(RECHECK_AT, (clock.now() + timedelta(seconds=3)).isoformat())
    full(read)
    doubtful = Script().on(records("a", "b"), delta="d9").answer(jumbled("a", "b", value=2), since="d1")
    assert ((await read(doubtful)).mode, due_in(read)) == (RoundMode.RECONCILE, SOON)


@pytest.mark.parametrize("due", [timedelta(), timedelta(seconds=1)])
async def test_a_token_of_a_listing_is_followed_by_a_reading_whatever_is_due(due: timedelta) -> None:
    """Also if this reading is one that looks for what was not shown, or such a one is due."""
    read, clock = await settled(LAGGING, "a")
    read.store.mark(RECHECK_AT, (clock.now() + due).isoformat())
    full(read)
    await read(Script().on(records("a", "late"), delta="d9").on([], since="d1"))
    assert (read.kept, due_in(read)) == ("d9", MINUTE)


async def test_a_listing_that_shows_a_version_which_is_held_back_leaves_no_digest() -> None:
    """A delta may end the hold without an event, and then the page has to be compared."""
    read, _ = await settled(msgspec.structs.replace(LAGGING, newest=True), "a")
    await read(Script().on([version("n", 9)], since="d1", delta="d1"))
    old = Script().on([*records("a"), version("n", 1)], delta="d1")
    for _ in range(3):
        read.clock.pass_by(SOON)
        full(read)
        assert ((await read(old)).changes, read.store.digests) == (0, None)
    assert read.store.held


async def test_a_listing_may_lack_a_token() -> None:
    """A feed that has a token may lag, whatever the last listing said."""
    read, _ = await settled(LAGGING, "a", "n")
    full(read)
    assert (await read(Script().on(records("a", "n"), further="p").on([], page="p"))).ok
    read.store.unmark(RECHECK_AT)
    full(read)
    gone = (
        Script()
        .on(records("a"), further="p")
        .on([], page="p")
        .on(SourceRefused("gone", status=404), path="/contractTypes/n")
    )
    assert ((await read(gone)).removed, due_in(read)) == (1, MINUTE)


async def test_a_doubtful_delta_beside_such_a_reading_asks_for_another_one() -> None:
    """However often it was made already."""
    read, clock = await settled(LAGGING, "a", "b")
    for number in range(MOST + 2):
        read.store.mark(RECHECK_AT, clock.now().isoformat())
        doubtful = Script().on(records("a", "b"), delta="d9").answer(jumbled("a", "b", value=number), since=read.kept)
        assert ((await read(doubtful)).mode, due_in(read)) == (RoundMode.RECONCILE, SOON)


async def test_a_version_that_an_earlier_delta_has_shown_may_be_restored() -> None:
    """Only what the same delta has shown is an old version."""
    read, _ = await settled(LAGGING, "a")
    await read(Script().on([version("n", 1)], since="d1", delta="d2"))
    delta = (
        Script().on([version("n", 9)], since="d2", further="p").on([version("n", 1)], since="d2", page="p", delta="d3")
    )
    assert (await read(delta.on([version("n", 1)], page="p", delta="d3"))).modified == 1
    assert due_in(read) == SOON


@pytest.mark.parametrize("beside", [False, True], ids=["before the reading", "beside it"])
async def test_a_record_that_each_delta_repeats_is_compared(beside: bool) -> None:
    """A token that includes the last change brings it with each delta: the listing has had the time to show it."""
    read, clock = await settled(msgspec.structs.replace(LAGGING, slot=timedelta(seconds=1)), "a")
    repeated = Script().on(records("n"), since="d1", delta="d1")
    for _ in range(7):
        await read(repeated)
        clock.pass_by(timedelta(seconds=2))
    full(read)
    listing = Script().on([*records("a"), *records("n", value=2)], delta="d9")
    result = await read(listing.on(records("n") if beside else [], since="d1", delta="d1"))
    # The delta after the reading, for this listing's token is not used, brings it once more as it repeats it.
    assert (result.mode, result.modified, due_in(read)) == (RoundMode.RECONCILE, 1 + beside, None)


@pytest.mark.parametrize("brings", [False, True])
async def test_a_listing_is_not_counted_with_what_deltas_bring_beside_it(brings: bool) -> None:
    """A delta that goes on may repeat a record that was removed since."""
    read, _ = await settled(msgspec.structs.replace(LAGGING, slot=timedelta(seconds=1)), "a", "n")
    full(read)
    listing = Script().on(records("a"), further="p").on(records("n"), page="p", delta="d9")
    assert (await read(listing.on(records("n") if brings else [], since="d1", delta="d1"))).mode is RoundMode.RECONCILE
    assert read.store.counted[-1] == (None if brings else 2)


async def test_a_record_that_a_delta_changes_is_passed_over_although_each_one_repeats_it() -> None:
    """The pages that follow may show it as it was."""
    read, clock = await settled(msgspec.structs.replace(LAGGING, slot=timedelta(seconds=1)), "a", "n")
    for _ in range(7):
        await read(Script().on(records("n"), since="d1", delta="d1"))
        clock.pass_by(timedelta(seconds=2))
    full(read)
    listing = Script().on(records("a"), further="p").on(records("n"), page="p", delta="d9")
    result = await read(listing.on(records("n", value=2), since="d1", delta="d1"))
    assert [event["data"]["record"]["n"] for event in read.store.events if event["subject"] == "n"] == [1, 2]
    assert (result.mode, due_in(read)) == (RoundMode.RECONCILE, SOON)


async def test_a_record_that_each_delta_repeats_is_compared_on_the_pages_after_one() -> None:
    """Also on those that follow such a delta."""
    read, clock = await settled(msgspec.structs.replace(LAGGING, slot=timedelta(seconds=1)), "a")
    for _ in range(7):
        await read(Script().on(records("n"), since="d1", delta="d1"))
        clock.pass_by(timedelta(seconds=2))
    full(read)
    listing = Script().on(records("a"), further="p").on(records("n", value=2), page="p", delta="d9")
    await read(listing.on(records("n"), since="d1", delta="d1"))
    assert [event["data"]["record"]["n"] for event in read.store.events if event["subject"] == "n"] == [1, 2, 1]


async def test_a_record_that_deltas_bring_now_and_then_is_not_repeated() -> None:
    """It may have changed and returned between two of them, and the listing may show what it was between."""
    read, clock = await settled(LAGGING, "a", "n")
    for listed in (records("n"), [], [], records("n")):
        clock.pass_by(timedelta(seconds=8))
        await read(Script().on(listed, since="d1", delta="d1"))
    full(read)
    assert (await read(Script().on([*records("a"), *records("n", value=0)], delta="d9"))).changes == 0
    assert due_in(read) == SOON


async def test_a_version_that_another_delta_of_the_round_has_shown_may_be_restored() -> None:
    """Only what the same delta has shown is an old version."""
    read, _ = await settled(msgspec.structs.replace(LAGGING, slot=timedelta(microseconds=1)), "a")
    await read(Script().on([version("n", 1)], since="d1", delta="d1"))
    read.store.unmark(RECHECK_AT)
    full(read)
    listing = Script().on(records("a"), further="p").on([version("n", 1)], page="p", delta="d9")
    listing.on([version("n", 1)], since="d1", delta="d2").on([], since="d3", delta="d3")
    listing.on([version("n", 9)], since="d2", further="q").on([version("n", 1)], since="d2", page="q", delta="d3")
    assert (await read(listing.on([version("n", 1)], page="q", delta="d3"))).ok
    assert [event["data"]["record"]["n"] for event in read.store.events if event["subject"] == "n"] == [1, 9]
    assert due_in(read) == SOON


async def test_a_version_that_a_reading_has_published_is_not_repeated() -> None:
    """Each delta has brought the record for long, but this version only now: a lagging listing does not replace it."""
    read, clock = await settled(LAGGING, "a", "n")
    for _ in range(7):
        await read(Script().on(records("n"), since="d1", delta="d1"))
        clock.pass_by(timedelta(seconds=2))
    newer = (
        Script()
        .on([*records("a"), *records("n", value=2)], delta="d9")
        .on(records("n", value=2), since="d1", delta="d1")
    )
    full(read)
    assert (await read(newer)).modified == 1
    clock.pass_by(timedelta(seconds=2))
    await read(Script().on(records("n", value=2), since="d1", delta="d1"))
    full(read)
    assert (await read(Script().on(records("a", "n"), delta="d9"))).modified == 0


async def test_a_part_that_a_failed_delta_has_brought_is_looked_for() -> None:
    """Its mark is committed with it; the end of the reading, which is such a one itself, does not delete that."""
    read, clock = await settled(msgspec.structs.replace(PARTIAL, slot=timedelta(seconds=1)), "a")
    read.store.mark(RECHECK_AT, clock.now().isoformat())
    refused = SourceRefused("no", status=403)
    script = Script().on(records("a"), delta="d9").on(records("n"), since="d1", further="p")
    assert (await read(script.on(refused, since="d1", page="p").on(refused, page="p"))).ok
    assert due_in(read) == SOON


class Endless(Script):
    """An API in which each reading leaves something to a later one.

    Attributes:
        readings: how many full readings it has answered.
    """

    def __init__(self, clock: Moving, how: str) -> None:
        super().__init__()
        self.readings = 0
        self._clock, self._how = clock, how

    async def ask(self, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:  # noqa: ARG002
        asked, moment = dict(params), int(self._clock.now().timestamp())
        if "sinceDeltaToken" in asked:
            brought = [] if self._how != "deltas lag" else [{"id": "n", "n": moment // 2 - 1}]
            token = None if self._how == "no token" else asked["sinceDeltaToken"]
            return ConditionalResponse(json.dumps({"results": brought, "deltaToken": token}).encode())
        if asked.get("pageToken"):
            return ConditionalResponse(
                json.dumps({"results": records("b"), "deltaToken": "d1"}).encode(), age=self._age
            )
        self.readings += 1
        version = 0 if self._how == "a cache" else moment // 2
        listed = [*records("a"), {"id": "n", "n": version}]
        if self._how == "deletions":
            listed = records("a", *(f"r{number}" for number in range(moment // 30 % 10_000, 10_000)))[:50]
        return ConditionalResponse(json.dumps({"results": listed, "pageToken": "p"}).encode(), age=self._age)

    @property
    def _age(self) -> int:
        return 30 if self._how == "a cache" else 0


@pytest.mark.parametrize("how", ["a cache", "deltas lag", "no token", "deletions"])
async def test_readings_that_follow_each_other_come_to_an_end(how: str) -> None:
    """A cache whose copies are always of some age, deltas that lag, tokens that are missing, records that go."""
    read, clock = Round(msgspec.structs.replace(UNASKABLE, breaker=RemovalGuard(None))), Moving()
    read.clock, read.store = clock, type(read.store)(clock)
    script = Endless(clock, how)
    reader = ConditionalReader(script.ask)
    for _ in range(400):
        clock.pass_by(timedelta(seconds=10))
        read.store.now_ms = int(clock.now().timestamp() * 1000)
        result = await run_round(read.feed, read.store, reader.get, clock=clock, qualifications=_none, unchanged=reader)
        assert result.mode is not RoundMode.SKIPPED
    assert 2 <= script.readings < 60
    before = script.readings
    for _ in range(50):
        clock.pass_by(timedelta(seconds=10))
        await run_round(read.feed, read.store, reader.get, clock=clock, qualifications=_none, unchanged=reader)
    assert script.readings == before


async def test_a_reading_follows_the_one_that_brings_the_first_token() -> None:
    """The first listing was empty and had none; the listing that has one may lag behind it."""
    read, clock = Round(LAGGING), Moving()
    read.clock, read.store = clock, type(read.store)(clock)
    await read(Script().on([]))
    clock.pass_by(MINUTE)
    assert ((await read(Script().on(records("a"), delta="d1"))).mode, due_in(read)) == (RoundMode.FULL, MINUTE)


@pytest.mark.parametrize("age", [0, 30])
async def test_a_copy_is_not_written_over_what_deltas_have_brought_since(age: int) -> None:
    """A delta has brought n 20 s ago; the cache keeps the listing from before that."""
    read, clock = await settled(LAGGING, "a", "n")
    await read(Script().on(records("n", value=2), since="d1", delta="d2"))
    clock.pass_by(timedelta(seconds=20))
    full(read)
    cached = Cached(read, Copies(age))
    cached.script.on(records("a", "n"), delta="d9").on([], since="d2", delta="d2")
    result = await cached()
    assert (result.mode, result.modified, read.store.snapshots["n"].raw[-2:-1]) == (
        RoundMode.RECONCILE,
        0 if age else 1,
        b"2" if age else b"1",
    )
    assert due_in(read) == (SOON if age else None)


async def test_a_later_page_may_be_an_older_copy() -> None:
    """A cache keeps each page for itself."""
    read, clock = await settled(LAGGING, "a", "n")
    await read(Script().on(records("n", value=2), since="d1", delta="d2"))
    clock.pass_by(timedelta(seconds=20))
    full(read)

    class Pages(Copies):
        async def ask(self, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
            self.age = 30 if dict(params).get("pageToken") else 0
            return await super().ask(path, params, unless=unless)

    cached = Cached(read, Pages())
    cached.script.on(records("a"), further="p", delta="d9").on(records("n"), page="p").on([], since="d2", delta="d2")
    result = await cached()
    assert (result.mode, result.modified, due_in(read)) == (RoundMode.RECONCILE, 0, SOON)


async def test_the_first_page_may_have_taken_some_time() -> None:
    """It shows the listing as it was when it was requested, or before that by the lag."""
    read, clock = await settled(LAGGING, "a", "n")
    await read(Script().on(records("n", value=2), since="d1", delta="d2"))
    full(read)

    class Late(Script):
        async def get(self, path: str, params: Params) -> bytes:
            clock.pass_by(timedelta(seconds=15))
            return await super().get(path, params)

    assert (await read(Late().on(records("a", "n"), delta="d9").on([], since="d2", delta="d2"))).modified == 0


async def test_validators_are_not_kept_where_a_delta_has_shown_more_than_the_listing() -> None:
    """A record that a delta brings beside the reading may be gone again, and the listing be as it was."""
    read, clock = await settled(LAGGING, "a")
    cached = Cached(read, Copies())
    cached.script.on(records("a"), delta="d9").on(records("x"), since="d1", delta="d2").on([], since="d2", delta="d2")
    clock.pass_by(DAY)
    assert (await cached()).created == 1
    cached.script.unchanged = True
    cached.script.on(SourceRefused("gone", status=404), path="/contractTypes/x")
    clock.pass_by(DAY)
    assert ((await cached()).removed, ("/contractTypes", {"unless": "1"}) in cached.script.asked) == (1, False)


async def test_the_result_says_when_the_next_full_reading_is_due() -> None:
    """Law: it comes when it is due and not at the feed's next turn, which may be an hour later; the state says so."""
    read, clock = Round(LAGGING), Moving()
    read.clock, read.store = clock, type(read.store)(clock)
    turn = clock.now() + timedelta(hours=1)

    async def round_of(api: Script) -> RoundResult:
        return await run_round(
            LAGGING, read.store, api.get, clock=clock, qualifications=_none, next_at=lambda: max(turn, clock.now())
        )

    quiet = Script().on(records("a"), delta="d1").on([], since="d1", delta="d1")
    first = await round_of(quiet)
    assert (first.recheck, read.store.state.next_at) == (MINUTE, clock.now() + MINUTE)
    clock.pass_by(MINUTE / 2)
    assert (await round_of(quiet)).recheck == MINUTE / 2
    failed = await round_of(Script().on(SourceUnavailable("503"), since="d1"))
    assert (failed.ok, failed.recheck) == (False, MINUTE / 2)
    clock.pass_by(MINUTE / 2)
    down = Script().on(SourceUnavailable("503")).on(SourceUnavailable("503"), since="d1")
    assert (await round_of(down)).recheck is None  # it was due and has failed: at the next turn
    assert read.store.state.next_at == turn
    last = await round_of(quiet)
    assert (last.mode, last.recheck, read.store.state.next_at) == (RoundMode.RECONCILE, None, turn)


async def test_what_a_failed_reading_has_passed_over_says_when_it_is_looked_for() -> None:
    """Law: the mark was committed with its first page, and the second one has failed."""
    read, _ = await settled(LAGGING, "a", "n")
    await read(Script().on(records("n", value=2), since="d1", delta="d2"))
    full(read)
    api = Script().on(records("n"), further="p").on(SourceUnavailable("503"), page="p").on([], since="d2", delta="d2")
    result = await read(api)
    assert (result.ok, result.mode, result.recheck) == (False, RoundMode.RECONCILE, SOON)


async def test_a_doubt_of_a_failed_delta_says_when_it_is_looked_for() -> None:
    """Law: the mark was committed within the round, and the round has failed."""
    read, _ = await settled(PARTIAL, "a")
    api = Script().on([{"id": "n", "n": 1}], since="d1", further="p").on(SourceUnavailable("503"), since="d1", page="p")
    result = await read(api)
    assert (result.ok, result.recheck) == (False, SOON)
