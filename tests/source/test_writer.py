"""Laws of :mod:`poller.source.writer`: commits in order, parts of records, and removals."""

from __future__ import annotations

import asyncio
import json
import sys
import weakref
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Collection, Container, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from urllib.parse import quote

import msgspec
import pytest

from poller.changes.diff import Snapshot, checked
from poller.changes.plan import Commit, RemovalGuard, SeenKeys
from poller.clock import Clock
from poller.errors import PollerError, SourceRefused, SourceUnavailable, StoreError
from poller.resources import RESOURCES, Resource
from poller.source.absence import SettledAbsence, settle_absent
from poller.source.feed import Feed, RoundMode
from poller.source.paging import SLICE_RECORDS, Params
from poller.source.writer import CommitQueue
from poller.store.feed import MissingRecords, PackedCommit
from tests.harness.waiting import within
from tests.source.round_sides import FEED, MemoryStore, Round, Script, WallClock, records


class Store:
    """Commits numbers; each commit waits until the test opens the gate."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.begun: list[int] = []
        self.written: list[int] = []
        self.gate = asyncio.Event()
        self.started = asyncio.Event()
        self._fails_at = fails_at

    async def commit(self, number: int) -> None:
        self.begun.append(number)
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.written.append(number)  # as in the real store, a commit in flight is finished
            raise
        if number == self._fails_at:
            raise ValueError(f"{number} is refused")
        self.written.append(number)


@asynccontextmanager
async def in_order() -> AsyncIterator[CommitQueue[int]]:
    """Settled at the end, stopped by an error."""
    commits: CommitQueue[int] = CommitQueue()
    try:
        yield commits
        await commits.settle()
    finally:
        await commits.stop()


async def test_all_are_written_in_their_order() -> None:
    """When they are settled, everything is written in the given order."""
    store = Store()
    store.gate.set()
    async with in_order() as commits:
        for number in range(20):
            await commits.put(number, store.commit)
    assert store.written == list(range(20))
    assert not commits.unwritten


async def test_the_next_are_planned_while_one_is_on_its_way() -> None:
    """Planning goes on while one commit is in flight and two wait."""
    store = Store()
    async with in_order() as commits:
        for number in (1, 2, 3):
            await within(commits.put(number, store.commit), 5)
        await store.started.wait()
        assert (store.begun, store.written, list(commits.unwritten)) == ([1], [], [1, 2, 3])
        fourth = asyncio.ensure_future(commits.put(4, store.commit))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not fourth.done()
        store.gate.set()
        await fourth
    assert store.written == [1, 2, 3, 4]


class AnsweringStore(MemoryStore):
    """A store of four commits; one is answered while the next slice is being planned, and the last one by itself."""

    turns = 0

    def __init__(self) -> None:
        super().__init__()
        self.answered_when_packed: list[int] = []
        self._answered = 0
        self._asked: asyncio.Future[None] | None = None

    def answer(self) -> None:
        """Let the answer to the commit on its way arrive, if one is."""
        if self._asked is not None and not self._asked.done():
            self._asked.get_loop().call_soon(self._asked.set_result, None)

    def pack(self, commit: Commit) -> PackedCommit:
        self.answered_when_packed.append(self._answered)
        return super().pack(commit)

    async def write(self, commit: Commit, packed: PackedCommit | None) -> None:
        if len(self.answered_when_packed) < 4:
            self._asked = asyncio.get_running_loop().create_future()
            await self._asked
        self._answered += 1
        await super().write(commit, packed)


class PlannersClock(WallClock):
    """Answers a commit whenever it is asked for the time, as planning does when it starts."""

    store: AnsweringStore

    def now(self) -> datetime:
        self.store.answer()
        return super().now()


async def test_an_answer_during_planning_is_acted_upon_before_the_commit_is_packed() -> None:
    """The next commit is sent then; else the store would have nothing to do until the end of the slice."""
    read, store, clock = Round(), AnsweringStore(), PlannersClock()
    clock.store = store
    read.store, read.clock = store, clock
    result = await read(Script().on(records(*map(str, range(4 * SLICE_RECORDS)))))
    assert (result.ok, result.created) == (True, 4 * SLICE_RECORDS)
    assert store.answered_when_packed == [0, 1, 2, 3]


async def test_what_is_written_is_kept_until_another_one_is_put() -> None:
    """To free a commit takes as long as to send one, and the store would wait for it."""
    freed: list[int] = []

    class Number:
        def __init__(self, number: int) -> None:
            weakref.finalize(self, freed.append, number)

    async def write(_: Number) -> None:
        await asyncio.sleep(0)

    commits: CommitQueue[Number] = CommitQueue()
    await commits.put(Number(1), write)
    await commits.settle()
    assert (list(commits.unwritten), freed) == ([], [])
    await commits.put(Number(2), write)
    assert freed == [1]
    await commits.stop()


async def test_after_a_pause_more_are_written() -> None:
    """When all are written, the next one is written as well."""
    store = Store()
    store.gate.set()
    async with in_order() as commits:
        for number in range(3):
            await commits.put(number, store.commit)
            await commits.settle()
            assert store.written[-1] == number


async def test_nothing_is_put_behind_one_that_failed() -> None:
    """Law: also if the failure was not noticed yet."""
    store = Store(fails_at=1)
    store.gate.set()
    commits: CommitQueue[int] = CommitQueue()
    await commits.put(1, store.commit)
    for _ in range(10):
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="1 is refused"):
        await commits.put(2, store.commit)
    await commits.stop()
    assert store.begun == [1]


async def test_none_is_written_after_one_that_failed() -> None:
    """A failed commit is raised, and none after it is written."""
    store = Store(fails_at=2)
    store.gate.set()
    with pytest.raises(ValueError, match="2 is refused"):
        async with in_order() as commits:
            for number in range(1, 9):
                await commits.put(number, store.commit)
    assert store.written == [1]
    assert store.begun == [1, 2]


async def test_a_failure_of_the_last_one_comes_out_too() -> None:
    """Settling raises what the last commit raised."""
    store = Store(fails_at=1)
    store.gate.set()
    with pytest.raises(ValueError, match="1 is refused"):
        async with in_order() as commits:
            await commits.put(1, store.commit)


async def test_cancelled_it_finishes_what_is_on_its_way_and_drops_the_rest() -> None:
    """A cancelled round finishes the commit in flight and leaves no task."""
    store = Store()

    async def round_() -> None:
        async with in_order() as commits:
            for number in range(1, 9):
                await commits.put(number, store.commit)

    running = asyncio.create_task(round_())
    await store.started.wait()
    running.cancel()
    asyncio.get_running_loop().call_soon(store.gate.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert store.written == [1]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_once_stopped_nothing_is_written() -> None:
    """What waited is dropped, and what comes is refused."""
    store = Store()
    commits: CommitQueue[int] = CommitQueue()
    for number in (1, 2):
        await commits.put(number, store.commit)
    await store.started.wait()
    store.gate.set()
    await commits.stop()
    await commits.settle()
    with pytest.raises(StoreError):
        await commits.put(3, store.commit)
    assert (store.written, list(commits.unwritten)) == ([1], [])


async def test_an_error_of_the_planner_stops_it_too() -> None:
    """What raises inside the block is raised by the block, with nothing left running."""
    store = Store()
    with pytest.raises(KeyError):
        async with in_order() as commits:
            await commits.put(1, store.commit)
            await commits.put(2, store.commit)
            raise KeyError
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_record_that_is_on_two_pages_is_compared_with_the_version_on_the_first() -> None:
    """Law: the first page is committed before the snapshots of the second are read; nothing is created twice."""
    read = Round(msgspec.structs.replace(FEED, removals=False))
    api = Script().on(records("a", "n"), further="p").on(records("n", value=2), page="p", further="q")
    result = await read(api.on(records("n", value=2), page="q", delta="d1"))
    assert (result.created, result.modified, result.unchanged) == (2, 1, 1)
    assert [(event["subject"], event["data"]["revision"]) for event in read.store.events] == [
        ("a", 1),
        ("n", 1),
        ("n", 2),
    ]


async def test_a_record_whose_id_changes_its_type_from_page_to_page_waits_for_its_commit() -> None:
    """Law: the number on the second page is the text that is known since the first, which a delta has brought."""
    read = Round()
    await read(Script().on(records("a"), delta="d1"))
    api = Script().on([{"id": "7", "n": 1}], since="d1", further="p")
    await read(api.on([{"id": 7, "n": 2}], since="d1", page="p", delta="d2"))
    assert [cause[1] for cause in read.causes if cause[0] == "7"] == ["created", "modified"]


async def test_what_was_read_before_a_page_fails_is_committed() -> None:
    """Law: also what was still on its way to the store; the next round does not publish it again."""
    read = Round()
    api = Script().on(records("a", "b"), further="p").on(SourceUnavailable("down"), page="p")
    result = await read(api)
    assert (result.ok, result.created, result.pages) == (False, 2, 1)
    assert len(read.store.events) == 2


# Parts of records in deltas.

PARTS = msgspec.structs.replace(FEED, partial=True)


async def known() -> Round:
    read = Round(PARTS)
    assert (await read(Script().on([{"id": "a", "n": 1, "m": 1}], delta="d1"))).ok
    return read


def delta(*parts: dict[str, object]) -> Script:
    return Script().on(list(parts), since="d1", delta="d2")


async def test_a_new_record_is_asked_for_as_a_whole_and_a_known_one_is_not() -> None:
    """A new record that comes in part is fetched and published whole; a known one is not fetched."""
    read = await known()
    script = delta({"id": "b", "n": 2}, {"id": "a", "n": 2})
    script.whole("/contractTypes/b", {"id": "b", "n": 2, "m": 7})
    result = await read(script)
    assert (result.ok, result.mode, result.created, result.modified) == (True, RoundMode.DELTA, 1, 1)
    assert [event["data"]["record"] for event in read.store.events[1:]] == [
        {"id": "b", "n": 2, "m": 7},
        {"id": "a", "n": 2, "m": 1},
    ]
    assert [path for path, _ in script.asked] == ["/contractTypes", "/contractTypes/b"]


async def test_one_that_is_gone_again_is_kept_as_it_came() -> None:
    """A new record that is already gone is published as the delta brought it."""
    read = await known()
    result = await read(delta({"id": "b", "n": 2}).on(SourceRefused("gone", status=410), path="/contractTypes/b"))
    assert (result.created, read.store.events[-1]["data"]["record"]) == (1, {"id": "b", "n": 2})


@pytest.mark.parametrize("failure", [SourceUnavailable("503"), SourceRefused("403", status=403)])
async def test_one_that_cannot_be_asked_for_fails_the_round(failure: Exception) -> None:
    """If a new record cannot be fetched, the round fails and the token stays."""
    read = await known()
    result = await read(delta({"id": "b", "n": 2}).on(failure, path="/contractTypes/b"))  # type: ignore[arg-type] # one of ours
    assert (result.ok, read.kept, len(read.store.events)) == (False, "d1", 1)
    assert json.loads(read.store.state.round or "")["ok"] is False


async def test_an_id_that_leads_to_another_path_is_kept_as_it_came() -> None:
    """A record whose id leads to another path is not fetched, and published as it came."""
    read = await known()
    script = delta({"id": "..", "n": 2})
    assert ((await read(script)).created, [path for path, _ in script.asked]) == (1, ["/contractTypes"])
    assert read.store.events[-1]["data"]["record"] == {"id": "..", "n": 2}


async def test_an_answer_about_another_record_completes_nothing() -> None:
    """An answer with another id does not complete a record; it is published as the delta brought it."""
    read = await known()
    result = await read(delta({"id": "b", "n": 2}).whole("/contractTypes/b", {"id": "a", "n": 9, "m": 9}))
    assert (result.ok, result.created, result.modified) == (True, 1, 0)
    assert read.store.events[-1]["data"]["record"] == {"id": "b", "n": 2}


EARLIER, LATER = ({"lastModifiedAt": f"2025-03-01T{hour}:00:00Z"} for hour in ("09", "10"))


@pytest.mark.parametrize(
    ("part", "whole", "told"),
    [
        (LATER, EARLIER, {"n": 2, "m": 7, **LATER}),
        (EARLIER, LATER, {"n": 1, "m": 7, **LATER}),
        (LATER, LATER, {"n": 2, "m": 7, **LATER}),
        (LATER, {}, {"n": 2, "m": 7, **LATER}),
        ({}, EARLIER, {"n": 2, "m": 7, **EARLIER}),
    ],
)
async def test_a_whole_record_that_is_older_does_not_undo_its_part(
    part: dict[str, str], whole: dict[str, str], told: dict[str, object]
) -> None:
    """A new record from a backend that lags is published with what the delta said of it."""
    read = await known()
    script = delta({"id": "b", "n": 2, **part}).whole("/contractTypes/b", {"id": "b", "n": 1, "m": 7, **whole})
    assert ((await read(script)).created, read.kept) == (1, "d2")
    assert read.store.events[-1]["data"]["record"] == {"id": "b", **told}


async def test_a_whole_record_that_its_part_agrees_with_is_published_as_it_was_received() -> None:
    """Laying the part over it would change nothing but its bytes."""
    read = await known()
    script = delta({"id": "b", "n": 1.0}).answer(b'{ "m":7, "id":"b", "n":1 }', path="/contractTypes/b")
    assert (await read(script)).created == 1
    assert read.store.snapshots["b"].raw == b'{ "m":7, "id":"b", "n":1 }'


async def test_a_whole_record_that_is_older_and_cannot_be_used_completes_nothing() -> None:
    """An older whole record with a key twice leaves the part as it came; the round goes on."""
    read = await known()
    script = delta({"id": "b", "n": 2, **LATER})
    script.answer(b'{"id":"b","n":1,"n":0,"lastModifiedAt":"2025-03-01T09:00:00Z"}', path="/contractTypes/b")
    result = await read(script)
    assert (result.ok, result.created, result.quarantined) == (True, 1, 0)
    assert read.store.events[-1]["data"]["record"] == {"id": "b", "n": 2, **LATER}


async def removed(last: bytes) -> Round:
    """A feed in which the record "a" was removed, and these are its last bytes."""
    read = await known()
    read.store.snapshots["a"] = Snapshot(2, 1, last, removed=True)
    return read


async def test_one_that_returns_is_asked_for_as_a_whole() -> None:
    """A record that returns in part after its removal is published as it is now, without fields of its last version."""
    read = await removed(b'{"id":"a","n":1,"m":1}')
    result = await read(delta({"id": "a", "n": 2}).whole("/contractTypes/a", {"id": "a", "n": 2, "o": 3}))
    assert (result.ok, result.created) == (True, 1)
    data = read.store.events[-1]["data"]
    assert (data["record"], data["revision"]) == ({"id": "a", "n": 2, "o": 3}, 3)


@pytest.mark.parametrize("feed", [PARTS, msgspec.structs.replace(PARTS, resource=Resource("t", "t", "/contractTypes"))])
async def test_one_that_returns_after_its_last_version_was_lost_is_kept_as_it_came(feed: Feed) -> None:
    """A part of a removed record whose last version could not be read is published as it came, not quarantined."""
    read = await removed(b"")
    script = delta({"id": "a", "n": 2}).on(SourceRefused("gone", status=410), path="/contractTypes/a")
    result = await read(script, feed)
    assert (result.mode, result.created, result.quarantined) == (RoundMode.DELTA, 1, 0)
    assert read.store.events[-1]["data"]["record"] == {"id": "a", "n": 2}


@pytest.mark.parametrize("feed", [PARTS, msgspec.structs.replace(PARTS, resource=Resource("t", "t", "/contractTypes"))])
async def test_a_part_that_cannot_be_completed_is_followed_by_a_full_reading(feed: Feed) -> None:
    """Where single records cannot be requested, the next round reads everything and publishes what the part lacked."""
    read = await known()
    script = delta({"id": "b", "n": 2}).on(SourceRefused("no such path", status=404), path="/contractTypes/b")
    result = await read(script, feed)
    assert (result.mode, result.created, read.store.events[-1]["data"]["record"]) == (
        RoundMode.DELTA,
        1,
        {"id": "b", "n": 2},
    )
    everything: list[dict[str, object]] = [{"id": "a", "n": 1, "m": 1}, {"id": "b", "n": 2, "m": 7}]
    after = await read(Script().on(everything, delta="d3").on([], since="d2", delta="d2"), feed)
    assert (after.mode, after.modified, read.store.events[-1]["data"]["record"]) == (
        RoundMode.RECONCILE,
        1,
        {"id": "b", "n": 2, "m": 7},
    )


# Removals: a record missing from a full round is removed if it is gone, and only then.

FULL = msgspec.structs.replace(FEED, delta=False)
MANY = tuple(f"r{number}" for number in range(300))
POSITIONS = msgspec.structs.replace(FULL, resource=Resource("positions", "position", "/positions"))


async def has(feed: Feed, *subjects: str) -> Round:
    """A feed that has read these records."""
    read = Round(feed)
    assert (await read(Script().on(records(*subjects), path=feed.resource.path))).ok
    return read


def listing(feed: Feed, subjects: Iterable[str], *, gone: Iterable[str] = (), still: Iterable[str] = ()) -> Script:
    """An API that lists these records, answers 404 for those gone, and still has the others."""
    script = Script().on(records(*subjects), path=feed.resource.path)
    for subject in gone:
        script.on(SourceRefused("not there", status=404), path=f"{feed.resource.path}/{subject}")
    for subject in still:
        script.whole(f"{feed.resource.path}/{subject}", records(subject)[0])
    return script


async def test_what_is_gone_is_removed_and_what_the_listing_forgot_is_not() -> None:
    """Missing records that answer 404 are removed; those that still answer stay and are asked for again."""
    read = await has(FULL, *MANY)
    listed, gone, still = MANY[12:], MANY[:7], MANY[7:12]
    result = await read(listing(FULL, listed, gone=gone, still=still))
    assert (result.mode, result.ok, result.removed, result.unchanged) == (RoundMode.FULL, True, 7, 288)
    assert [(subject, kind) for subject, kind, _ in read.causes[300:]] == [(subject, "removed") for subject in gone]
    event = read.store.events[-1]
    assert "record" not in event["data"]
    assert event["data"]["previous"]["id"] == "r6"
    assert (event["data"]["revision"], event["data"]["cause"]) == (2, "full")
    again = await read(listing(FULL, listed, still=still))
    assert (again.ok, again.removed, again.changes) == (True, 0, 0)


async def test_an_integer_is_removed_as_itself() -> None:
    """Of the ids 1 and "1", which have one path, only the one that two readings lack is removed."""
    both = [{"id": 1}, {"id": "1"}, {"id": 2}]
    for gone in both[:2]:
        read = Round(FULL)
        await read(Script().on(both))
        script = Script().on([record for record in both if record != gone])
        script.on(SourceRefused("not there", status=404), path="/contractTypes/1")
        results = [await read(script) for _ in range(2)]
        assert [(result.ok, result.removed, result.unchanged) for result in results] == [(True, 0, 2), (True, 1, 2)]
        assert {asked for asked, _ in script.asked} == {"/contractTypes", "/contractTypes/1", "/contractTypes/2"}
        assert (read.causes[-1], read.store.events[-1]["data"]["previous"]) == (("1", "removed", "full"), gone)


def numbered(*subjects: int | str) -> list[dict[str, object]]:
    return [{"id": subject, "n": 1} for subject in subjects]


def published(read: Round, *, after: int = 0) -> list[tuple[str, str, int]]:
    """Subject, kind and revision of the events after some."""
    return [
        (subject, kind, event["data"]["revision"])
        for (subject, kind, _), event in zip(read.causes[after:], read.store.events[after:], strict=True)
    ]


async def test_an_id_that_changes_its_type_stays_one_record() -> None:
    """Of a record whose id becomes text, and an integer again, the revisions go on; nothing is removed or created."""
    read = Round(FULL)
    await read(Script().on(numbered(1, 2, -3)))
    assert (await read(Script().on(numbered("1", 2, "-3")))).modified == 2
    assert published(read, after=3) == [("1", "modified", 2), ("-3", "modified", 2)]
    assert read.store.events[-1]["data"]["changed"] == ["/id"]
    assert [(await read(Script().on(numbered("1", 2, "-3")))).changes for _ in range(3)] == [0, 0, 0]
    await read(Script().on(numbered(1, 2, "-3")))
    await read(Script().on(numbered("1", 2, "-3")))
    assert published(read, after=5) == [("1", "modified", 3), ("1", "modified", 4)]
    lost = Script().on(numbered(2, "-3")).on(SourceRefused("not there", status=404), path="/contractTypes/1")
    assert (await read(lost)).removed == 1
    assert (published(read)[-1], read.store.state.tombstones) == (("1", "removed", 5), 3)
    await read(Script().on(numbered(1, 2, "-3")))
    assert published(read)[-1][:2] == ("1", "created")


async def test_an_id_that_changes_its_type_in_a_delta_stays_one_record() -> None:
    """A delta takes over the snapshot of the other type, too; the full reading after it has nothing to add."""
    read = Round(FEED)
    await read(Script().on(numbered(1, 2), delta="d1"))
    await read(Script().on(numbered("1"), since="d1", delta="d2"))
    assert published(read, after=2) == [("1", "modified", 2)]
    read.store.mark("resync", "1")
    assert (await read(Script().on(numbered("1", 2), delta="d3"))).changes == 0


async def test_ids_of_both_types_in_one_delta_are_two_records() -> None:
    """A delta of both types takes nothing over, for both exist."""
    read = Round(FEED)
    await read(Script().on(numbered(1, 2), delta="d1"))
    await read(Script().on(numbered("1", 1), since="d1", delta="d2"))
    assert published(read, after=2) == [("1", "created", 1)]


async def test_the_revision_never_falls_when_a_type_changes() -> None:
    """If the other type was removed with a higher revision, revisions go on from that."""
    read = Round(FULL)
    await read(Script().on(numbered(1, 2)))
    read.store.snapshots["1"] = Snapshot(6, 2, b"", removed=True)
    await read(Script().on(numbered("1", 2)))
    assert published(read)[-1] == ("1", "modified", 7)


@pytest.mark.parametrize("first", [1, "1"])
async def test_ids_that_are_listed_in_both_types_are_two_records(first: int | str) -> None:
    """An integer and its digits that stand in one listing, on one page or on two, do not replace each other."""
    second = "1" if first == 1 else 1
    read = Round(FULL)
    await read(Script().on(numbered(2, first)))
    both = Script().on(numbered(2, first), further="p").on(numbered(second), page="p")
    assert (await read(both)).created == 1
    assert [(await read(one)).changes for one in (both, Script().on(numbered(2, second, first)), both)] == [0, 0, 0]
    one_page = Round(FULL)
    await one_page(Script().on(numbered(2)))
    assert (await one_page(Script().on(numbered(2, 1, "1")))).created == 2


async def test_a_snapshot_that_was_moved_before_a_crash_is_compared_in_the_next_round() -> None:
    """If a round ends between the move of a snapshot and the event, the next one publishes the event."""
    read = Round(FULL)
    await read(Script().on(numbered(1, 2)))
    read.store.failing = lambda commit: StoreError("the store is gone") if commit.events else None
    assert not (await read(Script().on(numbered("1", 2)))).ok
    read.store.failing = lambda _: None
    assert (await read(Script().on(numbered("1", 2)))).modified == 1
    assert published(read, after=2) == [("1", "modified", 2)]


async def test_a_record_that_returns_is_created_and_goes_on_counting() -> None:
    """A removed record that returns is created with the next revision, even with the same content."""
    read = await has(FULL, "a", "b")
    await read(listing(FULL, ["a"], gone=["b"]))
    result = await read(listing(FULL, ["a", "b"]))
    assert (result.created, result.unchanged) == (1, 1)
    assert [
        (kind, event["data"]["revision"]) for (_, kind, _), event in zip(read.causes, read.store.events, strict=True)
    ][-2:] == [("removed", 2), ("created", 3)]
    assert len({event["id"] for event in read.store.events}) == 4


async def test_without_a_single_record_endpoint_a_second_full_reading_decides() -> None:
    """Without a single-record endpoint a record is removed when two readings in a row lack it."""
    read = await has(POSITIONS, "a", "b", "c")
    assert (await read(listing(POSITIONS, ["a"]))).removed == 0
    assert (await read(listing(POSITIONS, ["a", "b"]))).removed == 1
    assert read.causes[-1][:2] == ("c", "removed")
    assert (await read(listing(POSITIONS, ["a"]))).removed == 0
    assert (await read(listing(POSITIONS, ["a"]))).removed == 1
    assert read.causes[-1][:2] == ("b", "removed")
    assert (await read(listing(POSITIONS, ["a"]))).changes == 0


async def test_a_second_full_reading_decides_nothing_before_its_time() -> None:
    """Without single requests, a record is removed only if it is missing for the whole span."""
    read = await has(msgspec.structs.replace(POSITIONS, apart=timedelta(seconds=2)), "a", "b", "c", "d")
    for listed in (["a", "b", "c"], ["a", "b"], ["a"]):
        assert (await read(listing(POSITIONS, listed))).changes == 0
        read.store.now_ms += 600
    read.store.now_ms += 60_000  # since d was first missing; the rounds themselves take time too
    assert (await read(listing(POSITIONS, ["a"]))).removed == 1
    assert read.causes[-1][:2] == ("d", "removed")
    read.store.now_ms += 1_900  # since b and c were first missing
    assert (await read(listing(POSITIONS, ["a"]))).changes == 0
    read.store.now_ms += 60_000
    assert (await read(listing(POSITIONS, ["a"]))).removed == 2


async def test_a_server_whose_clock_is_set_back_delays_no_removal() -> None:
    """If the server's clock is set back, the second full round removes a missing record."""
    read = await has(msgspec.structs.replace(POSITIONS, apart=timedelta(seconds=2)), "a", "b")
    await read(listing(POSITIONS, ["a"]))
    read.store.now_ms -= 3_600_000
    assert (await read(listing(POSITIONS, ["a"]))).removed == 1


