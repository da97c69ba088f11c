"""What deltas repeat, what they leave in doubt, and in which order they list versions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from poller.changes.full_readings import MOST, DeltaMemory, confirmation_of
from poller.errors import SourceRefused, SourceUnavailable
from poller.source.feed import Feed, RoundMode
from poller.source.paging import Params
from poller.store.feed_state import CONFIRMATION, RECHECK_AT, RECHECKED, SECOND_LOOK, TOKEN_SEQUENCE
from tests.source.round_sides import GONE, Round, Script, records
from tests.source.test_absence import LAG, LAGGING, MINUTE, Moving
from tests.source.test_rechecks import PARTIAL, SOON, due_in, full, settled, version
from tests.source.test_round_failures import jumbled

IN_TURNS = msgspec.structs.replace(LAGGING, slot=timedelta(seconds=30))
NEWEST = msgspec.structs.replace(IN_TURNS, newest=True)


def shown(read: Round, subject: str = "n") -> list[Any]:
    """What was published of a record, in order."""
    return [event["data"]["record"]["n"] for event in read.store.events if event["subject"] == subject]


async def pass_by(read: Round, clock: Moving, span: timedelta = MINUTE) -> None:
    """Let time pass, also for the store."""
    clock.pass_by(span)
    read.store.now_ms += int(span.total_seconds() * 1000)


class Slow(Script):
    """The last page of its delta comes after some time.

    Attributes:
        takes: that time.
    """

    def __init__(self, clock: Moving, takes: timedelta) -> None:
        super().__init__()
        self._clock, self.takes = clock, takes

    async def get(self, path: str, params: Params) -> bytes:
        if dict(params).get("pageToken") == "r":
            self._clock.pass_by(self.takes)
            self.takes = timedelta()
        return await super().get(path, params)


@pytest.mark.parametrize("takes", [LAG - timedelta(seconds=1), 2 * LAG])
async def test_what_a_long_delta_has_brought_is_not_written_over(takes: timedelta) -> None:
    """The second page of the listing was requested before the delta; what that brought first is no repetition."""
    read, clock = await settled(IN_TURNS, "a", "n")
    full(read)
    api = Slow(clock, takes).on(records("a"), further="p", delta="d5").on(records("n"), page="p")
    api.on(records("n", value=2), since="d1", further="q").on(records("x"), since="d1", page="q", further="r")
    api.on(records("y"), since="d1", page="r", delta="d2").on([], since="d2", delta="d2")
    result = await read(api)
    assert (result.ok, result.mode, shown(read)) == (True, RoundMode.RECONCILE, [1, 2])


class Strict(Script):
    """It answers one delta a round."""

    def __init__(self) -> None:
        super().__init__()
        self._deltas = 0

    async def get(self, path: str, params: Params) -> bytes:
        self._deltas += "sinceDeltaToken" in dict(params)
        if self._deltas > 1 and "sinceDeltaToken" in dict(params):
            raise SourceUnavailable("too many deltas")
        return await super().get(path, params)


def test_a_delta_that_failed_does_not_end_a_repetition() -> None:
    """It may not have come to what the others repeat; one that was read to its end and lacks it ends it."""
    clock = Moving()
    memory = DeltaMemory(clock)
    for is_whole in (True, False, False, True):
        memory.start("d1")
        if is_whole:
            memory.add(["n"])
            memory.finish("d1")
        clock.pass_by(timedelta(seconds=6))
    assert memory.is_repeated("n", timedelta(seconds=20))
    memory.start("d1")
    memory.finish("d1")
    memory.start("d1")
    memory.add(["n"])
    assert not memory.is_repeated("n", timedelta(seconds=20))


@pytest.mark.parametrize("forgets", [False, True], ids=["a daemon", "another process each time"])
async def test_a_restored_version_that_deltas_repeat_is_published(forgets: bool) -> None:
    """Law: a delta that failed does not end a repetition, and a version that was held before is not new."""
    read, clock = await settled(NEWEST, "a")
    await read(Script().on([version("n", 9)], since="d1", delta="d2"))
    modes = []
    for _ in range(20):
        await pass_by(read, clock)
        if forgets:
            read.store.deltas = DeltaMemory(clock)
        api = Strict().on(records("a"), further="p", delta="d3").on([version("n", 1)], page="p")
        for token in ("d2", "d3"):
            api.on([version("n", 1)], since=token, delta="d3")
        result = await read(api)
        assert result.ok
        modes.append(result.mode)
    assert (shown(read), set(modes[-5:])) == ([9, 1], {RoundMode.DELTA})


@pytest.mark.parametrize(
    ("feed", "answer"),
    [
        (IN_TURNS, jumbled("a", "b", value=2).replace(b'"d2"', b'"d1"')),
        (PARTIAL, b'{"results": [{"id": "u", "x": 1, "x": 2}], "deltaToken": "d1"}'),
        (
            IN_TURNS,
            b'{"results": [%s], "deltaToken": "d1"}' % b",".join(msgspec.json.encode(version("b", n)) for n in (9, 1)),
        ),
    ],
    ids=["several records in one", "a part that cannot be used", "two versions"],
)
async def test_readings_for_a_doubt_that_each_delta_repeats_come_to_an_end(feed: Feed, answer: bytes) -> None:
    """The element is one doubt, and not another one each time."""
    read, clock = await settled(feed, "a", "b", "c")
    modes = []
    for _ in range(20):
        modes.append((await read(Script().on(records("a", "b", "c"), delta="d1").answer(answer, since="d1"))).mode)
        await pass_by(read, clock, timedelta(seconds=30))
    assert RoundMode.RECONCILE in modes[:4]
    assert set(modes[-10:]) == {RoundMode.DELTA}


async def test_what_a_delta_leaves_in_doubt_is_looked_for_although_it_fails() -> None:
    """Law: the first of the failing rounds orders the reading, and no later one orders another."""
    read, clock = await settled(IN_TURNS, "a", "b", "c")
    due = []
    for _ in range(4):
        broken = Script().on([version("b", 9), version("b", 1)], since="d1", further="p")
        refused = SourceRefused("no", status=403)
        broken.on(refused, since="d1", page="p").on(records("a", "b", "c"), delta="d9")
        await read(broken)
        due.append(due_in(read))
        await pass_by(read, clock, timedelta(seconds=30))
    assert (due[0], due[-1]) == (SOON, None)


@pytest.mark.parametrize("pages", [1, 2])
@pytest.mark.parametrize(
    ("listed", "looks"),
    [
        ([9, 1], True),
        ([1, 9], True),
        ([5, 9], True),
        ([9, 5], True),
        ([6, 9, 6], True),
        ([6, 9], False),
        ([9, 6], False),
        ([9, 9], False),
    ],
)
async def test_a_version_that_is_not_newer_than_the_known_one_is_a_doubt(
    listed: list[int], looks: bool, pages: int
) -> None:
    """The latest is published; another one may be that of a record that was restored, wherever it stands."""
    read, clock = await settled(IN_TURNS, "a")
    await read(Script().on([version("n", 5)], since="d1", delta="d1"))
    versions = [version("n", n) for n in listed]
    api = Script().on(versions, since="d1", delta="d2")
    if pages > 1:
        api.on(versions[:1], since="d1", further="p").on(versions[1:], since="d1", page="p", delta="d2")
    await read(api)
    looks = looks or (pages > 1 and listed == [9, 6])  # the record may have gone back between the two pages
    assert due_in(read) == (SOON if looks else None)
    assert shown(read)[-1] == max(listed)
    clock.pass_by(SOON)
    await read(Script().on([*records("a"), version("n", listed[-1])], delta="d9"))
    assert not looks or shown(read)[-1] == listed[-1]


@pytest.mark.parametrize("subject", ["n", "u"], ids=["known", "unknown"])
async def test_versions_without_times_follow_each_other(subject: str) -> None:
    """Nothing else tells their order; nor is there a doubt about a record that was not known."""
    read, _ = await settled(IN_TURNS, "n")
    listed = [{"id": subject, "n": n} for n in (9, 8)] if subject == "n" else [version("u", 9), version("u", 8)]
    await read(Script().on(listed, since="d1", delta="d2"))
    assert (due_in(read), b"8" in read.store.snapshots[subject].raw) == (None, subject == "n")


async def test_a_version_that_is_restored_while_a_delta_is_read_again_is_looked_for() -> None:
    """The second pass shows it, and its time is that of the known one."""
    read, _ = await settled(IN_TURNS, "a")
    await read(Script().on([version("n", 5)], since="d1", delta="d1"))

    class Restoring(Script):
        passes = 0

        async def get(self, path: str, params: Params) -> bytes:
            if dict(params).get("sinceDeltaToken") == "d1" and "pageToken" not in dict(params):
                self.passes += 1
                n = 9 if self.passes == 1 else 5
                self.on([version("n", n)], since="d1", further="p")
            return await super().get(path, params)

    await read(Restoring().on(records("x"), since="d1", page="p", delta="d2"))
    assert due_in(read) == SOON


async def test_a_delta_that_is_read_again_publishes_only_what_it_did_not_show_before() -> None:
    """Law: two versions without times on two pages are two events; a failure on the way undoes none."""
    read, _ = await settled(IN_TURNS, "n")
    api = Script().on(records("n", value=2), since="d1", further="p")
    await read(api.on(records("n", value=3), since="d1", page="p", delta="d2"))
    assert shown(read) == [1, 2, 3]


@pytest.mark.parametrize(
    ("again", "published"),
    [
        (records("x"), [1, 2]),
        (records("a"), [1, 2]),
        (records("n", value=2), [1, 2]),
        (records("n", value=3), [1, 2, 3]),
    ],
    ids=["beside a new record", "beside a known one", "not back", "on to another version"],
)
async def test_a_record_that_goes_back_while_a_delta_is_read_again_is_looked_for(
    again: list[dict[str, Any]], published: list[int]
) -> None:
    """The delta shows a change on its last page, and in the next reading the version before on its first one."""
    read, clock = await settled(IN_TURNS, "a", "n")
    returns = again[0]["id"] != "n"

    class Switching(Script):
        passes = 0

        async def get(self, path: str, params: Params) -> bytes:
            if dict(params).get("sinceDeltaToken") == "d1" and "pageToken" not in dict(params):
                self.passes += 1
                self.on(records("n"), since="d1", further="p")
                self.on(again if self.passes > 1 else records("n", value=2), since="d1", page="p", delta="d2")
            return await super().get(path, params)

    await read(Switching())
    assert (shown(read), due_in(read)) == (published, SOON if returns else None)
    clock.pass_by(SOON)
    await read(Script().on(records("a", "n", "x"), delta="d9"))
    assert shown(read) == ([*published, 1] if returns else published)


async def test_doubts_about_what_differs_in_ignored_members_only_are_one() -> None:
    """Each delta has another value of these."""
    read, clock = await settled(msgspec.structs.replace(IN_TURNS, ignore=("/at",)), "a")
    await read(Script().on([version("n", 5)], since="d1", delta="d1"))
    modes = []
    for number in range(12):
        listed = [version("n", n) | {"at": number} for n in (9, 5)]
        api = Script().on([*records("a"), version("n", 9)], delta="d1").on(listed, since="d1", delta="d1")
        modes.append((await read(api)).mode)
        await pass_by(read, clock, timedelta(seconds=30))
    assert set(modes[-5:]) == {RoundMode.DELTA}


async def test_what_another_process_has_read_between_is_no_repetition() -> None:
    """Law: if the last delta here did not give the token, the same element is another doubt."""
    clock = Moving()
    memory = DeltaMemory(clock)
    for start, end, expected in (("a", "b", False), ("b", "c", True), ("d", "e", False), ("e", "e", True)):
        clock.pass_by(MINUTE)
        memory.start(start)
        assert (memory.is_repeated("n", timedelta()), memory.has_followed(MINUTE)) == (expected, expected)
        memory.add(["n"])
        memory.finish(end)
        clock.pass_by(MINUTE)


@pytest.mark.parametrize("first", [True, False], ids=["the listing shows it", "a delta brings it while it is read"])
async def test_a_version_that_is_held_is_not_given_up_for_an_older_page(first: bool) -> None:
    """Law: a page that was requested before the delta shows the version before; the record is looked at again."""
    read, clock = await settled(NEWEST, "a")
    await read(Script().on([version("n", 9)], since="d1", delta="d1"))
    await pass_by(read, clock)
    if first:
        for number in (1, 2):  # the token repeats the last change
            await read(Script().on([version("n", 9)], since="d1", delta="d1"))
            await pass_by(read, clock, timedelta(seconds=number))
    else:
        read.store.deltas = DeltaMemory(clock)
        read.store.mark(RECHECK_AT, clock.now().isoformat())
        read.store.mark(RECHECKED, "2")
    full(read)
    api = Script().on(records("a"), further="p", delta="d9").on([version("n", 9)], page="p")
    await read(api.on([version("n", 1)], since="d1", delta="d2").on([], since="d2", delta="d2"))
    assert list(read.store.held) == ["n"]


async def test_a_part_of_a_record_with_a_held_version_is_a_doubt() -> None:
    """It is merged with the version before that; only a listing has the whole of it."""
    read, clock = await settled(msgspec.structs.replace(PARTIAL, newest=True), "a")
    first = version("n", 5) | {"b": 2}
    await read(Script().on([*records("a"), first], delta="d9").on([first], since="d1", delta="d2"))
    for mark in (CONFIRMATION, RECHECK_AT):
        read.store.unmark(mark)
    await read(Script().on([version("n", 1) | {"b": 1}], since="d2", delta="d3"))
    assert list(read.store.held) == ["n"]
    for mark in (CONFIRMATION, SECOND_LOOK, RECHECK_AT):
        read.store.unmark(mark)
    await read(Script().on([version("n", 6)], since="d3", delta="d4"))
    assert due_in(read) == SOON
    clock.pass_by(SOON)
    await read(Script().on([*records("a"), version("n", 6) | {"b": 1}], delta="d9"))
    assert b'"b": 1' in read.store.snapshots["n"].raw


@pytest.mark.parametrize("known", [True, False], ids=["the known one", "a new one"])
async def test_a_version_that_one_delta_shows_twice_is_looked_for(known: bool) -> None:
    """All versions are listed, and the last one restores the first one: only a second pass shows the same again."""
    read, clock = await settled(IN_TURNS, "a")
    old = 7 if known else 8
    await read(Script().on([version("n", 7)], since="d1", delta="d1"))
    api = Script().on([*records("a"), version("n", old)], delta="d9").on([], since="d2", delta="d2")
    for page, further, n in ((None, "p", old), ("p", "q", 9), ("q", None, old)):
        api.on([version("n", n)], since="d1", page=page, further=further, delta=None if further else "d2")
    await read(api)
    assert due_in(read) == SOON
    clock.pass_by(SOON)
    await read(api)
    assert shown(read)[-1] == old


@pytest.mark.parametrize("feed", [IN_TURNS, NEWEST], ids=["last", "newest"])
async def test_versions_that_are_listed_newest_first_again_and_again_change_nothing(feed: Feed) -> None:
    """Law: an older version follows the known one on a later page of each delta; it is neither published nor held."""
    read, clock = await settled(feed, "a", "n")
    await read(Script().on([version("n", 9)], since="d1", delta="d1"))
    modes, events = [], len(read.store.events)
    for number in range(12):
        api = Script().on([*records("a"), version("x", 11), version("n", 9)], delta="d1")
        api.on([version("x", 11), version("n", 9)], since="d1", further="p")
        api.on([version("x", 8), version("n", 6)], since="d1", page="p", delta="d1")
        modes.append((await read(api)).mode)
        events = len(read.store.events) if number == MOST else events
        await pass_by(read, clock, timedelta(seconds=30))
    assert len(read.store.events) == events
    assert set(modes[-5:]) == {RoundMode.DELTA}
    assert not read.store.held


@pytest.mark.parametrize("feed", [IN_TURNS, PARTIAL], ids=["whole records", "parts"])
async def test_an_older_version_on_a_later_page_is_a_doubt(feed: Feed) -> None:
    """An older part may have what the newer one lacks, and a record may have gone back between the pages."""
    read, _ = await settled(feed, "a")
    await read(Script().on([*records("a"), version("n", 5)], delta="d9").on([version("n", 5)], since="d1", delta="d2"))
    for mark in (CONFIRMATION, RECHECK_AT):
        read.store.unmark(mark)
    api = Script().on([version("n", 7)], since="d2", further="p")
    await read(api.on([version("n", 6)], since="d2", page="p", delta="d3"))
    assert due_in(read) == SOON


async def test_another_process_each_time_completes_a_part_that_deltas_repeat() -> None:
    """It does not know of the deltas before; the third reading that looks for the rest compares the record."""
    read, clock = await settled(PARTIAL, "a")
    part, whole = {"id": "n", "b": 1}, {"id": "n", "b": 1, "c": 2}
    for _ in range(10):
        read.store.deltas = DeltaMemory(clock)
        api = Script().on(records("a"), further="p", delta="d9").on([whole], page="p")
        await read(api.on([part], since="d1", delta="d1"))
        await pass_by(read, clock)
    assert msgspec.json.decode(read.store.snapshots["n"].raw) == whole


async def test_what_a_delta_has_changed_is_not_written_over_by_a_reading_that_follows_others() -> None:
    """The second page was requested before the delta."""
    read, clock = await settled(IN_TURNS, "a", "n")
    read.store.mark(RECHECK_AT, clock.now().isoformat())
    read.store.mark(RECHECKED, "2")
    api = Script().on(records("a"), further="p", delta="d9").on(records("n"), page="p")
    result = await read(api.on(records("n", value=2), since="d1", delta="d2").on([], since="d2", delta="d2"))
    assert (result.mode, shown(read)) == (RoundMode.RECONCILE, [1, 2])


@pytest.mark.parametrize(("number", "compares"), [("1", False), ("2", True)])
async def test_what_no_delta_has_changed_lately_is_compared_by_the_third_reading(number: str, compares: bool) -> None:
    """The second one may come before the listing shows what the delta has brought again."""
    read, clock = await settled(IN_TURNS, "a", "n")
    read.store.mark(RECHECK_AT, clock.now().isoformat())
    read.store.mark(RECHECKED, number)
    api = Script().on(records("a"), further="p", delta="d9").on(records("n", value=2), page="p")
    result = await read(api.on(records("n"), since="d1", delta="d2").on(records("n"), since="d2", delta="d2"))
    assert (result.mode, shown(read)[:2]) == (RoundMode.RECONCILE, [1, 2] if compares else [1])


async def test_a_process_that_has_followed_the_deltas_does_not_compare_what_one_has_just_brought() -> None:
    """It knows that the delta before did not bring the record, also in the third reading."""
    read, clock = await settled(IN_TURNS, "a", "n")
    await read(Script().on([], since="d1"))  # an answer without a token leaves the one before
    clock.pass_by(MINUTE)
    read.store.mark(RECHECK_AT, clock.now().isoformat())
    read.store.mark(RECHECKED, "2")
    api = Script().on(records("a"), further="p", delta="d9").on(records("n", value=2), page="p")
    result = await read(api.on(records("n"), since="d1", delta="d2").on(records("n"), since="d2", delta="d2"))
    assert (result.mode, shown(read)) == (RoundMode.RECONCILE, [1])


class Counting(Script):
    """It counts how often deltas are requested."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0

    async def get(self, path: str, params: Params) -> bytes:
        self.begun += "sinceDeltaToken" in dict(params) and "pageToken" not in dict(params)
        return await super().get(path, params)


