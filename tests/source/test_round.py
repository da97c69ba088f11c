"""Laws of :mod:`poller.source.round`: the mode of a round, its requests, and when it commits."""

from __future__ import annotations

import gc
import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from poller.changes.plan import Commit
from poller.errors import SourceRefused
from poller.source.feed import Feed, RoundMode, RoundResult
from poller.source.paging import SLICE_RECORDS, ListQuery
from poller.source.writer import CommitQueue, RoundWriter
from poller.store.feed_state import CONFIRMATION, DELTA_TOKEN, ID_FIELD, ORIGIN, READ_AT
from tests.source.round_sides import ACHIEVEMENTS, DAY, DOWN, FEED, NOON, Round, Script, records


async def test_a_baseline_publishes_all_and_keeps_the_token() -> None:
    """The baseline publishes each record as created and keeps the first page's token."""
    feed = Round()
    script = Script().on(records("a", "b"), further="p", delta="d1").on([*records("c"), 7], page="p", delta="d2")
    result = await feed(script)
    assert msgspec.structs.replace(result, seconds=0.0, learnt=None) == RoundResult(
        feed="acme/contractTypes",
        mode=RoundMode.BASELINE,
        ok=True,
        pages=2,
        records=4,
        created=3,
        quarantined=1,
        token="moved",  # noqa: S106 -- a word
        unidentified=1,
    )
    assert feed.causes == [(subject, "created", "baseline") for subject in "abc"]
    assert (feed.kept, feed.store.state.read_at, feed.store.state.good_at) == ("d1", NOON, NOON)
    assert feed.store.quarantine == [(b"7", "not an object")]
    assert script.asked == [("/contractTypes", {}), ("/contractTypes", {"pageToken": "p"})]
    assert json.loads(feed.store.state.round or "") == result.public


async def test_a_delta_starts_from_the_token_and_moves_it(read: Round) -> None:
    """A delta requests the changes since the token on every page; the next starts from the new token."""
    read.clock.pass_by(DAY / 2)
    script = (
        Script().on(records("b", value=2), since="d1", further="p", delta="d3").on(records("c"), page="p", since="d1")
    )
    result = await read(script)
    assert (result.mode, result.modified, result.created) == (RoundMode.DELTA, 1, 1)
    assert read.causes[2:] == [("b", "modified", "delta"), ("c", "created", "delta")]
    assert read.kept == "d3"
    assert read.store.state.read_at == NOON  # a delta is no full reading
    again = await read(Script().on(records("c"), since="d3"))
    assert (again.mode, again.unchanged, again.changes) == (RoundMode.DELTA, 1, 0)
    assert read.kept == "d3"  # without a new token the old one stays valid


@pytest.mark.parametrize(
    ("change", "passed", "mode"),
    [
        ({}, DAY / 2, RoundMode.DELTA),
        ({}, DAY, RoundMode.RECONCILE),
        ({"delta": False}, DAY / 2, RoundMode.FULL),
        ({"query": ListQuery(limit=5)}, DAY / 2, RoundMode.RESYNC),
    ],
)
async def test_each_kind_of_reading_is_silent_where_nothing_changed(
    read: Round, change: dict[str, Any], passed: timedelta, mode: RoundMode
) -> None:
    """In each mode unchanged records give no event; full rounds renew the time of the last full round."""
    read.clock.pass_by(passed)
    since = "d1" if mode is RoundMode.DELTA else None
    script = Script().on(records("a", "b"), since=since, delta="d9")
    if mode is RoundMode.RECONCILE:
        script.on([], since="d1", delta="d9")
    feed = msgspec.structs.replace(FEED, **change)
    result = await read(script, feed)
    assert (result.mode, result.unchanged, result.changes) == (mode, 2, 0)
    assert read.store.state.read_at == (NOON if mode is RoundMode.DELTA else read.clock.time)
    assert read.kept == (None if mode is RoundMode.FULL else "d9")
    assert len(read.store.commits[3:]) == 1 + (mode is RoundMode.RECONCILE)  # the conclusion, and a delta's token
    after = await read(Script().on([], since=read.kept), feed)
    assert after.mode is (RoundMode.FULL if mode is RoundMode.FULL else RoundMode.DELTA)


async def test_without_a_token_each_round_is_a_full_reading() -> None:
    """Without a delta token, or with an empty one, each round is a full one."""
    feed = Round()
    modes = [(await feed(Script().on(records("a"), delta=""))).mode for _ in range(3)]
    assert modes == [RoundMode.BASELINE, RoundMode.FULL, RoundMode.FULL]
    assert len(feed.store.events) == 1