@pytest.mark.parametrize("step", [".", "..", "%2e%2E", "x/.."])
async def test_an_id_that_leads_to_another_path_is_removed_by_readings(step: str) -> None:
    """A record whose id leads to another path is not asked for; a second round has to miss it."""
    read = await has(FULL, "a", "b", step)
    script = listing(FULL, ["a"], gone=["b"])
    result = await read(script)
    assert (result.ok, result.removed, read.causes[-1][:2]) == (True, 1, ("b", "removed"))
    assert {path for path, _ in script.asked} == {"/contractTypes", "/contractTypes/a", "/contractTypes/b"}
    assert (await read(listing(FULL, ["a", step]))).changes == 0
    assert (await read(listing(FULL, ["a"]))).removed == 0
    assert (await read(listing(FULL, ["a"]))).removed == 1
    assert read.causes[-1][:2] == (step, "removed")


@pytest.mark.parametrize("odd", ["x/y", "x\\y", "50%", "a+b", "a;b", "x.", "x "])
async def test_a_404_for_an_id_that_servers_read_in_another_way_does_not_say_that_it_is_gone(odd: str) -> None:
    """A record whose id servers decode, cut or refuse is removed by readings, whatever its own path answers."""
    read = await has(FULL, "a", odd)
    script = listing(FULL, ["a"]).on(SourceRefused("no such page", status=404), path=f"/contractTypes/{quote(odd, '')}")
    assert [(await read(one)).changes for one in (script, listing(FULL, ["a", odd]))] == [0, 0]
    assert [(await read(script)).removed for _ in range(2)] == [0, 1]