def history(since: str, delta: str) -> Counting:
    """A delta of ten thousand undated records, and then three versions of n."""
    api = Counting()
    api.on(records(*(f"r{number}" for number in range(10_000))), since=since, further="p")
    for page, value, further in (("p", 2, "q"), ("q", 3, "r"), ("r", 2, None)):
        end = {"further": further} if further else {"delta": delta}
        api.on(records("n", value=value), since=since, page=page, **end)
    return api


async def test_a_delta_of_more_versions_than_are_remembered_is_not_read_again() -> None:
    """Law: nothing is published twice; a full reading decides, and it is one doubt if the next delta repeats it all."""
    read, clock = await settled(IN_TURNS, "n")
    api = history("d1", "d2")
    assert (await read(api)).ok
    assert (api.begun, shown(read), due_in(read)) == (1, [1, 2, 3, 2], SOON)
    modes = []
    for _ in range(12):
        await pass_by(read, clock)
        again = history("d2", "d2").on(records("n", *(f"r{number}" for number in range(10_000))), delta="d2")
        modes.append((await read(again)).mode)
    assert RoundMode.RECONCILE in modes[:3]
    assert set(modes[-6:]) == {RoundMode.DELTA}


@pytest.mark.parametrize("number", [9_999, 10_001])
async def test_a_large_delta_of_one_page_leaves_nothing_in_doubt(number: int) -> None:
    """A page has one version of each record in the end."""
    read, _ = await settled(IN_TURNS, "a")
    await read(Script().on(records(*(f"r{one}" for one in range(number))), since="d1", delta="d2"))
    assert due_in(read) is None


