"""Laws of :mod:`poller.source.feed`: a changed origin, the limit of a round, resources, and results."""

from __future__ import annotations

import json
from datetime import timedelta

import msgspec
import pytest

from poller.changes.full_readings import MOST, Confirmation, confirmation_of
from poller.changes.plan import Commit
from poller.errors import SourceUnavailable
from poller.resources import RESOURCES, resource_of
from poller.source.feed import Feed, Progress, RoundMode, RoundResult, decode_progress
from poller.source.paging import Params
from poller.source.round import run_round
from poller.store.feed_state import DELTA_TOKEN, HELD_ORIGIN, ID_FIELD, ORIGIN, PROGRESS
from tests.source.round_sides import ACHIEVEMENTS, FEED, MemoryStore, Round, Script, WallClock, records

HERE = msgspec.structs.replace(FEED, base_url="https://api.example.org/v1", binding="https://api.example.org/v1 u")
MOVED = msgspec.structs.replace(
    HERE,
    base_url="https://new.example.org/v1",
    binding="https://new.example.org/v1 u",
    event_source="https://new.example.org/v1",
)
RENAMED = msgspec.structs.replace(HERE, event_source="urn:acme")


def listing(*subjects: str, delta: str = "d") -> Script:
    script = Script().on(records(*subjects), delta=delta)
    return script.on([], since="d", delta=delta)


async def known(feed: Feed = HERE) -> Round:
    """A feed that has read two records."""
    read = Round(feed)
    read.store.mark("kept", "0 0 0")
    assert (await read(listing("a", "b"))).created == 2
    read.store.mark("kept", "2 0 0")
    return read


@pytest.mark.parametrize("other", [MOVED, RENAMED])
async def test_another_origin_is_held_and_nothing_is_asked_or_published(other: Feed) -> None:
    """With a changed origin the round requests and publishes nothing, says why, and reports it once."""
    read = await known()
    before = len(read.store.events), read.kept
    script = listing("c", "d")
    held = await read(script, other)
    assert (held.ok, held.created, held.removed, script.asked) == (False, 0, 0, [])
    assert held.held == held.error == read.store.state.held
    again = await read(script, other)
    assert (again.ok, again.held, again.error) == (False, None, held.error)
    assert (len(read.store.events), read.kept) == before


async def test_the_reason_names_what_differs_and_what_to_do() -> None:
    """The error names both base URLs and both commands; an event source that follows base_url is not named."""
    read = await known(msgspec.structs.replace(HERE, event_source=HERE.base_url))
    error = (await read(listing("c"), MOVED)).error or ""
    assert f'base_url was "{HERE.base_url}" and is "{MOVED.base_url}" now: nothing is published' in error
    assert "event_source" not in error
    assert "`poller release acme/contractTypes`" in error
    assert "`poller resync acme/contractTypes --anew`" in error


async def test_a_release_publishes_what_differs_and_nothing_else() -> None:
    """After a release only differing records are published; a round that fails in between keeps the release."""
    read = await known()
    await read(listing(), MOVED)
    read.store.mark("released", "1")
    down = Script().on(SourceUnavailable("down"))
    assert (await read(down, MOVED)).ok is False
    assert read.store.state.origin == HERE.origin.mark
    result = await read(listing("a", "b", "c"), MOVED)
    assert (result.mode, result.ok, result.created, result.unchanged, result.removed) == (
        RoundMode.RESYNC,
        True,
        1,
        2,
        0,
    )
    state = read.store.state
    assert (state.held, state.held_at, state.held_origin, state.released) == (None, None, None, False)
    assert state.origin == MOVED.origin.mark
    assert (await read(listing("a", "b", "c"), MOVED)).mode is RoundMode.DELTA
    assert (await read(listing("a", "b", "c"), HERE)).ok is False  # the former origin is a change as well now


async def test_the_old_value_put_back_ends_it() -> None:
    """With the former origin back, the feed goes on from its token and nothing is held."""
    read = await known()
    await read(listing("c"), MOVED)
    result = await read(listing("a", "b"))
    assert (result.mode, result.ok, result.changes) == (RoundMode.DELTA, True, 0)
    assert (read.store.state.held, read.store.state.held_origin) == (None, None)