async def test_an_endpoint_that_does_not_know_what_is_listed_confirms_nothing() -> None:
    """If the single-record endpoint answers 404 for listed records too, a second full reading decides."""
    read = await has(msgspec.structs.replace(FULL, apart=timedelta(seconds=2)), "a", "b", "c")
    missing = listing(FULL, ["a"], gone=["a", "b", "c"])
    results = []
    for script in (missing, listing(FULL, ["a", "b"], gone=["a", "b", "c"]), missing, missing):
        read.store.now_ms += 60_000
        results.append(await read(script))
    assert [(result.ok, result.removed) for result in results] == [(True, 0), (True, 1), (True, 0), (True, 1)]
    assert [subject for subject, kind, _ in read.causes if kind == "removed"] == ["c", "b"]


async def test_a_listed_record_that_cannot_be_requested_confirms_nothing() -> None:
    """If it is not known whether the endpoint has listed records, the round fails and removes nothing."""
    read = await has(FULL, "a", "b")
    script = listing(FULL, ["a"], gone=["b"]).on(SourceUnavailable("no answer"), path="/contractTypes/a")
    result = await read(script)
    assert (result.ok, result.removed, result.error) == (False, 0, "no answer")
    assert (await read(listing(FULL, ["a"], gone=["b"]))).removed == 1