@pytest.mark.thorough
async def test_a_delta_that_is_just_remembered_is_read_again() -> None:
    """Ten thousand versions, on two pages."""
    read, _ = await settled(IN_TURNS, "a")
    api = Counting()
    api.on(records(*(f"r{one}" for one in range(9_999))), since="d1", further="p")
    await read(api.on(records("n"), since="d1", page="p", delta="d2"))
    assert (api.begun, due_in(read)) == (2, None)


async def test_a_doubt_in_a_listing_is_one_in_each_reading() -> None:
    """Some of its records may be in one element, which is there again: five readings follow, and no more."""
    read, clock = await settled(msgspec.structs.replace(IN_TURNS, lag=timedelta()), "a", "b")
    full(read)
    confirmations = []
    for _ in range(MOST + 1):
        answer = jumbled("a", "b", value=2).replace(b'"d2"', b'"d1"')
        await read(Script().answer(answer).answer(answer, since="d1"))
        confirmations.append(confirmation_of(read.store.state.confirmation))
        await pass_by(read, clock, timedelta(seconds=30))
    assert [one and one.readings for one in confirmations[:MOST]] == list(range(1, MOST + 1))


async def test_an_id_that_changes_its_type_between_a_listing_and_the_delta_beside_it_is_one_record() -> None:
    """Law: the listing's first page has the number, the delta after it the text; nothing is created or removed."""
    read, _ = await settled(IN_TURNS, "a")
    await read(Script().on([{"id": 7, "n": 1}], since="d1", delta="d1"))
    full(read)
    api = Script().on([*records("a"), {"id": 7, "n": 1}], further="p").on([], page="p", delta="d9")
    await read(api.on([{"id": "7", "n": 2}], since="d1", delta="d2").on([], since="d2", delta="d2"))
    full(read)
    await read(Script().on([*records("a"), {"id": "7", "n": 2}], delta="d9").on([], since="d2", delta="d2"))
    assert [cause[:2] for cause in read.causes if cause[0] == "7"] == [("7", "created"), ("7", "modified")]