async def test_a_release_of_something_else_does_not_count() -> None:
    """A release covers only what was held when it was given; a further origin is held again."""
    read = await known()
    read.store.mark("held", "60 of 301 known records are missing")
    read.store.mark("released", "1")
    first = await read(listing("c"), MOVED)
    assert (first.ok, first.held) == (False, first.error)
    assert (await read(listing("c"), MOVED)).ok is False
    read.store.mark("released", "1")
    third = msgspec.structs.replace(MOVED, base_url="https://third.example.org")
    other = await read(listing("c"), third)
    assert (other.ok, other.held) == (False, other.error)
    assert len(read.store.events) == 2


async def test_a_feed_that_knows_no_record_has_no_origin_yet() -> None:
    """A feed that knows no record has no origin, so a corrected base_url is not held."""
    read = Round(HERE)
    read.store.mark("kept", "0 0 0")
    assert (await read(listing())).ok
    result = await read(listing("a"), MOVED)
    assert (result.ok, result.created) == (True, 1)
    assert read.store.state.origin == MOVED.origin.mark


async def test_a_release_for_another_origin_removes_nothing_at_the_former_one() -> None:
    """A release that no round used ends when the former origin is back: it approves no removals there."""
    read = await known()
    await read(listing("c"), MOVED)
    read.store.mark("released", "1")
    assert not (await read(Script().on(SourceUnavailable("down")), MOVED)).ok
    results = [await read(Script().on([]).on([], since="d")) for _ in range(2)]
    assert [(result.ok, result.removed) for result in results] == [(False, 0)] * 2
    assert not read.store.state.released


async def test_the_origin_is_written_with_the_first_records() -> None:
    """The origin is stored with the first page, so an interrupted baseline cannot go on at another API."""
    read = Round(HERE)
    read.store.mark("kept", "0 0 0")
    broken = Script().on(records("a"), further="p").on(SourceUnavailable("down"), page="p")
    assert (await read(broken)).created == 1
    first = next(commit for commit in read.store.commits if commit.snapshots)
    assert first.marks == {ORIGIN: HERE.origin.mark, ID_FIELD: HERE.id_field}
    read.store.mark("kept", "1 0 0")
    assert (await read(listing("c"), MOVED)).held is not None


async def test_a_store_of_an_older_version_is_read_on() -> None:
    """A store without an origin takes the present one with the next complete round."""
    read = await known()
    del read.store.fields[ORIGIN.encode()]
    assert (await read(listing("a", "b"))).ok
    assert read.store.state.origin == HERE.origin.mark
    del read.store.fields[ORIGIN.encode()]
    read.store.mark("query", "another")
    assert (await read(listing("a", "b"), MOVED)).ok
    assert read.store.state.origin == MOVED.origin.mark


async def test_a_held_round_leaves_the_marks_of_reading_alone() -> None:
    """A held round leaves query, token and the times of the last reading unchanged."""
    read = await known()
    await read(listing("c"), MOVED)
    marks = read.store.commits[-1].marks
    assert marks[HELD_ORIGIN] == MOVED.origin.mark
    assert not {DELTA_TOKEN, ORIGIN, "query", "read_at", "good_at"} & marks.keys()


# Long rounds: progress and the limit of a round.


class Endless:
    """An API whose listings have this number of differing pages, or never end."""

    def __init__(self, pages: int | None = None) -> None:
        self.store = MemoryStore()
        self.asked: list[str] = []
        self.pages = pages

    async def get(self, path: str, params: Params) -> bytes:
        self.asked.append(path)
        place = int(dict(params).get("pageToken", 0)) + 1
        further = str(place) if self.pages is None or place < self.pages else None
        return json.dumps({"results": records(f"{path} {place}"), "pageToken": further, "deltaToken": "d"}).encode()

    async def round(self, feed: Feed, *, longest: float = 10, per_request: float = 0.5) -> RoundResult:
        async def named(_: int) -> dict[str, int]:
            return {}

        feed = msgspec.structs.replace(feed, max_round=timedelta(seconds=longest))
        clock = WallClock()
        clock.seconds = lambda: len(self.asked) * per_request
        return await run_round(feed, self.store, self.get, clock=clock, qualifications=named)


async def test_a_round_that_takes_too_long_is_given_up_and_what_it_read_is_kept() -> None:
    """A round that takes too long fails, keeps its records, and moves no token."""
    api = Endless()
    result = await api.round(FEED)
    assert (result.ok, result.mode) == (False, RoundMode.BASELINE)
    assert result.error is not None
    assert result.error.startswith("the round is given up after 10 s (max_round), ")
    assert 15 <= result.pages <= 21
    assert len(api.store.events) == result.pages == result.created
    assert (api.store.state.delta_token, api.store.state.read_at) == (None, None)


