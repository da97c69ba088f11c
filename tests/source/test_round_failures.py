"""Laws of :mod:`poller.source.round` for failures: what is kept, what moves, and how the round ends."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from poller.changes.plan import Commit
from poller.errors import Fenced, SourceNonsense, SourceRefused, StoreError, StoreUnavailable
from poller.resources import resource_of
from poller.source.feed import RoundMode, RoundResult
from poller.source.paging import Params
from poller.source.round import run_round
from poller.store.lease import HeldElsewhere
from tests.source.round_sides import ACHIEVEMENTS, DOWN, FEED, GONE, NOON, Round, Script, records


@pytest.mark.parametrize("failure", [DOWN, SourceNonsense("the answer is not JSON"), SourceRefused("no", status=403)])
async def test_a_page_that_fails_keeps_what_was_committed_and_moves_nothing(read: Round, failure: Any) -> None:
    """A failed page keeps the pages before it and the token; the next round publishes only the rest."""
    script = Script().on(records("c"), since="d1", further="p", delta="d9").on(failure, page="p", since="d1")
    result = await read(script)
    assert (result.mode, result.ok, result.pages, result.created, result.error) == (
        RoundMode.DELTA,
        False,
        1,
        1,
        str(failure),
    )
    assert read.kept == "d1"
    assert read.store.state.read_at == read.store.state.good_at == NOON
    assert json.loads(read.store.state.round or "")["error"] == str(failure)
    good = Script().on(records("c"), since="d1", further="p", delta="d9").on(records("d"), page="p", since="d1")
    result = await read(good)
    assert (result.created, result.unchanged, read.kept) == (1, 3, "d9")  # a delta of two pages is read once more
    assert [event["subject"] for event in read.store.events] == ["a", "b", "c", "d"]


async def test_a_baseline_that_fails_is_a_baseline_again() -> None:
    """After a failed baseline the next round is a baseline that repeats no event."""
    feed = Round()
    await feed(Script().on(records("a"), further="p", delta="d1").on(DOWN, page="p"))
    assert (feed.kept, feed.store.state.read_at) == (None, None)
    result = await feed(Script().on(records("a", "b"), delta="d2"))
    assert (result.mode, result.created, result.unchanged, feed.kept) == (RoundMode.BASELINE, 1, 1, "d2")


@pytest.mark.parametrize("status", [400, 404, 409, 410, 412])
async def test_an_expired_token_leads_to_a_resync(read: Round, status: int) -> None:
    """If the token is refused and the request without it works, the round is a resync."""
    script = Script().on(SourceRefused("no", status=status), since="d1").on(records("a", "b", "c"), delta="d5")
    result = await read(script)
    assert (result.mode, result.ok, result.unchanged, result.created) == (RoundMode.RESYNC, True, 2, 1)
    assert read.causes[2:] == [("c", "created", "resync")]
    assert read.kept == "d5"
    assert (await read(Script().on([], since="d5"))).mode is RoundMode.DELTA


async def test_the_resync_after_an_expired_token_removes_what_is_gone(read: Round) -> None:
    """A resync after an expired token looks for missing records and removes those that are gone."""
    script = Script().on(GONE, since="d1").on(records("a"), delta="d5").on(GONE, path="/contractTypes/b")
    result = await read(script)
    assert (result.mode, result.ok, result.removed) == (RoundMode.RESYNC, True, 1)
    assert read.causes[2:] == [("b", "removed", "resync")]


@pytest.mark.parametrize("failure", [GONE, DOWN, SourceRefused("no", status=403)])
async def test_a_token_is_kept_where_the_request_fails_without_it_too(read: Round, failure: Any) -> None:
    """If the request without the token fails too, the token stays and the next round uses it."""
    result = await read(Script().on(GONE, since="d1").on(failure))
    assert (result.ok, result.error, read.kept) == (False, str(failure), "d1")
    assert (await read(Script().on([], since="d1"))).ok


@pytest.mark.parametrize("status", [401, 403, 422])
async def test_other_refusals_do_not_cast_doubt_on_the_token(read: Round, status: int) -> None:
    """A refusal that is not about the token ends the round without a second request."""
    script = Script().on(SourceRefused("no", status=status), since="d1")
    result = await read(script)
    assert (result.mode, result.ok, read.kept, len(script.asked)) == (RoundMode.DELTA, False, "d1", 1)


@pytest.mark.parametrize("status", [402, 403, 414, 422, 431])
async def test_a_token_that_is_refused_in_an_unknown_way_is_left_out_in_the_third_round(
    read: Round, status: int
) -> None:
    """An unknown refusal leads to a resync in the third round; from then on it means an expired token."""
    script = Script().on(SourceRefused("no", status=status), since="d1").on(records("a", "b", "c"), delta="d2")
    results = [await read(script) for _ in range(3)]
    assert [(one.mode, one.ok) for one in results] == [(RoundMode.DELTA, False)] * 2 + [(RoundMode.RESYNC, True)]
    assert (read.kept, results[-1].created, read.store.state.token_failures) == ("d2", 1, 0)
    script.on(SourceRefused("no", status=status), since="d2").on(records("a", "b", "c"), delta="d3")
    again = await read(script)
    assert (again.mode, again.ok, read.kept) == (RoundMode.RESYNC, True, "d3")


async def test_a_source_that_refuses_with_and_without_the_token_is_asked_without_it_ever_more_rarely(
    read: Round,
) -> None:
    """If requests are refused with and without the token, it stays; the check comes in rounds 3, 6 and 12."""
    closed = SourceRefused("not yours", status=403)
    script = Script().on(closed, since="d1").on(closed)
    asked = []
    for _ in range(13):
        script.asked.clear()
        assert not (await read(script)).ok
        asked.append(len(script.asked))
    assert [at for at, count in enumerate(asked, 1) if count == 2] == [3, 6, 12]
    assert read.kept == "d1"
    assert (await read(Script().on([], since="d1"))).ok
    assert read.store.state.token_failures == 0


@pytest.mark.parametrize("status", [401, 429])
async def test_refusals_that_are_about_something_else_never_cast_doubt_on_the_token(read: Round, status: int) -> None:
    """A 401 or 429 never leads to a request without the token, however often it comes."""
    script = Script().on(SourceRefused("no", status=status), since="d1")
    for _ in range(7):
        assert not (await read(script)).ok
    assert (len(script.asked), read.kept, read.store.state.token_failures) == (7, "d1", 0)


async def test_a_circle_keeps_the_records_and_not_the_token(read: Round) -> None:
    """If pages lead in a circle, their records are kept, the round fails and the token stays."""
    script = Script().on(records("c"), since="d1", further="p", delta="d9")
    script.on(records("d"), page="p", since="d1", further="q").on(records("e"), page="q", since="d1", further="p")
    result = await read(script)
    assert (result.ok, result.created, result.pages, read.kept) == (False, 3, 3, "d1")
    assert "circle" in (result.error or "")


async def test_a_feed_that_another_process_has_is_skipped() -> None:
    """A feed whose lease another process holds is skipped without request or commit, with the remaining time."""
    feed, script = Round(), Script()
    feed.store.held_elsewhere = HeldElsewhere(timedelta(seconds=7))
    result = await feed(script)
    assert result == RoundResult(feed=FEED.id, mode=RoundMode.SKIPPED, ok=True, wait=timedelta(seconds=7))
    assert (script.asked, feed.store.commits) == ([], [])


async def test_a_store_that_cannot_be_reached_is_the_rounds_error() -> None:
    """If the store is unavailable at the start, the round fails as skipped."""
    feed, script = Round(), Script()
    feed.store.unreachable = StoreUnavailable("no connection")
    result = await feed(script)
    assert (result.mode, result.ok, result.error, script.asked) == (RoundMode.SKIPPED, False, "no connection", [])


async def test_a_commit_that_is_refused_ends_the_round(read: Round) -> None:
    """A fenced commit ends the round: nothing more is written, and only committed records are counted."""
    read.store.failing = lambda commit: Fenced("the lease is another's") if len(commit.events) == 2 else None
    before = len(read.store.commits)
    script = Script().on(records("c"), since="d1", further="p", delta="d9").on(records("d", "e"), page="p", since="d1")
    result = await read(script)
    assert (result.ok, result.created, result.pages, result.error) == (False, 1, 1, "the lease is another's")
    assert (len(read.store.commits), read.kept) == (before + 1, "d1")


async def test_a_conclusion_that_cannot_be_written_is_a_failed_round(read: Round) -> None:
    """If the last commit fails, the round fails; the next one publishes nothing again."""
    read.store.failing = lambda commit: StoreUnavailable("no answer") if commit.marks else None
    script = Script().on(records("c"), since="d1", delta="d9")
    result = await read(script)
    assert (result.ok, result.created, result.error, read.kept) == (False, 1, "no answer", "d1")
    read.store.failing = lambda _: None
    result = await read(script)
    assert (result.ok, result.unchanged, result.created, read.kept) == (True, 1, 0, "d9")


@pytest.mark.parametrize("where", ["fetch", "commit"])
async def test_a_cancelled_round_leaves_no_task_behind(where: str) -> None:
    """A cancelled round leaves no task and no request, and the token stays."""
    feed, reached, stuck = Round(), asyncio.Event(), asyncio.Event()
    script = Script().on(records("a"), further="p", delta="d1").on(records("b"), page="p")
    ended = []

    async def get(path: str, params: Params) -> bytes:
        if params:
            try:
                if where == "fetch":
                    reached.set()
                await stuck.wait()
            finally:
                ended.append(path)
        return await script.get(path, params)

    async def before_commit(_: Commit) -> None:
        if where == "commit":
            reached.set()
            await stuck.wait()

    async def none(since: int) -> dict[str, int]:
        assert not since
        return {}

    feed.store.before_commit = before_commit
    task = asyncio.create_task(run_round(FEED, feed.store, get, clock=feed.clock, qualifications=none))
    await reached.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert ended in ([], ["/contractTypes"])
    assert feed.kept is None


def jumbled(*subjects: str, value: int = 1) -> bytes:
    """A page with an extra quotation mark in its first and last record, so that all look like one."""
    objects = [json.dumps(record) for record in records(*subjects, value=value)]
    ends = (0, len(objects) - 1)
    broken = [f'{raw[:-1]}, "t": "5" pipe"}}' if at in ends else raw for at, raw in enumerate(objects)]
    return f'{{"results": [{", ".join(broken)}], "deltaToken": "d2"}}'.encode()


async def test_records_that_cannot_be_told_apart_are_not_removed() -> None:
    """An unescaped quotation mark in two records makes one of all between them; none of these is taken for gone."""
    feed = Round(msgspec.structs.replace(FEED, resource=resource_of("things", path="/contractTypes"), delta=False))
    await feed(Script().on(records("a", "b", "c", "d")))
    broken = Script().answer(jumbled("a", "b", "c"))
    results = [await feed(broken) for _ in range(3)]
    assert [(one.ok, one.quarantined, one.unidentified, one.removed) for one in results] == [(True, 1, 1, 0)] * 3
    assert (await feed(Script().on(records("a", "b", "c", "d")))).changes == 0


async def test_a_delta_whose_records_cannot_be_told_apart_is_followed_by_a_full_reading(read: Round) -> None:
    """After a delta with indistinguishable records the next round reads everything."""
    delta = await read(Script().answer(jumbled("a", "b", "c", value=2), since="d1"))
    assert (delta.mode, delta.ok, delta.changes, delta.unidentified) == (RoundMode.DELTA, True, 0, 1)
    healed = Script().on(records("a", "b", "c", value=2), delta="d3")
    after = await read(healed)
    assert (after.mode, after.created + after.modified) == (RoundMode.RECONCILE, 3)
    assert (await read(healed.on([], since="d3", delta="d4"))).mode is RoundMode.DELTA


async def test_a_reading_whose_records_cannot_be_told_apart_is_not_the_last(read: Round) -> None:
    """A source that stays broken is read again five times, not for ever."""
    broken = Script().answer(jumbled("a", "b", "c")).answer(jumbled("a", "b", "c"), since="d2")
    read.store.mark("confirmation", "[0,0,1]")
    broken.on([], since="d1", delta="d2").on([], since="d2", delta="d2")
    assert [(await read(broken)).mode for _ in range(7)] == [RoundMode.RECONCILE] * 5 + [RoundMode.DELTA] * 2


async def test_a_page_token_that_dies_on_the_way_starts_the_round_once_more() -> None:
    """A refused page token restarts the round once; refused again, the round fails and the token stays."""
    script = Script().on(records("a"), further="p", delta="d1").on(GONE, page="p")
    feed = Round()
    failed = await feed(script)
    assert (failed.ok, failed.created, feed.kept) == (False, 1, None)
    assert [asked.get("pageToken") for _, asked in script.asked] == [None, "p", None, "p"]


async def test_a_delta_whose_page_token_dies_removes_nothing(read: Round) -> None:
    """A delta does not list what is there, however often it is read."""

    class Expiring(Script):
        async def get(self, path: str, params: Params) -> bytes:
            body = await super().get(path, params) if dict(params).get("pageToken") is None else b""
            if body:
                return body
            self.asked.append((path, dict(params)))
            self.on(records("c"), since="d1", delta="d2")
            raise GONE

    script = Expiring().on(records("c"), since="d1", further="p", delta="d2")
    result = await read(script)
    assert (result.mode, result.ok, result.created, result.removed, read.kept) == (RoundMode.DELTA, True, 1, 0, "d2")
    assert [asked.get("pageToken") for _, asked in script.asked] == [None, "p", None]


async def test_a_listing_that_is_refused_does_not_starve_the_others() -> None:
    """If one of three substreams is refused, the others are read, and the round fails with its error."""
    feed = Round(msgspec.structs.replace(ACHIEVEMENTS, qualifications=("q1", "q2", "q3")))
    script = Script().on(SourceRefused("not yours", status=403), path="/qualifications/q1/achievements")
    for name in ("q2", "q3"):
        script.on(records(f"of-{name}"), path=f"/qualifications/{name}/achievements")
    result = await feed(script)
    assert (result.ok, result.created, result.error) == (False, 2, "not yours")
    assert feed.store.state.read_at == NOON


async def test_a_first_reading_goes_on_as_long_as_no_listing_could_be_read() -> None:
    """While no substream could be read, the next round is still the baseline."""
    feed = Round(ACHIEVEMENTS)
    paths = [f"/qualifications/{name}/achievements" for name in ("q1", "q2")]
    refused = SourceRefused("not yours", status=403)
    assert not (await feed(Script().on(refused, path=paths[0]).on(refused, path=paths[1]))).ok
    assert feed.store.state.read_at is None
    result = await feed(Script().on(records("a"), path=paths[0]).on(records("b"), path=paths[1]))
    assert (result.mode, result.created) == (RoundMode.BASELINE, 2)


@pytest.mark.parametrize("silent", [False, True])
async def test_a_first_reading_that_never_ends_tells_changes_as_changes(*, silent: bool) -> None:
    """A later page that always fails makes no baseline of what known records become; the round says what it means."""
    feed = Round(msgspec.structs.replace(FEED, silent_baseline=silent))
    await feed(Script().on(records("a"), further="p", delta="d1").on(DOWN, page="p"))
    feed.store.mark("kept", "1")
    result = await feed(Script().on(records("a", "b", value=2), further="p", delta="d1").on(DOWN, page="p"))
    assert (result.mode, result.ok, result.created, result.modified) == (RoundMode.BASELINE, False, 1, 1)
    expected = [("a", "modified", "full"), ("b", "created", "baseline")]
    assert feed.causes[0 if silent else 1 :] == expected[: 1 if silent else 2]
    assert (result.error or "").endswith("new records are published as baseline until the first reading is complete")


async def test_a_delta_that_is_always_refused_is_given_up() -> None:
    """With ``auto``, three fresh tokens refused in a row mean full readings; a good delta resets the count."""
    trial = msgspec.structs.replace(FEED, delta_on_trial=True)
    feed = Round(trial)
    refusing = Script().on(records("a"), delta="d1").on(SourceRefused("unknown parameter", status=400), since="d1")
    modes = [(await feed(refusing)).mode for _ in range(6)]
    assert modes == [
        RoundMode.BASELINE,
        RoundMode.RESYNC,
        RoundMode.RESYNC,
        RoundMode.RESYNC,
        RoundMode.FULL,
        RoundMode.FULL,
    ]
    insisting = Round(FEED)
    assert [(await insisting(refusing)).mode for _ in range(6)][1:] == [RoundMode.RESYNC] * 5


async def test_a_feed_that_cannot_be_read_from_the_store_says_so(read: Round) -> None:
    """An unreadable snapshot fails the round, and the state shows the failure."""
    read.store.unreadable = StoreError("holds a snapshot that cannot be read")
    result = await read(Script().on(records("c"), since="d1", delta="d2"))
    assert (result.ok, read.kept) == (False, "d1")
    assert json.loads(read.store.state.round or "")["ok"] is False


async def test_listings_that_are_all_unknown_are_a_failure() -> None:
    """A 404 for one of several qualifications means that it is gone; a 404 for all fails the round."""
    gone = SourceRefused("no such thing", status=404)
    feed = Round(msgspec.structs.replace(ACHIEVEMENTS, qualifications=("q1", "q2")))
    paths = [f"/qualifications/{name}/achievements" for name in ("q1", "q2")]
    result = await feed(Script().on(gone, path=paths[0]).on(gone, path=paths[1]))
    assert (result.ok, result.error) == (
        False,
        "none of the 2 qualifications has a listing: the API answered 404 to all of them",
    )
    assert (await feed(Script().on(gone, path=paths[0]).on(records("a"), path=paths[1]))).ok