async def test_an_older_page_beside_a_delta_with_another_type_of_id_does_not_count() -> None:
    """The delta has the text and is newer than the page with the number, which comes after it."""
    read, clock = await settled(IN_TURNS, "a")
    await read(Script().on([{"id": 7, "n": 1}], since="d1", delta="d1"))
    await pass_by(read, clock)
    full(read)
    api = Script().on(records("a"), further="p").on([{"id": 7, "n": 1}], page="p", delta="d9")
    await read(api.on([{"id": "7", "n": 2}], since="d1", delta="d2").on([], since="d2", delta="d2"))
    assert shown(read, "7") == [1, 2]


@pytest.mark.parametrize("page", [0, 1], ids=["the page before the delta", "the page after the delta"])
async def test_ids_that_are_numbers_in_listings_and_text_in_deltas_are_one_record(page: int) -> None:
    """Law: also for good; neither the delta beside a listing nor the next one splits the record."""
    read, clock = await settled(IN_TURNS, "a")
    await read(Script().on([{"id": 7, "n": 1}], since="d1", delta="d1"))
    for n in (2, 3, 4):
        await pass_by(read, clock)
        full(read)
        listed = [records("a"), records("b")]
        listed[page] = [*listed[page], {"id": 7, "n": n}]
        api = Script().on(listed[0], further="p").on(listed[1], page="p", delta="d9")
        await read(api.on([{"id": "7", "n": n}], since="d1", delta="d2").on([], since="d2", delta="d1"))
        await pass_by(read, clock, timedelta(hours=1))
    created, *others = [cause[1] for cause in read.causes if cause[0] == "7"]
    assert (created, set(others)) == ("created", {"modified"})
    assert shown(read, "7")[-1] == 4
    assert len([key for key, one in read.store.snapshots.items() if key.endswith("7") and not one.removed]) == 1