async def test_one_listing_without_an_end_takes_the_time_of_the_round() -> None:
    """An endless substream fails the round at its limit; it counts as tried, the full round as not done."""
    api = Endless()
    result = await api.round(ACHIEVEMENTS)
    assert not result.ok
    assert "given up after 10 s (max_round)" in (result.error or "")
    assert api.store.kept_listings["q1"].tried
    assert api.store.state.read_at is None


async def test_many_listings_that_take_too_long_are_given_up_between_two() -> None:
    """Many listings that take too long are given up between two, and those read are kept."""
    api = Endless(1)
    many = msgspec.structs.replace(ACHIEVEMENTS, qualifications=tuple(f"q{number}" for number in range(50)))
    result = await api.round(many, longest=5)
    assert "given up after 5 s (max_round)" in (result.error or "")
    read = [name for name, listing in api.store.kept_listings.items() if listing.read]
    assert 5 <= len(read) < 15
    assert result.pages == len(read)


async def test_confirming_readings_that_take_too_long_are_counted_and_come_to_an_end() -> None:
    """Confirmations that exceed the round limit count; after five of them deltas go on."""
    api = Endless(3)
    assert (await api.round(FEED, longest=3600)).ok
    assert confirmation_of(api.store.state.confirmation) == Confirmation()
    api.pages = None
    for number in range(1, MOST + 1):
        result = await api.round(FEED, longest=2)
        assert (result.ok, result.mode) == (False, RoundMode.RECONCILE)
        assert confirmation_of(api.store.state.confirmation) == Confirmation(number, 0)
    api.pages = 1
    result = await api.round(FEED, longest=2)
    assert (result.ok, result.mode) == (True, RoundMode.DELTA)


async def test_the_confirming_readings_of_one_listing_that_take_too_long_are_counted() -> None:
    """Confirmations of one substream that exceed the round limit count, up to five of them."""
    api = Endless(3)
    one = msgspec.structs.replace(ACHIEVEMENTS, qualifications=("q1",))
    assert (await api.round(one, longest=3600)).ok
    api.pages = None
    for number in (*range(1, MOST + 1), MOST):
        assert not (await api.round(one, longest=2)).ok
        assert api.store.kept_listings["q1"].confirmation == Confirmation(number, 0)


@pytest.mark.parametrize("feed", [FEED, ACHIEVEMENTS], ids=["one listing", "many listings"])
async def test_a_round_that_is_given_up_says_what_to_do(feed: Feed) -> None:
    """The error of a round that was given up names the limit and the remedy."""
    result = await Endless().round(feed)
    assert "if a whole reading takes longer than that, make max_round longer" in (result.error or "")


async def test_how_far_it_has_come_is_shown_while_it_runs_and_not_after() -> None:
    """A running round stores its progress about once a second, and deletes it at its end."""
    api, shown = Endless(9), list[Progress | None]()

    async def look(commit: Commit) -> None:
        if PROGRESS in commit.marks:
            shown.append(decode_progress(commit.marks[PROGRESS]))

    api.store.before_commit = look
    assert (await api.round(FEED)).ok
    *running, last = shown
    assert last is None
    assert 3 <= len(running) <= 5
    assert [(one.mode, one.records) for one in running if one] == [("baseline", one.pages) for one in running if one]
    assert [one.seconds for one in running if one] == sorted(one.seconds for one in running if one)
    assert api.store.state.progress is None


@pytest.mark.parametrize("left", [None, "{}"])
async def test_a_short_round_writes_nothing_of_it(left: str | None) -> None:
    """A short round writes no progress, and deletes that of a round that died."""
    api = Endless(3)
    if left:
        api.store.mark(PROGRESS, left)
    assert (await api.round(FEED, per_request=0.01)).ok
    assert [PROGRESS in commit.marks for commit in api.store.commits] == [False] * 3 + [left is not None]
    assert (api.store.state.progress, decode_progress(left)) == (None, None)


# Laws of :mod:`poller.source.feed`.