async def test_an_id_that_leads_to_another_path_is_not_removed_before_its_time() -> None:
    """Such a record is not removed within the span; records that can be asked for are."""
    read = await has(msgspec.structs.replace(FULL, apart=timedelta(milliseconds=500)), "a", "b", "..")
    assert (await read(listing(FULL, ["a", "b"]))).removed == 0
    read.store.now_ms += 400  # since it was first missing; the round itself takes time too
    assert (await read(listing(FULL, ["a"], gone=["b"]))).removed == 1
    read.store.now_ms += 60_000
    assert (await read(listing(FULL, ["a"]))).removed == 1
    assert [subject for subject, kind, _ in read.causes if kind == "removed"] == ["b", ".."]


@pytest.mark.parametrize("archived", ["a", "b", "c"])
async def test_an_endpoint_that_lacks_some_of_what_is_listed_confirms_nothing(archived: str) -> None:
    """If the single-record endpoint answers 404 for one listed record, a 404 for a missing one proves nothing."""
    read = await has(FULL, "a", "b", "c", "d")
    script = listing(FULL, ["a", "b", "c"], gone=["d", archived])
    assert [(await read(script)).removed for _ in range(2)] == [0, 1]


async def test_what_an_endpoint_was_found_to_lack_counts_for_a_day() -> None:
    """Once it has lacked a listed record, its 404 proves nothing for a day; after that it is tried again."""
    read = await has(FULL, "a", "b", "c", "d")
    found_out, honest = (listing(FULL, ["a", "b"], gone=["c", "d", *lacked]) for lacked in (["a"], []))
    back = listing(FULL, ["a", "b", "c", "d"])
    assert [(await read(one)).changes for one in (found_out, back, honest, back)] == [0, 0, 0, 0]
    assert [(await read(honest)).removed for _ in range(2)] == [0, 2]
    assert (await read(back)).created == 2
    read.store.now_ms += 24 * 3600 * 1000
    assert (await read(honest)).removed == 2