class Breaking(Script):
    """The third page of its delta fails so often.

    Attributes:
        failures: that number.
    """

    failures = 0

    async def get(self, path: str, params: Params) -> bytes:
        if dict(params).get("pageToken") == "q" and self.failures:
            self.failures -= 1
            raise SourceUnavailable("503")
        return await super().get(path, params)


def undated(name: str, n: int) -> dict[str, Any]:
    """A version that does not say when it was made."""
    return {"id": name, "n": n}


def broken_off(make: Any, *versions: list[int], times: int = 1, since: str = "d1") -> Breaking:
    """A delta of three pages, with these versions of n on them; it is broken off at the third one."""
    api = Breaking()
    api.failures = times
    first, second, third = ([make("n", one) for one in some] for some in versions)
    api.on(first, since=since, further="p").on(second, since=since, page="p", further="q")
    api.on(third, since=since, page="q", delta="d2").on([], since="d2", delta="d2")
    return api


@pytest.mark.parametrize("forgets", [False, True], ids=["the same process", "another process"])
@pytest.mark.parametrize("make", [version, undated], ids=["with times", "without times"])
async def test_a_delta_that_was_broken_off_publishes_nothing_twice(make: Any, forgets: bool) -> None:
    """Law: it lists all versions, and goes on where it was; older versions do not come back, however often it fails."""
    read, clock = await settled(IN_TURNS, "a")
    api = broken_off(make, [1], [2], [3], times=3)
    for _ in range(3):
        assert not (await read(api)).ok
        await pass_by(read, clock)
        if forgets:
            read.store.deltas = DeltaMemory(clock)
    assert (await read(api)).ok
    assert shown(read) == [1, 2, 3]
    assert (read.store.state.token_sequence or "").startswith(f"{read.store.state.sequence} ")
    await read(api)
    assert TOKEN_SEQUENCE not in read.store.commits[-1].marks  # nothing has changed