async def test_the_token_is_committed_after_the_last_page_and_never_before() -> None:
    """Only the last commit has the token and the times, and it has no records."""
    feed = Round()
    script = Script().on(records("a"), further="p", delta="d1").on(records("b"), page="p", further="q", delta="d2")
    await feed(script.on(records("c"), page="q", delta="d3"))
    *pages, last = feed.store.commits
    assert len(pages) == 3
    assert all(commit.marks.keys() <= {ORIGIN, ID_FIELD} for commit in pages)
    assert (last.marks[DELTA_TOKEN], last.events, dict(last.snapshots)) == ("d1", (), {})


async def test_the_next_page_is_asked_for_before_this_one_is_committed() -> None:
    """While a page is committed the next page is requested, and no further one."""
    feed = Round()
    asked: list[int] = []
    script = Script().on(records("a"), further="p").on(records("b"), page="p", further="q").on(records("c"), page="q")

    async def before_commit(commit: Commit) -> None:
        if commit.events:
            await script.until(min(len(asked) + 2, 3))
            asked.append(len(script.asked))

    feed.store.before_commit = before_commit
    assert (await feed(script)).ok
    assert asked[0] >= 2
    assert asked[1:] == [3, 3]


async def test_a_large_page_is_committed_in_slices() -> None:
    """A large page is committed in slices, numbered without gaps."""
    feed, count = Round(), 2 * SLICE_RECORDS + 1
    result = await feed(Script().on(records(*map(str, range(count)))))
    assert [len(commit.events) for commit in feed.store.commits] == [SLICE_RECORDS, SLICE_RECORDS, 1, 0]
    assert (result.pages, result.created) == (1, count)
    assert [int(event["sequence"]) for event in feed.store.events] == list(range(1, count + 1))


async def test_a_silent_baseline_publishes_nothing_until_something_changes() -> None:
    """A silent baseline is counted and stored, not published; a later resync publishes."""
    feed = Round(msgspec.structs.replace(FEED, silent_baseline=True, ignore=("/at",)))
    result = await feed(Script().on(records("a", "b"), delta="d1"))
    assert (result.created, feed.store.events) == (2, [])
    await feed(Script().on(records("b", value=2), since="d1"))
    assert feed.causes == [("b", "modified", "delta")]
    feed.store.mark("query", "another")
    await feed(Script().on([*records("a"), {**records("b", value=2)[0], "at": 1}, *records("c")], delta="d2"))
    assert feed.causes[1:] == [("c", "created", "resync")]


async def test_achievements_are_read_listing_by_listing() -> None:
    """Each configured or seen qualification is read once, and the event's source names it."""
    feed = Round(msgspec.structs.replace(ACHIEVEMENTS, discover=True))
    feed.seen = ("q2", "q3")
    script = Script()
    for name in ("q1", "q2", "q3"):
        script.on(records(name), path=f"/qualifications/{name}/achievements", delta="d")
    result = await feed(script)
    assert (result.mode, result.pages, result.created) == (RoundMode.BASELINE, 3, 3)
    assert [path.split("/")[2] for path, _ in script.asked] == ["q1", "q2", "q3"]
    assert {event["source"] for event in feed.store.events} == {
        f"https://api.example.org/v1/qualifications/{name}/achievements" for name in (*feed.seen, "q1")
    }
    assert feed.kept is None
    assert (await feed(script)).mode is RoundMode.FULL


async def test_a_qualification_that_is_gone_lists_nothing() -> None:
    """A 404 of one substream is no error; the others are read, and the round is complete."""
    feed = Round(ACHIEVEMENTS)
    script = Script().on(SourceRefused("no", status=404), path="/qualifications/q1/achievements")
    result = await feed(script.on(records("x"), path="/qualifications/q2/achievements"))
    assert (result.ok, result.created, feed.store.state.read_at) == (True, 1, NOON)


async def test_another_refusal_of_a_listing_fails_the_round() -> None:
    """Any other refusal of a substream fails the round; the others are kept and the baseline is over."""
    feed = Round(ACHIEVEMENTS)
    script = Script().on(records("x"), path="/qualifications/q1/achievements")
    result = await feed(script.on(SourceRefused("no", status=403), path="/qualifications/q2/achievements"))
    assert (result.ok, result.created, feed.store.state.read_at) == (False, 1, NOON)