async def test_an_unreadable_record_is_removed_at_once_although_the_endpoint_has_lacked_another() -> None:
    """It cannot be marked as missing, so two answers of the endpoint decide about it."""
    read = await has(FULL, "a", "b", "c")
    await read(listing(FULL, ["a", "b"], gone=["a", "c"]))
    read.store.snapshots["c"] = Snapshot(1, 1, b"cut", unreadable="cut")
    assert (await read(listing(FULL, ["a", "b"], gone=["c"]))).removed == 1


NO_RECORDS = [
    b"<!doctype html><title>app</title>",
    b"{}",
    b'{"results":[]}',
    b'{"error":"not found"}',
    b'{"id":"a"}',
    b"",
]


@pytest.mark.parametrize("answer", NO_RECORDS)
async def test_an_answer_that_is_not_the_record_leaves_it_to_a_second_reading(answer: bytes) -> None:
    """A 200 without the record says neither that it is there nor that it is gone."""
    read = await has(FULL, "a", "b")
    script = listing(FULL, ["a"]).answer(answer, path="/contractTypes/b")
    for one in (script, listing(FULL, ["a", "b"]), script):
        assert (await read(one)).changes == 0
    assert (await read(script)).removed == 1


async def test_a_second_answer_that_is_not_the_record_leaves_it_to_a_second_reading() -> None:
    """Nor does such an answer after a 404."""
    read = await has(FULL, "a", "b")
    script = TwoBackends({"/contractTypes/b": b"{}"}).on(records("a"))
    script.on(SourceRefused("not there", status=404), path="/contractTypes/b")
    assert [(await read(script)).removed for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("answer", [BOM_UTF8 + b'{"id":"b"}', b' {"n":{"id":1},"id":"b"}'])
async def test_the_record_is_known_in_any_form(answer: bytes) -> None:
    """A record that the endpoint has is not removed; a byte order mark and other fields do not count."""
    read = await has(FULL, "a", "b")
    script = listing(FULL, ["a"]).answer(answer, path="/contractTypes/b")
    assert [(await read(script)).removed for _ in range(3)] == [0, 0, 0]


async def test_a_record_whose_own_answer_has_its_id_as_text_is_there() -> None:
    """An endpoint may write the id 7 as "7"."""
    read = Round(FULL)
    await read(Script().on([{"id": 6}, {"id": 7}]))
    script = Script().on([{"id": 6}]).answer(b'{"id":"7"}', path="/contractTypes/7")
    assert [(await read(script)).removed for _ in range(3)] == [0, 0, 0]


class TwoBackends(Script):
    """An API that may answer a record's second request differently; records the time of each request."""

    def __init__(self, second: dict[str, bytes]) -> None:
        super().__init__()
        self.times: dict[str, list[float]] = {}
        self._second = second

    async def get(self, path: str, params: Params) -> bytes:
        times = self.times.setdefault(path, [])
        times.append(asyncio.get_running_loop().time())
        if len(times) == 2 and path in self._second:
            self.answer(self._second[path], path=path)
        return await super().get(path, params)


def two_backends(listed: Iterable[str], gone: Iterable[str], *, back: Iterable[str] = ()) -> TwoBackends:
    """An API that lists some records, first answers 404 for others, and then has some of these again."""
    script = TwoBackends({f"/contractTypes/{subject}": b'{"id":"%b"}' % subject.encode() for subject in back})
    script.on(records(*listed))
    for subject in gone:
        script.on(SourceRefused("not there", status=404), path=f"/contractTypes/{subject}")
    return script


async def test_a_removal_takes_two_answers_some_time_apart() -> None:
    """Each missing record is asked for twice, with one wait between all first and all second requests."""
    apart = timedelta(milliseconds=200)
    read = await has(msgspec.structs.replace(FULL, apart=apart), *MANY)
    script = two_backends(["r0"], MANY[1:])
    read.store.mark("released", "yes")
    result = await read(script)
    assert (result.ok, result.removed) == (True, 299)
    listed = {"/contractTypes", "/contractTypes/r0"}
    asked = [times for path, times in script.times.items() if path not in listed]
    assert all(len(times) == 2 and times[1] - times[0] >= apart.total_seconds() for times in asked)
    assert max(first for first, _ in asked) <= min(second for _, second in asked)


async def test_what_a_cache_had_kept_before_the_question_removes_nothing() -> None:
    """A cached 404 from before the round fails the round and removes nothing; one that was made since counts."""
    read = await has(FULL, "a", "b")
    kept = SourceRefused("GET /contractTypes/b: the API answered 404", status=404, age=14)
    result = await read(listing(FULL, ["a"]).on(kept, path="/contractTypes/b"))
    assert (result.ok, result.removed) == (False, 0)
    assert "a cache on the way has kept that for 14 s" in (result.error or "")
    fresh = SourceRefused("GET /contractTypes/b: the API answered 404", status=404, age=1)
    script = listing(FULL, ["a"]).on(fresh, path="/contractTypes/b")
    read.clock.seconds = lambda: 3.0 * len(script.asked)
    result = await read(script)
    assert (result.ok, result.removed) == (True, 1)


async def test_a_second_answer_that_is_a_copy_of_the_first_confirms_nothing() -> None:
    """A 404 that a cache has kept since the first request is no second answer; then a second full reading decides."""
    read = await has(msgspec.structs.replace(FULL, apart=timedelta(milliseconds=20)), "a", "b")
    copy = SourceRefused("GET /contractTypes/b: the API answered 404", status=404, age=1)
    listed = listing(FULL, ["a"]).on(copy, path="/contractTypes/b")
    result = await read(listed)
    assert (result.ok, result.removed) == (True, 0)
    read.store.now_ms += 60_000
    assert [(await read(one)).changes for one in (listing(FULL, ["a", "b"]), listed)] == [0, 0]
    read.store.now_ms += 60_000
    assert (await read(listed)).removed == 1


async def test_a_record_that_one_backend_still_has_stays() -> None:
    """A 404 followed by a 200 removes nothing, and the next full round asks again."""
    read = await has(FULL, *MANY)
    result = await read(two_backends(MANY[3:], MANY[:3], back=["r1"]))
    assert (result.ok, result.removed) == (True, 2)
    assert sorted(subject for subject, kind, _ in read.causes if kind == "removed") == ["r0", "r2"]
    again = await read(listing(FULL, MANY[3:], gone=["r1"]))
    assert again.removed == 1


def test_the_answers_of_a_removal_are_two_seconds_apart() -> None:
    """The default span between the two requests is two seconds."""
    assert Feed("a/b", FEED.resource, FEED.query, "urn:x", "t").apart == timedelta(seconds=2)


@pytest.mark.parametrize("still", [(MANY[0],), (MANY[299],)], ids=["among the first", "among the last"])
@pytest.mark.parametrize("feed", [FULL, POSITIONS], ids=["by its own path", "by readings"])
async def test_one_doubtful_record_among_many_leaves_the_reading_unsettled(feed: Feed, still: tuple[str]) -> None:
    """One missing record that still exists, among many batches, leaves the removals incomplete."""
    one, seen = _Absent(MANY), SeenKeys()
    script = listing(feed, [], gone=set(MANY) - set(still), still=still)
    if feed is POSITIONS:
        one.snapshots |= {key: Snapshot(1, 1, b"{}", missing=key not in still) for key in MANY}
    settling = partial(
        settle_absent, feed, one, script.get, seen, anything_read=False, released=True, since_marked=None, clock=Clock()
    )
    assert await settling(remove=one.remove, mark=one.mark_missing) == SettledAbsence(
        is_complete=False, awaits_reading=feed is POSITIONS
    )
    assert set(one.snapshots) == set(still)


class _Absent(MemoryStore):
    """A store that knows these records, and applies their removals."""

    def __init__(self, subjects: Iterable[str]) -> None:
        super().__init__()
        self.snapshots = {key: Snapshot(1, 1, b'{"id":"%b"}' % key.encode()) for key in subjects}

    async def absent(self, seen: Container[str], *, most: int, known: int | None = None) -> MissingRecords:
        return msgspec.structs.replace(await super().absent(seen, most=most, known=known), listed={})

    async def known(self, record_keys: list[str]) -> dict[str, Snapshot]:
        return {key: self.snapshots[key] for key in record_keys}

    async def remove(self, gone: Mapping[str, Snapshot]) -> None:
        for key in gone:
            del self.snapshots[key]

    async def mark_missing(self, missing: Mapping[str, Snapshot]) -> None:
        assert set(missing) <= set(self.snapshots)


async def test_a_record_that_cannot_be_asked_for_keeps_no_other() -> None:
    """If one record cannot be asked for, the others are removed; the round fails and the record stays."""
    read = await has(FULL, *MANY)
    read.store.mark("released", "yes")
    failing = MANY[266]  # of the second batch
    script = listing(FULL, [MANY[0]], gone=set(MANY[1:]) - {failing})
    result = await read(script.on(SourceUnavailable("no answer"), path=f"/contractTypes/{failing}"))
    assert (result.ok, result.removed, result.error) == (False, 298, "no answer")


@pytest.mark.parametrize("failure", [SourceUnavailable("no answer"), SourceRefused("forbidden", status=403)])
@pytest.mark.parametrize("answers_once", [False, True], ids=["the first request", "the second request"])
async def test_a_record_that_can_never_be_asked_for_keeps_no_other(failure: PollerError, answers_once: bool) -> None:
    """A record whose requests always fail does not stop the removal of the others."""
    read = await has(FULL, "a", "b", "c", "d")
    script = listing(FULL, ["a"], gone=["b", "d"] + ["c"] * answers_once)
    script = (
        _FailsLater(script, "/contractTypes/c", failure)
        if answers_once
        else script.on(failure, path="/contractTypes/c")
    )
    result = await read(script)
    assert (result.ok, result.removed, result.error) == (False, 2, str(failure))
    assert sorted(subject for subject, kind, _ in read.causes if kind == "removed") == ["b", "d"]
    assert (await read(listing(FULL, ["a"], gone=["c"]))).removed == 1


class _FailsLater(Script):
    """An API that answers the first request of one path, and fails the later ones."""

    def __init__(self, script: Script, path: str, failure: PollerError) -> None:
        super().__init__()
        self._answers, self._path, self._failure = script._answers, path, failure

    async def get(self, path: str, params: Params) -> bytes:
        if (path, {}) in self.asked:
            self.on(self._failure, path=self._path)
        return await super().get(path, params)


@pytest.mark.parametrize("read_again_after", [600, 60_000], ids=["too soon", "later"])
async def test_a_release_lasts_until_the_second_reading_where_that_decides(read_again_after: int) -> None:
    """Without single requests a release lasts until the second round has removed the records."""
    read = await has(msgspec.structs.replace(POSITIONS, apart=timedelta(seconds=2)), "a", *MANY)
    gone = listing(POSITIONS, ["a"])
    assert not (await read(gone)).ok
    read.store.mark("released", "yes")
    assert ((await read(gone)).removed, read.store.state.held, read.store.state.released) == (0, None, True)
    read.store.now_ms += read_again_after
    assert (await read(gone)).removed == (300 if read_again_after > 2_000 else 0)
    read.store.now_ms += 60_000
    assert (await read(gone)).removed == (0 if read_again_after > 2_000 else 300)
    assert not read.store.state.released
    assert not (await read(listing(POSITIONS, []))).ok


async def test_a_release_that_finds_all_records_back_is_used_up() -> None:
    """A release ends with the round that finds the records back; later removals are held again."""
    read = await has(POSITIONS, "a", *MANY)
    await read(listing(POSITIONS, ["a"]))
    read.store.mark("released", "yes")
    assert (await read(listing(POSITIONS, ["a", *MANY]))).ok
    assert not read.store.state.released
    assert not (await read(listing(POSITIONS, ["a"]))).ok


@pytest.mark.parametrize("feed", [FULL, POSITIONS], ids=["by its own path", "by readings"])
async def test_a_release_lets_through_what_was_missing_and_little_more(feed: Feed) -> None:
    """A release covers as many records as were held; if clearly more are missing, these are held again."""
    read = await has(feed, *MANY)
    assert not (await read(listing(feed, MANY[100:]))).ok
    read.store.mark("released", "1")
    read.store.mark("released_missing", read.store.fields[b"held_missing"].decode())
    held = await read(listing(feed, []))
    assert (held.ok, held.removed, held.held) == (False, 0, held.error)
    assert "300 of 300 known records are missing from the full reading, 100 when they were released" in (
        held.error or ""
    )
    assert (read.store.state.released, read.store.fields[b"held_missing"]) == (False, b"300")
    read.store.mark("released", "1")
    read.store.mark("released_missing", "300")
    results = []
    for _ in range(2):
        read.store.now_ms += 60_000
        results.append((await read(listing(feed, MANY[120:], gone=MANY[:120]))).removed)
    assert sum(results) == 120
    assert (read.store.state.held, read.store.state.released) == (None, False)
    assert b"held_missing" not in read.store.fields


async def test_nothing_for_everything_is_held_until_it_is_released() -> None:
    """An empty listing removes nothing and fails the round, until an operator releases it."""
    read = await has(FULL, "a", "b")
    held = await read(listing(FULL, []))
    assert (held.ok, held.removed) == (False, 0)
    assert "2 of 2 known records are missing" in (held.error or "")
    assert "poller release acme/contractTypes" in (held.error or "")
    assert read.store.state.held == held.error
    read.store.mark("released", "yes")
    result = await read(listing(FULL, [], gone=["a", "b"]))
    assert (result.ok, result.removed) == (True, 2)
    assert (read.store.state.held, read.store.state.released) == (None, False)


async def test_a_change_that_a_held_reconcile_did_not_list_comes_with_a_delta() -> None:
    """A held reconcile reads a delta from the former token, which brings a change that the listing lacked."""
    read = Round(FEED)
    await read(Script().on(records("a", "b"), delta="d1"))
    read.clock.pass_by(timedelta(hours=24))
    held = await read(Script().on([], delta="d2").on(records("a", value=2), since="d1", delta="d3"))
    assert (held.mode, held.ok, held.modified, read.kept) == (RoundMode.RECONCILE, False, 1, "d3")


async def test_a_held_reconcile_is_repeated_some_times_and_heals() -> None:
    """Five further full readings follow a held one, with deltas beside them; the first that lacks nothing ends it."""
    read = Round(FEED)
    await read(Script().on(records("a", "b"), delta="d0"))
    read.clock.pass_by(timedelta(hours=24))
    modes = []
    for number in range(7):
        script = Script().on([], delta="x").on(records("a", value=number), since=f"d{number}", delta=f"d{number + 1}")
        result = await read(script)
        modes.append(result.mode)
        assert (result.ok, result.removed, read.kept) == (number == 6, 0, f"d{number + 1}")
    assert modes == [RoundMode.RECONCILE] * 6 + [RoundMode.DELTA]
    assert "known records are missing" in str(read.store.state.held)
    read.clock.pass_by(timedelta(hours=24))
    await read(Script().on([], delta="x").on([], since="d7", delta="d8"))
    whole = Script().on([*records("a", value=6), *records("b")], delta="x").on([], since="d8", delta="d9")
    result = await read(whole)
    assert (result.mode, result.ok, result.changes, read.kept) == (RoundMode.RECONCILE, True, 0, "d9")
    assert read.store.state.held is None
    assert (await read(Script().on([], since="d9"))).mode is RoundMode.DELTA


async def test_a_change_that_a_held_resync_did_not_list_comes_with_the_next_reading() -> None:
    """A held resync stores no token: the feed is read in full until nothing is held."""
    read = Round(FEED)
    await read(Script().on(records("a", "b"), delta="d1"))
    held = await read(Script().on(SourceRefused("expired", status=410), since="d1").on([], delta="d2"))
    assert (held.mode, held.ok, read.kept) == (RoundMode.RESYNC, False, None)
    whole = [*records("a", value=2), *records("b")]
    result = await read(Script().on(whole, delta="d3").on([], since="d2", delta="d2"))
    assert (result.mode, result.ok, result.modified, read.kept) == (RoundMode.FULL, True, 1, "d3")
    assert read.store.state.held is None


async def test_a_held_feed_heals_when_the_records_are_back() -> None:
    """If all records are back, no event is published and nothing is held."""
    read = await has(FULL, "a", "b")
    await read(listing(FULL, []))
    result = await read(listing(FULL, ["a", "b"]))
    assert (result.ok, result.changes, read.store.state.held) == (True, 0, None)


async def test_too_many_at_once_are_held() -> None:
    """Too many removals are held; new and changed records of the same round are published."""
    read = await has(FULL, *MANY)
    held = await read(listing(FULL, [*MANY[60:], "new"]))
    assert (held.ok, held.removed, held.created) == (False, 0, 1)
    assert "60 of 301" in (held.error or "")


async def test_a_delta_feed_that_is_released_is_read_in_full_at_once() -> None:
    """After a release the next round is a full one."""
    read = await has(FEED, "a")
    read.store.mark("delta_token", "d1")
    read.store.mark("released", "yes")
    result = await read(Script().on(records("a"), delta="x").on([], since="d1", delta="d2"))
    assert (result.mode, read.kept) == (RoundMode.RECONCILE, "d2")


async def test_reconcile_finds_what_deltas_never_show() -> None:
    """Deltas show no removals; a regular reconcile finds them."""
    feed = msgspec.structs.replace(FEED, reconcile=timedelta(hours=24))
    read = Round(feed)
    await read(Script().on(records("a", "b"), delta="d1"))
    quiet = Script().on([], since="d1", delta="d1")
    assert (await read(quiet)).mode == RoundMode.DELTA
    read.clock.pass_by(timedelta(hours=24))
    result = await read(listing(FEED, ["a"], gone=["b"]))
    assert (result.mode, result.removed) == (RoundMode.RECONCILE, 1)


@pytest.mark.parametrize("failure", [SourceUnavailable("no answer"), SourceRefused("forbidden", status=403)])
async def test_what_cannot_be_confirmed_is_not_removed(failure: SourceRefused | SourceUnavailable) -> None:
    """A record that cannot be asked for stays, and the round fails."""
    read = await has(FULL, "a", "b")
    script = listing(FULL, ["a"]).on(failure, path="/contractTypes/b")
    result = await read(script)
    assert (result.ok, result.removed, result.error) == (False, 0, str(failure))


class Silent(Script):
    """An API whose single-record endpoint does not answer for some records."""

    def __init__(self, silent: Collection[str]) -> None:
        """Take the ids of those records."""
        super().__init__()
        self.silent = silent
        self.singles: list[str] = []
        self.most = self._now = self.unanswered = 0
        self.answers = sys.maxsize  # errors; then there is none, as long as one waits

    async def get(self, path: str, params: Params) -> bytes:
        """As there; a single record is gone, or there is no answer."""
        name = path.removeprefix("/contractTypes/")
        if name in (path, "a"):
            return await super().get(path, params)
        self.singles.append(name)
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0)
        self._now -= 1
        if name in self.silent:
            self.unanswered += 1
            if self.unanswered > self.answers:
                await asyncio.Event().wait()
            raise SourceUnavailable("no answer")
        raise SourceRefused("gone", status=404)