@pytest.mark.parametrize("make", [version, undated], ids=["with times", "without times"])
async def test_of_a_delta_that_was_broken_off_versions_before_a_published_one_do_not_come(make: Any) -> None:
    """Law: of several versions on one page only the last was published; the others are no changes when it goes on."""
    read, clock = await settled(IN_TURNS, "a")
    api = broken_off(make, [1, 2], [3, 4], [5, 6])
    assert not (await read(api)).ok
    await pass_by(read, clock)
    assert (await read(api)).ok
    assert (shown(read), due_in(read)) == ([2, 4, 6], SOON)


async def test_a_newer_version_before_a_published_one_is_published_all_the_same() -> None:
    """The page lists the newest first now, and says so."""
    read, clock = await settled(IN_TURNS, "a")
    assert not (await read(broken_off(version, [1], [2], [3]))).ok
    await pass_by(read, clock)
    assert (await read(broken_off(version, [9, 1], [2], [3], times=0))).ok
    assert shown(read) == [1, 2, 9]


async def test_the_second_reading_of_a_delta_that_was_broken_off_knows_all_that_the_first_one_showed() -> None:
    """What stands before a published version then has come since, and is published."""

    class Growing(Breaking):
        begun = 0

        async def get(self, path: str, params: Params) -> bytes:
            if dict(params) == {"sinceDeltaToken": "d1"}:
                self.begun += 1
                if self.begun == 3:  # broken off, read on, and read again
                    self.on([undated("n", 9), undated("n", 1)], since="d1", further="p")
            return await super().get(path, params)

    read, clock = await settled(IN_TURNS, "a")
    api = Growing()
    api.failures = 1
    api.on([undated("n", 1)], since="d1", further="p").on([undated("n", 2)], since="d1", page="p", further="q")
    api.on([undated("n", 3)], since="d1", page="q", delta="d2")
    assert not (await read(api)).ok
    await pass_by(read, clock)
    assert (await read(api)).ok
    assert 9 in shown(read)


async def test_a_record_that_goes_back_after_a_delta_was_broken_off_is_looked_for() -> None:
    """It was at another version then; that the delta ends with one that it had shown before is a doubt."""
    read, clock = await settled(IN_TURNS, "a")
    api = broken_off(undated, [1], [2], [1])
    assert not (await read(api)).ok
    await pass_by(read, clock)
    assert (await read(api)).ok
    assert due_in(read) == SOON


async def test_what_a_full_reading_has_published_since_is_not_given_up_for_a_version_of_a_broken_delta() -> None:
    """Law: it is known in another version than the delta showed last; that is a doubt, and no change back."""
    read, clock = await settled(IN_TURNS, "a")
    assert not (await read(broken_off(undated, [1], [2], [3]))).ok
    await pass_by(read, clock)
    full(read)
    api = broken_off(undated, [1], [2], [2], times=9)
    api.on([*records("a"), undated("n", 4)], delta="d9")
    await read(api)
    assert (shown(read), due_in(read)) == ([1, 2, 4], SOON)
    await pass_by(read, clock)
    api.failures = 0
    assert (await read(api)).ok
    assert shown(read) == [1, 2, 4]