@pytest.mark.parametrize(
    ("name", "type_name", "path", "detail_path", "delta"),
    [
        ("evidenceVariants", "evidenceVariant", "/evidenceVariants", "/evidenceVariants/{id}", True),
        (
            "employmentUnavailabilities",
            "employmentUnavailability",
            "/employmentUnavailabilities",
            "/employmentUnavailabilities/{id}",
            True,
        ),
        ("contractTypes", "contractType", "/contractTypes", "/contractTypes/{id}", True),
        ("achievements", "achievement", "/qualifications/{id}/achievements", None, False),
    ],
)
def test_the_four_resources_are_those_of_the_reference(
    name: str, type_name: str, path: str, detail_path: str | None, delta: bool
) -> None:
    """Names, paths, event types and delta support of the resources match the reference."""
    found = resource_of(name)
    assert found is not None
    assert (found.name, found.type_name, found.path) == (name, type_name, path)
    assert (found.detail_path, found.delta) == (detail_path, delta)


def test_only_achievements_have_a_listing_for_each_qualification() -> None:
    """Only achievements have a listing for each qualification, with its id in the path."""
    assert [name for name, resource in RESOURCES.items() if resource.per_qualification] == ["achievements"]
    assert RESOURCES["achievements"].listing_path("q-1") == "/qualifications/q-1/achievements"
    assert RESOURCES["achievements"].listing_path(None) == "/qualifications/achievements"  # a URL, without a brace
    assert RESOURCES["contractTypes"].listing_path(None) == "/contractTypes"


def test_any_other_list_endpoint_can_be_described() -> None:
    """Another resource needs a path; its type is its name without a plural s unless configured."""
    assert resource_of("positions", path="/positions").type_name == "position"
    assert resource_of("staff", path="/staff").type_name == "staff"
    named = resource_of("staff", path="/v2/staff", detail_path="/v2/staff/{id}", type_name="person")
    assert (named.type_name, named.path, named.detail_path) == ("person", "/v2/staff", "/v2/staff/{id}")
    with pytest.raises(LookupError, match="positions"):
        resource_of("positions")


@pytest.mark.parametrize("subject", [".", "..", "a/..", "../a", "a/./b", "a\\..", "%2e", "%2E%2e", "a%2F.."])
def test_an_id_that_leads_to_another_path_has_none_of_its_own(subject: str) -> None:
    """An id that a URL parser would resolve to another path, also once decoded, has no record path."""
    assert RESOURCES["contractTypes"].record_path(subject) is None
    assert resource_of("staff", path="/staff", detail_path="/staff/{id}/all").record_path(subject) is None


@pytest.mark.parametrize(
    ("subject", "path"), [("a", "a"), ("...", "..."), (".a", ".a"), ("a..b", "a..b"), ("a/b", "a%2Fb"), ("?", "%3F")]
)
def test_any_other_id_is_one_segment_of_the_path(subject: str, path: str) -> None:
    """Any other id is one escaped path segment; a resource without a detail path has none."""
    assert RESOURCES["contractTypes"].record_path(subject) == f"/contractTypes/{path}"
    assert RESOURCES["achievements"].record_path(subject) is None


def test_a_known_resource_can_be_overridden_in_part() -> None:
    """A configured path of a known resource wins; the rest comes from the reference."""
    found = resource_of("achievements", path="/x/{id}/y", type_name="badge")
    assert (found.path, found.type_name, found.detail_path, found.delta) == ("/x/{id}/y", "badge", None, False)


# Laws of :mod:`poller.source.feed`.


def test_a_result_has_the_fields_of_the_contract() -> None:
    """A printed result has exactly the contract's fields, in its order."""
    result = RoundResult(2, 15, 1, 2, 3, 4, 5, 0.123, feed="acme/f", mode=RoundMode.DELTA, ok=True)
    assert msgspec.json.decode(msgspec.json.encode(result.public)) == {
        "feed": "acme/f",
        "mode": "delta",
        "ok": True,
        "pages": 2,
        "records": 15,
        "created": 1,
        "modified": 2,
        "removed": 3,
        "unchanged": 4,
        "quarantined": 5,
        "seconds": 0.123,
        "error": None,
    }
    names = "feed mode ok pages records created modified removed unchanged quarantined seconds error"
    assert list(result.public) == names.split()
    assert result.changes == 6


def test_what_is_internal_to_a_result_is_not_printed() -> None:
    """A printed result does not show the remaining time of another process's lease."""
    skipped = RoundResult(feed="acme/f", mode=RoundMode.SKIPPED, ok=True, wait=timedelta(seconds=3))
    assert "wait" not in skipped.public