async def test_an_endpoint_that_does_not_answer_is_asked_little() -> None:
    """After three requests without an answer, one after the other, no more are made; nothing is removed."""
    names = [f"r{number}" for number in range(30)]
    read = await has(FULL, "a", *names)
    script = Silent(names)
    script.on(records("a"))
    result = await read(script)
    assert (result.ok, result.removed, result.error) == (False, 0, "no answer")
    assert (len(set(script.singles)), script.most) == (3, 1)


@pytest.mark.parametrize(("silent", "removed"), [({"r2", "r4"}, {4}), ({"r0", "r1", "r2"}, {0, 1, 2, 3})])
async def test_records_that_cannot_be_asked_for_keep_no_others(silent: set[str], removed: set[int]) -> None:
    """If two missing records give no answer, the others are removed; if three, at least when the others come first."""
    names, found, most = [f"r{number}" for number in range(6)], set[int](), 0
    for begun in range(6):
        read = await has(FULL, "a", *names)
        read.clock.pass_by(timedelta(milliseconds=begun))
        script = Silent(silent)
        script.on(records("a")).whole("/contractTypes/a", records("a")[0])
        result = await read(script)
        assert (result.ok, result.error) == (False, "no answer")
        found.add(result.removed)
        most = max(most, script.most)
    assert found <= removed
    assert max(found) == max(removed)
    assert most > 1