async def test_a_delta_that_gives_no_token_is_read_to_its_end_all_the_same() -> None:
    """Law: the next one from the same token is another one; a version that both show counts in both."""
    read, clock = await settled(IN_TURNS, "a")
    for n in (1, 2, 1):
        assert (await read(Script().on([undated("n", n)], since="d1"))).ok
        await pass_by(read, clock)
    assert shown(read) == [1, 2, 1]


async def test_a_full_reading_whose_delta_fails_leaves_it_broken_off() -> None:
    """Law: what was published of it does not count as changes in the next one, though the reading has ended."""
    read, clock = await settled(IN_TURNS, "a")
    full(read)
    api = broken_off(undated, [1], [2], [3]).on(records("a"), further="p", delta="d9").on([], page="p", delta="d9")
    assert (await read(api)).mode is RoundMode.RECONCILE
    await pass_by(read, clock)
    await read(api)
    assert shown(read) == [1, 2, 3]


async def test_a_state_that_an_earlier_version_has_left_says_nothing_of_a_broken_delta() -> None:
    """It has no number of the last event before the delta: all counts as before."""
    read, clock = await settled(IN_TURNS, "a")
    read.store.unmark(TOKEN_SEQUENCE)
    api = broken_off(version, [1], [2], [3])
    await read(api)
    await pass_by(read, clock)
    assert (await read(api)).ok
    assert shown(read)[-1] == 3


@pytest.mark.parametrize("make", [version, undated], ids=["with times", "without times"])
async def test_a_record_that_was_removed_since_a_delta_was_broken_off_comes_back_as_it_was(make: Any) -> None:
    """Law: its removal was published last, so the version from before is a change."""
    read, clock = await settled(IN_TURNS, "a", "b")
    assert not (await read(broken_off(make, [1], [2], [], times=99))).ok
    await pass_by(read, clock)
    full(read)
    gone = broken_off(make, [], [], [], times=99).on(records("a", "b"), delta="d9")
    await read(gone.on(GONE, path="/contractTypes/n"))
    assert read.causes[-1][:2] == ("n", "removed")
    back = Script().on([make("n", 2)], since="d1", delta="d2").on([], since="d2", delta="d2")
    assert (await read(back.on([*records("a", "b"), make("n", 2)], delta="d9"))).ok
    assert read.causes[-1][:2] == ("n", "created")


@pytest.mark.parametrize("make", [version, undated], ids=["with times", "without times"])
async def test_a_record_that_goes_back_while_a_delta_fails_is_looked_for(make: Any) -> None:
    """Law: each time that its first page shows a version from before, a full reading publishes it."""
    read, clock = await settled(IN_TURNS, "a")
    api = Breaking()
    api.on([], since="d1", page="p", further="q")
    for n in (6, 5, 6, 5, 6):
        api.on([make("n", n)], since="d1", further="p").on([*records("a"), make("n", n)], delta="d9")
        modes = []
        for _ in range(5):
            api.failures = 1
            modes.append((await read(api)).mode)
            await pass_by(read, clock)
        assert (shown(read)[-1], modes[-1]) == (n, RoundMode.DELTA)


async def test_a_token_that_another_version_has_taken_does_not_belong_to_what_was_broken_off() -> None:
    """Law: it writes no number with its token; what was published before that token counts as a change again."""
    read, _ = await settled(IN_TURNS, "a")
    await read(Script().on([undated("n", 1)], since="d1", delta="d2"))
    kept = read.store.fields[TOKEN_SEQUENCE.encode()]
    await read(Script().on([undated("n", 2)], since="d2", delta="d3"))
    await read(Script().on([undated("n", 3)], since="d3", delta="d4"))
    read.store.fields[TOKEN_SEQUENCE.encode()] = kept
    await read(Script().on([undated("n", 2)], since="d4", delta="d5"))
    assert shown(read) == [1, 2, 3, 2]


@pytest.mark.parametrize("together", [False, True], ids=["on two pages", "on one page"])
async def test_an_older_version_that_a_delta_shows_before_a_published_one_is_looked_for(together: bool) -> None:
    """Law: a full reading has published 2 while deltas failed; the delta then shows 1 and 2, and 1 does not stay."""
    read, clock = await settled(IN_TURNS, "a")
    full(read)
    down = Script().on(SourceUnavailable("503"), since="d1")
    await read(down.on([*records("a"), undated("n", 2)], delta="d9"))
    await pass_by(read, clock)
    for mark in (RECHECK_AT, RECHECKED, CONFIRMATION):
        read.store.unmark(mark)
    pages = [[undated("n", 1), undated("n", 2)], []] if together else [[undated("n", 1)], [undated("n", 2)]]
    api = Script().on(pages[0], since="d1", further="p").on(pages[1], since="d1", page="p", delta="d2")
    assert (await read(api)).ok
    assert shown(read)[-1] == 2 or due_in(read) == SOON