async def test_achievements_without_a_qualification_are_not_read_yet() -> None:
    """Without a known qualification nothing is requested, and the baseline is still due."""
    feed = Round(msgspec.structs.replace(ACHIEVEMENTS, qualifications=(), discover=True))
    result = await feed(Script())
    assert (result.ok, result.pages, result.mode) == (True, 0, RoundMode.BASELINE)
    assert READ_AT.encode() not in feed.store.fields


async def test_other_fields_lead_to_a_resync_and_not_to_a_storm() -> None:
    """Other fields cause a resync that publishes only the records that changed meanwhile."""

    def asking(*fields: str) -> Feed:
        return msgspec.structs.replace(FEED, query=ListQuery(fields=fields))

    def api(*shape: str, **changed: int) -> Script:
        whole = [{"id": subject, "n": changed.get(subject, 1), "m": 2} for subject in ("a", "b")]
        return Script().on([{key: record[key] for key in shape} for record in whole], delta="d1")

    read = Round(asking())
    await read(api("id", "n", "m"))
    fewer = await read(api("id", "n"), asking("id", "n"))
    assert (fewer.mode, fewer.changes, fewer.unchanged) == (RoundMode.RESYNC, 0, 2)
    assert {bytes(snapshot.raw) for snapshot in read.store.snapshots.values()} == {
        b'{"id":"a","n":1,"m":2}',  # fields that are no longer requested are kept
        b'{"id":"b","n":1,"m":2}',
    }
    other = await read(api("id", "m"), asking("id", "m"))
    assert (other.mode, other.changes, other.unchanged) == (RoundMode.RESYNC, 0, 2)
    back = await read(api("id", "n", "m"), asking())
    assert (back.mode, back.changes) == (RoundMode.RESYNC, 0)
    changed = await read(api("id", "n", b=5), asking("id", "n"))
    assert (changed.mode, changed.modified, changed.unchanged) == (RoundMode.RESYNC, 1, 1)
    assert read.causes[-1] == ("b", "modified", "resync")


async def test_what_changed_while_it_was_not_asked_for_is_published_once_it_is(read: Round) -> None:
    """A change in a field that was not requested is published once the field is requested again."""
    fewer = msgspec.structs.replace(FEED, query=ListQuery(fields=("id", "m")))
    whole = [{"id": subject, "n": 1, "m": 2} for subject in ("a", "b")]
    await read(Script().on(whole, since="d1", delta="d1"))
    await read(Script().on([{"id": "a", "m": 2}, {"id": "b", "m": 3}], delta="d1"), fewer)
    assert read.causes[-1] == ("b", "modified", "resync")
    result = await read(Script().on([{"id": "a", "n": 9, "m": 2}, {"id": "b", "n": 1, "m": 3}], delta="d1"))
    assert (result.mode, result.modified) == (RoundMode.RESYNC, 1)
    event = read.store.events[-1]
    assert (event["subject"], event["data"]["changed"], event["data"]["previous"]["n"]) == ("a", ["/n"], 1)


@pytest.mark.parametrize("before", [("id", "n", "m"), ()])
async def test_a_requested_field_that_a_record_has_no_more_is_published_once(before: tuple[str, ...]) -> None:
    """A requested field that a record loses is published once, also when the fields change."""
    feed = msgspec.structs.replace(FEED, delta=False, query=ListQuery(fields=before))
    read = Round(feed)
    await read(Script().on([{"id": "a", "n": 1, "m": 2}]), feed)
    feed = msgspec.structs.replace(feed, query=ListQuery(fields=("id", "n", "m")))
    for times, found in (({"id": "a", "n": 1}, 1), ({"id": "a", "n": 1, "m": 2}, 1), ({"id": "a"}, 1)):
        results = [await read(Script().on([times]), feed) for _ in range(3)]
        assert [result.modified for result in results] == [found, 0, 0]
    everything = msgspec.structs.replace(feed, query=ListQuery())
    assert [(await read(Script().on([{"id": "a"}]), everything)).changes for _ in range(2)] == [0, 0]
    assert [event["data"].get("changed") for event in read.store.events] == [None, ["/m"], ["/m"], ["/m", "/n"]]