async def test_requests_in_flight_are_given_up_with_the_third_that_gives_no_answer() -> None:
    """If the endpoint hangs from the second request on, the round does not wait for all of them."""
    names = [f"r{number}" for number in range(6)]
    for begun in range(6):
        read = await has(FULL, "a", *names)
        read.clock.pass_by(timedelta(milliseconds=begun))
        script = Silent(names[1:])
        script.answers = 3
        script.on(records("a")).whole("/contractTypes/a", records("a")[0])
        async with asyncio.timeout(20):
            result = await read(script)
        assert (result.ok, result.error) == (False, "no answer")


async def test_an_incomplete_reading_removes_nothing() -> None:
    """An incomplete reading removes nothing."""
    read = await has(FULL, "a", "b")
    script = Script().on(records("a"), further="p").on(SourceUnavailable("no answer"), page="p")
    result = await read(script)
    assert (result.ok, result.removed) == (False, 0)
    assert [path for path, _ in script.asked] == ["/contractTypes"] * 2


BROKEN = {
    "half a surrogate": rb'{"id":"b","n":"\ud800"}',
    "a raw control character": b'{"id":"b","n":"a\nb"}',
    "nested": b'{"id":"b","n":%b}' % (b"[" * 1_500 + b"]" * 1_500),
    "not UTF-8": b'{"id":"b","n":"\xff"}',
    "a key twice": b'{"id":"b","n":1,"n":2}',
    "another id as well": b'{"id":"b","id":"x"}',
}
GOOD = b'{"id":"a","n":1}'


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("feed", [FULL, POSITIONS], ids=["by its own path", "by readings"])
async def test_what_is_listed_and_cannot_be_used_is_not_gone(feed: Feed, raw: bytes) -> None:
    """A listed record that is unusable is quarantined, and neither asked for nor removed."""
    read = await has(feed, "a", "b", "c")
    path = feed.resource.path
    for _ in range(3):
        script = Script().page(GOOD, raw, b'{"id":"c","n":1}', path=path)
        result = await read(script)
        assert (result.ok, result.quarantined, result.removed, result.unidentified) == (True, 1, 0, 0)
        assert [asked for asked, _ in script.asked] == [path]
    assert [kind for _, kind, _ in read.causes] == ["created"] * 3