async def test_what_is_ignored_does_not_make_versions_of_what_a_delta_shows_again() -> None:
    """Law: each answer signs a link anew; two versions on two pages are two events."""

    class Signing(Script):
        answers = 0

        async def get(self, path: str, params: Params) -> bytes:
            self.answers += 1
            return (await super().get(path, params)).replace(b'"LINK"', b'"%d"' % self.answers)

    read, _ = await settled(msgspec.structs.replace(IN_TURNS, ignore=("/link",)), "a")
    first, second = ({"id": "n", "n": n, "link": "LINK"} for n in (1, 2))
    api = Signing().on([first], since="d1", further="p").on([second], since="d1", page="p", delta="d2")
    assert (await read(api)).ok
    assert shown(read) == [1, 2]


PARTS = msgspec.structs.replace(PARTIAL, slot=timedelta(seconds=30))


def part(name: str, n: int) -> dict[str, Any]:
    """What the API takes for changed of a record that has another member."""
    return {"id": name, "n": n}


def of_parts(*values: list[int], times: int = 1) -> Breaking:
    """A delta of parts that is broken off; the listing has the whole record."""
    return broken_off(part, *values, times=times)


async def known_whole() -> tuple[Round, Any]:
    """A feed of parts that knows one whole record."""
    read, clock = await settled(PARTS)
    whole = Script().on([{"id": "n", "n": 0, "other": "x"}], since="d1", delta="d1")
    assert (await read(whole, IN_TURNS)).created == 1
    return read, clock


async def test_parts_of_a_delta_that_was_broken_off_are_published_once() -> None:
    """Law: a part that adds nothing to what was published of the delta is no change, however often the delta fails."""
    read, clock = await known_whole()
    api = of_parts([1], [2], [3], times=3)
    for _ in range(3):
        assert not (await read(api)).ok
        await pass_by(read, clock)
    assert (await read(api)).ok
    assert shown(read) == [0, 1, 2, 3]
    assert read.store.events[-1]["data"]["record"] == {"id": "n", "n": 3, "other": "x"}


async def test_a_part_that_ends_a_delta_as_the_record_was_before_is_looked_for() -> None:
    """Law: the delta was broken off at another version, and ends with an earlier one: a full reading decides."""
    read, clock = await known_whole()
    api = of_parts([1], [2], [1])
    assert not (await read(api)).ok
    await pass_by(read, clock)
    read.store.unmark(RECHECK_AT)
    assert (await read(api)).ok
    assert (shown(read), due_in(read)) == ([0, 1, 2], SOON)


async def test_parts_that_end_with_what_is_known_leave_nothing_in_doubt() -> None:
    """Law: the record is as the delta shows it last, so no full reading is due."""
    read, clock = await known_whole()
    api = of_parts([1], [2], [])
    assert not (await read(api)).ok
    await pass_by(read, clock)
    read.store.unmark(RECHECK_AT)
    assert (await read(api)).ok
    assert (shown(read), due_in(read)) == ([0, 1, 2], None)


async def test_an_ignored_member_of_a_part_does_not_make_it_a_change() -> None:
    """Law: parts of a delta that was broken off are compared without what is ignored."""
    read, clock = await known_whole()
    feed = msgspec.structs.replace(PARTS, ignore=("/link",))

    def linked(number: int) -> Any:
        return lambda name, n: part(name, n) | {"link": number}

    assert not (await read(broken_off(linked(1), [1], [2], [3]), feed)).ok
    await pass_by(read, clock)
    assert (await read(broken_off(linked(2), [1], [2], [3], times=0), feed)).ok
    assert shown(read) == [0, 1, 2, 3]


async def test_an_unusable_part_of_a_delta_that_was_broken_off_is_quarantined() -> None:
    """Law: a part that has a member twice adds nothing to what is known, and yet it is shown."""
    read, clock = await known_whole()
    assert not (await read(of_parts([1], [2], [3]), PARTS)).ok
    await pass_by(read, clock)
    twice = b'{"results":[{"id":"n","n":1,"n":2}],"deltaToken":"d2"}'
    assert (await read(Script().answer(twice, since="d1"))).quarantined == 1


@pytest.mark.parametrize("older", [1, 3], ids=["older", "newer"])
async def test_what_is_older_than_a_full_reading_has_published_since_is_looked_for(older: int) -> None:
    """Law: a delta that failed shows versions from before, a page each; one that says so is a doubt and no change."""
    read, clock = await settled(IN_TURNS, "a")
    full(read)
    down = Script().on(SourceUnavailable("503"), since="d1")
    await read(down.on([*records("a"), version("n", 2)], delta="d9"))
    await pass_by(read, clock)
    for mark in (RECHECK_AT, RECHECKED, CONFIRMATION):
        read.store.unmark(mark)
    api = Script().on([version("n", older)], since="d1", further="p").on([], since="d1", page="p", delta="d2")
    assert (await read(api)).ok
    assert (shown(read), due_in(read)) == (([2], SOON) if older == 1 else ([2, 3], None))