async def test_a_field_that_went_while_all_were_requested_again_is_published_once(read: Round) -> None:
    """A field that went while it was not requested is published once, by the first round that requests it."""
    feed = msgspec.structs.replace(FEED, delta=False, query=ListQuery(fields=("id", "n")))
    await read(Script().on([{"id": "a", "n": 1}, {"id": "b", "n": 1}]), feed)
    everything = msgspec.structs.replace(feed, query=ListQuery())
    await read(Script().on([{"id": "a", "n": 1, "m": 2}, {"id": "b", "n": 1}]), everything)
    await read(Script().on([{"id": "a", "n": 1}, {"id": "b", "n": 1}]), feed)
    script = Script().on([{"id": "a", "n": 1}, {"id": "b", "n": 1}])
    assert [(await read(script, everything)).modified for _ in range(3)] == [1, 0, 0]
    assert read.store.events[-1]["data"]["changed"] == ["/m"]


async def test_another_id_field_is_refused(read: Round) -> None:
    """Another id field is refused with the remedy, and nothing is read."""
    script = Script()
    result = await read(script, msgspec.structs.replace(FEED, id_field="code"))
    assert (result.ok, script.asked, read.kept) == (False, [], "d1")
    assert "give the feed another name" in (result.error or "")


async def test_another_id_field_is_refused_before_the_first_reading_is_complete() -> None:
    """The id field is stored with the first records, so an interrupted first reading cannot go on with another."""
    feed = Round()
    assert (await feed(Script().on(records("a"), further="p").on(DOWN, page="p"))).created == 1
    script = Script()
    result = await feed(script, msgspec.structs.replace(FEED, id_field="code"))
    assert (result.ok, script.asked, feed.store.state.id_field) == (False, [], "id")
    assert 'id_field was "id" and is "code" now' in (result.error or "")


async def test_of_two_versions_in_one_page_the_later_one_counts() -> None:
    """Of two versions in one page only the newer is published; reading the page again publishes nothing."""
    older = {"id": "a", "n": 1, "lastModifiedAt": "2026-01-01T00:00:00Z"}
    newer = {"id": "a", "n": 2, "lastModifiedAt": "2026-01-01T01:00:00+00:30"}
    feed = Round(msgspec.structs.replace(FEED, delta=False))
    script = Script().on([newer, older, *records("b")])
    for _ in range(3):
        await feed(script)
    assert [(subject, kind) for subject, kind, _ in feed.causes] == [("a", "created"), ("b", "created")]
    assert feed.store.events[0]["data"]["record"]["n"] == 2


async def test_of_two_versions_on_two_pages_of_a_round_the_later_one_counts() -> None:
    """An older version on a later page of the round is skipped; in a later round it is a change."""
    older = {"id": "a", "n": 1, "lastModifiedAt": "2026-01-01T00:00:00Z"}
    newer = {"id": "a", "n": 2, "lastModifiedAt": "2026-01-02T00:00:00Z"}
    feed = Round()
    result = await feed(Script().on([newer], further="p", delta="d1").on([older], page="p"))
    assert (result.created, result.modified, result.unchanged) == (1, 0, 1)
    feed.store.unmark(CONFIRMATION)
    again = await feed(Script().on([older], since="d1", delta="d2"))
    assert again.modified == 1


async def test_two_versions_without_times_end_with_the_last_seen() -> None:
    """Of two versions without times the last one in the page counts."""
    feed = Round()
    await feed(Script().on([*records("a", value=2), *records("a", value=1)], delta="d1"))
    assert [event["data"]["record"]["n"] for event in feed.store.events] == [1]


async def test_a_round_is_freed_when_it_has_ended(read: Round) -> None:
    """Law: no part of a round waits for the collector of cycles; of thousands of feeds that would be megabytes.

    A baseline, a delta, and a full reading of two pages with deltas beside it.
    """
    before = _parts_of_rounds()  # failures of other tests may keep some
    gc.disable()
    try:
        await read(Script().on(records("b", value=2), since="d1", delta="d3"))
        read.clock.pass_by(DAY)
        script = Script().on(records("a"), further="p", delta="d9").on(records("b", value=2), page="p", delta="d9")
        result = await read(script.on(records("c"), since="d3", delta="d4").on([], since="d4", delta="d4"))
        left = [one for one in _parts_of_rounds() if not any(one is other for other in before)]
    finally:
        gc.enable()
    assert (result.mode, result.created, left) == (RoundMode.RECONCILE, 1, [])


def _parts_of_rounds() -> list[object]:
    return [one for one in gc.get_objects() if isinstance(one, RoundWriter | CommitQueue)]