async def test_a_record_that_was_there_unusable_was_there() -> None:
    """A listing of an unusable record ends its first miss: two more misses remove it."""
    read = await has(POSITIONS, "a", "b")
    without = Script().page(GOOD, path="/positions")
    await read(without)
    await read(Script().page(GOOD, BROKEN["not UTF-8"], path="/positions"))
    assert [(await read(without)).removed for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("raw", [b"null", b'{"n":1}', b'{"id":null}', b'{"id":"\xff"}', rb'{"id":"\ud800"}', b"[1]"])
@pytest.mark.parametrize("feed", [FULL, POSITIONS], ids=["by its own path", "by readings"])
async def test_a_reading_that_holds_a_record_without_an_id_removes_nothing(feed: Feed, raw: bytes) -> None:
    """A full round with a record without an id removes nothing; the next one without such a record does."""
    read = await has(feed, "a", "b")
    path = feed.resource.path
    for _ in range(2):
        script = Script().page(GOOD, raw, path=path)
        result = await read(script)
        assert (result.ok, result.removed, result.unidentified, read.store.state.unidentified) == (True, 0, 1, 1)
        assert [asked for asked, _ in script.asked] == [path]
    results = [await read(listing(feed, ["a"], gone=["b"])) for _ in range(2)]
    assert (sum(result.removed for result in results), read.store.state.unidentified) == (1, 0)


async def test_what_is_held_or_released_waits_for_a_reading_that_can_tell() -> None:
    """A full round with a record without an id ends neither what is held nor a release."""
    read = await has(FULL, "a", "b")
    await read(listing(FULL, []))
    held = read.store.state.held
    assert held is not None
    await read(Script().page(b"null"))
    assert read.store.state.held == held
    read.store.mark("released", "yes")
    await read(Script().page(b"null"))
    assert read.store.state.released
    assert (await read(listing(FULL, [], gone=["a", "b"]))).removed == 2
    assert not read.store.state.released


async def test_switched_off_nothing_is_looked_for() -> None:
    """With removals off, absent records are not looked for."""
    read = await has(msgspec.structs.replace(FULL, removals=False), "a", "b")
    result = await read(listing(FULL, ["a"]))
    assert (result.ok, result.removed) == (True, 0)


async def test_a_qualification_that_is_gone_takes_its_achievements_with_it_after_confirmation() -> None:
    """A 404 of a substream counts as empty; a second round has to confirm it before removals."""
    one, two = "0aa7d5cc-3d2b-4f5e-8a73-0d7d5a1b1b51", "0aa7d5cc-3d2b-4f5e-8a73-0d7d5a1b1b52"
    feed = msgspec.structs.replace(
        FULL, resource=RESOURCES["achievements"], qualifications=(one, two), breaker=RemovalGuard(None, None)
    )
    paths = {name: f"/qualifications/{name}/achievements" for name in (one, two)}

    def api(*, gone: bool) -> Script:
        script = Script().on([{"id": "x", "qualificationID": one}], path=paths[one])
        absent = SourceRefused("no such qualification", status=404)
        return script.on(absent if gone else [{"id": "y", "qualificationID": two}], path=paths[two])

    read = Round(feed)
    await read(api(gone=False))
    assert (await read(api(gone=True))).removed == 0
    assert (await read(api(gone=True))).removed == 1
    assert read.store.events[-1]["source"].endswith(paths[two])
    assert read.causes[-1][:2] == ("y", "removed")


def test_the_breaker_holds_what_looks_like_a_fault() -> None:
    """The removal guard holds a share that is too large, and an empty listing; the table has the limits."""
    default = RemovalGuard()
    table = [
        (default, 0, 100, True, False),
        (default, 50, 60, True, False),  # few
        (default, 51, 500, True, True),  # more than a tenth
        (default, 51, 511, True, False),
        (default, 1, 1, False, True),  # nothing for everything
        (RemovalGuard(None, 3), 3, 10, True, False),
        (RemovalGuard(None, 3), 4, 10, True, True),
        (RemovalGuard(None, None), 10, 10, False, False),  # off
    ]
    for breaker, missing, live, anything, holds in table:
        assert breaker.holds(missing=missing, live=live, anything_read=anything) is holds


@pytest.mark.parametrize(("feed", "subject"), [(FULL, "r1"), (POSITIONS, "r1")])
async def test_what_cannot_be_read_is_removed_only_where_the_api_says_so(feed: Feed, subject: str) -> None:
    """A record with an unreadable snapshot is removed if its request answers 404; else it stays."""
    read = await has(feed, subject, "r2")
    known = read.store.snapshots[subject]
    read.store.snapshots[subject] = msgspec.structs.replace(known, raw=b"?", unreadable="cut")
    for _ in range(3):
        result = await read(listing(feed, ["r2"], gone=[subject] if feed is FULL else []))
        assert result.ok, result.error
    assert [kind for _, kind, _ in read.causes[2:]] == (["removed"] if feed is FULL else [])
    if feed is POSITIONS:
        assert read.store.snapshots[subject].unreadable
        assert (await read(listing(feed, [subject, "r2"]))).ok
        assert [kind for _, kind, _ in read.causes[2:]] == ["modified"]


async def test_removed_records_are_counted() -> None:
    """Removed records are counted; one that returns is no longer counted."""
    read = await has(FULL, "r1", "r2", "r3")
    counted = [read.store.state.tombstones]
    assert (await read(listing(FULL, ["r2"], gone=["r1", "r3"]))).removed == 2
    counted.append(read.store.state.tombstones)
    assert (await read(listing(FULL, ["r1", "r2"]))).created == 1
    counted.append(read.store.state.tombstones)
    assert counted == [None, 2, 1]


class _Checked(MemoryStore):
    """A store that checks the snapshots of absent records, and no others, as the real one does."""

    async def absent(self, seen: Container[str], *, most: int, known: int | None = None) -> MissingRecords:
        absent = await super().absent(seen, most=most, known=known)
        return msgspec.structs.replace(absent, some={key: checked(one) for key, one in absent.some.items()})


async def test_a_snapshot_that_is_no_json_is_removed_once_its_record_is_gone() -> None:
    """A snapshot that is no JSON fails no round; its removal is published without what it was."""
    read = Round(FULL)
    read.store = _Checked()
    await read(Script().on(records("a", "b")))
    read.store.snapshots["b"] = msgspec.structs.replace(read.store.snapshots["b"], raw=b"{not json")
    result = await read(listing(FULL, ["a"], gone=["b"]))
    assert (result.ok, result.removed) == (True, 1)
    assert read.store.events[-1]["data"]["omitted"] == ["previous"]
    assert [raw for raw, _ in read.store.quarantine] == [b"{not json"]
