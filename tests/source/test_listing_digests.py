"""Laws of the digests of substreams: a listing that is as its last reading left it is passed over, as if compared."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.plan import Commit, RemovalGuard, SubstreamSnapshot
from poller.errors import SourceRefused, SourceUnavailable, StoreUnavailable
from poller.source.client import ConditionalReader, ConditionalResponse, Validators
from poller.source.feed import Feed, RoundMode, RoundResult
from poller.source.paging import Params
from poller.source.round import run_round
from tests.source.round_sides import ACHIEVEMENTS, WallClock, records
from tests.source.test_page_digests import Counting

MINUTE = timedelta(minutes=1)
NAMES = ("q0", "q1", "q2")
FEED = msgspec.structs.replace(ACHIEVEMENTS, qualifications=NAMES, discover=False, breaker=RemovalGuard(None))


class CountingListings(Counting):
    """Likewise, for listings."""

    async def listings(self) -> dict[str, SubstreamSnapshot]:
        found = await super().listings()
        if self.has_digests:
            return found
        return {name: msgspec.structs.replace(one, content=b"") for name, one in found.items()}


class Listings:
    """A source of three listings, each of one page or of several."""

    def __init__(self, feed: Feed = FEED, *, digests: bool = True) -> None:
        self.feed = feed
        self.store = CountingListings(digests=digests)
        self.clock = WallClock()
        self.clock.drive_monotonic()  # a slow machine writes no marks of progress between
        self.pages: dict[str, list[list[Any]]] = {name: [records(name.upper())] for name in NAMES}
        self.failing: dict[str, Exception] = {}
        self.then: Callable[[], None] = lambda: None  # called once, after the next request
        self.unchanged = 0

    async def get(self, path: str, params: Params) -> bytes:
        name = path.split("/")[2]
        if name in self.failing:
            raise self.failing[name]
        place = int(dict(params).get("pageToken", 0))
        further = str(place + 1) if place + 1 < len(self.pages[name]) else None
        body = json.dumps({"results": self.pages[name][place], "pageToken": further}).encode()
        then, self.then = self.then, lambda: None
        then()
        return body

    async def ask(self, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
        body = await self.get(path, params)
        tag = f'"{hash(body)}"'
        if unless.etag == tag:
            self.unchanged += 1
            return ConditionalResponse(None)
        return ConditionalResponse(body, Validators(etag=tag))

    async def __call__(self, reader: ConditionalReader | None = None) -> RoundResult:
        self.clock.pass_by(MINUTE)
        self.store.now_ms = int(self.clock.time.timestamp() * 1000)
        self.store.asked = 0
        get = reader.get if reader else self.get
        return await run_round(self.feed, self.store, get, clock=self.clock, qualifications=_none, unchanged=reader)

    @property
    def changes(self) -> list[tuple[str, str]]:
        return [(event["subject"], event["type"].split(".")[-2]) for event in self.store.events]


async def _none(since: int) -> Mapping[str, int]:
    return {}


async def settled(listings: Listings, reader: ConditionalReader | None = None) -> None:
    """Read all of them twice: the second reading finds nothing."""
    for _ in range(2):
        assert (await listings(reader)).ok
    assert all(one.content for one in listings.store.kept_listings.values())


async def test_of_an_unchanged_listing_no_snapshot_is_read() -> None:
    """No record is compared, and all are counted."""
    listings = Listings()
    await settled(listings)
    result = await listings()
    assert (result.records, result.unchanged, result.changes, listings.store.asked) == (3, 3, 0, 0)


async def test_listings_of_known_records_are_counted() -> None:
    """All listings together, if each has one page that is stored as it was read, and with the rules of now."""
    listings = Listings()
    await settled(listings)
    await listings()
    assert listings.store.counted[-1:] == [3]
    listings.feed = msgspec.structs.replace(listings.feed, ignore=("/m",))
    listings.failing["q1"] = SourceUnavailable("no answer")
    assert not (await listings()).ok
    assert listings.store.counted[-1:] == [None]
    listings.failing.clear()
    listings.pages["q1"] = [records("Q1"), records("Q3")]
    await listings()
    assert listings.store.counted[-1:] == [None]
    listings.pages["q1"] = [records("Q1", "Q3")]
    await listings()
    assert listings.store.counted[-1:] == [4]


async def test_listings_are_not_counted_where_an_id_has_changed_its_type() -> None:
    """Another one that was read before may hold the key that the record had until then."""
    listings = Listings()
    listings.pages |= {"q0": [[{"id": "7"}]], "q1": [[{"id": "7"}]]}
    await settled(listings)
    listings.pages["q1"] = [[{"id": 7}]]
    await listings()
    assert listings.store.snapshots["7"].removed
    assert listings.store.counted[-1:] == [None]


async def test_only_a_listing_that_differs_is_compared() -> None:
    """What changed is published, and nothing is read of the others, in the next rounds neither."""
    listings = Listings()
    await settled(listings)
    listings.pages["q1"] = [records("Q1", value=2)]
    assert ((await listings()).modified, listings.store.asked) == (1, 1)
    await listings()  # the one that was read before it looks once whether its records were published by another one
    assert listings.store.asked == 1
    assert ((await listings()).unchanged, listings.store.asked) == (3, 0)


async def test_a_listing_whose_record_was_published_by_another_one_is_compared() -> None:
    """Two listings have one record in different versions: each reading publishes the version that it shows."""
    listings = Listings()
    listings.pages["q1"] = [[*records("Q1"), *records("Q0")]]
    await settled(listings)
    listings.pages["q1"] = [[*records("Q1"), *records("Q0", value=2)]]
    for _ in range(4):
        assert (await listings()).modified >= 1
    shown = [event["data"]["record"]["n"] for event in listings.store.events if event["subject"] == "Q0"]
    assert {(one, other) for one, other in itertools.pairwise(shown)} == {(1, 2), (2, 1)}


async def test_an_unchanged_listing_whose_record_was_published_in_the_same_round_is_read() -> None:
    """The other listing may show an older version: what is known is compared with both."""
    listings = Listings()
    reader = ConditionalReader(listings.ask)
    listings.pages["q0"] = [[*records("Q1"), *records("Q0")]]
    for _ in range(2):
        assert (await listings(reader)).ok
    assert listings.unchanged == 3
    listings.pages["q0"] = [[*records("Q1", value=2), *records("Q0")]]
    assert (await listings(reader)).modified == 2
    assert [event["data"]["record"]["n"] for event in listings.store.events if event["subject"] == "Q1"] == [1, 2, 1]


async def test_a_listing_of_several_pages_is_compared() -> None:
    """The digest of its first page would say nothing about the others."""
    listings = Listings()
    listings.pages["q1"] = [records("Q1"), records("R1")]
    for _ in range(8):  # a listing of several pages is confirmed first
        await listings()
    assert not listings.store.kept_listings["q1"].content
    listings.pages["q1"] = [records("Q1"), records("R1", value=2)]
    assert (await listings()).modified == 1


async def test_a_page_more_is_read() -> None:
    """The first page is as the only one was."""
    listings = Listings()
    await settled(listings)
    listings.pages["q1"] = [records("Q1"), records("R1")]
    assert (await listings()).created == 1
    listings.pages["q1"] = [records("Q1")]
    await listings()
    await listings()
    assert listings.changes[-1] == ("R1", "removed")


@pytest.mark.parametrize(
    "page", [[*records("Q1"), {"n": 1}], [*records("Q1"), *records("Q1", value=2)]], ids=["no id", "a record twice"]
)
async def test_a_listing_that_is_not_stored_as_it_is_has_no_digest(page: list[Any]) -> None:
    """The next reading looks at it once more."""
    listings = Listings()
    listings.pages["q1"] = [page]
    for _ in range(3):
        await listings()
    assert listings.store.asked > 0
    assert not listings.store.kept_listings["q1"].content


@pytest.mark.parametrize("after", [{"ignore": ("/n",)}, {"removals": False}], ids=["ignore", "removals"])
async def test_other_rules_compare_everything(after: dict[str, Any]) -> None:
    """Digests say nothing about other rules of comparison."""
    listings = Listings()
    await settled(listings)
    listings.feed = msgspec.structs.replace(listings.feed, **after)
    await listings()
    assert listings.store.asked == 3


async def test_an_operators_resync_compares_everything() -> None:
    """It reads everything, even what is unchanged."""
    listings = Listings()
    await settled(listings)
    listings.store.mark("resync", "1")
    assert ((await listings()).mode, listings.store.asked) == (RoundMode.RESYNC, 3)


async def test_a_reading_that_ends_after_its_records_forgets_the_digest() -> None:
    """The listing returns to what it was: its record was stored in another version meanwhile, without an event."""
    listings = Listings(msgspec.structs.replace(FEED, silent_baseline=True))
    await settled(listings)
    listings.pages["q1"] = [records("Q1", value=2)]
    listings.store.failing = lambda commit: StoreUnavailable("gone") if commit.listings and not commit.events else None
    assert not (await listings()).ok
    assert listings.changes == [("Q1", "modified")]
    assert not listings.store.kept_listings["q1"].content
    listings.store.failing = lambda _: None
    listings.pages["q1"] = [records("Q1")]
    await listings()
    assert listings.changes == [("Q1", "modified")] * 2


RECORD = st.tuples(st.sampled_from(["a", "b", "c", 1, "1"]), st.sampled_from([0, 0, 0, 1, 9]))  # 9: not usable
PAGE = st.lists(RECORD, max_size=3)
BETWEEN = st.sampled_from(["nothing", "nothing", "nothing", "ignore", "removals", "write", "resync", "wait", "forget"])
STEP = st.tuples(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),  # which pages each listing has
    BETWEEN,
    st.none() | st.integers(1, 4),  # the commit that fails
    st.sampled_from([None, None, None, *NAMES]),  # the listing that fails
    st.booleans(),  # in which way
)


def _records(page: list[tuple[Any, int]]) -> list[Any]:
    return [{"id": one, "n": version} if version < 9 else {"id": one, "n": "\ud800"} for one, version in page]


async def _played(pages: list[list[list[Any]]], steps: list[Any], feed: Feed, *, digests: bool) -> Any:
    listings = Listings(feed, digests=digests)
    results = []
    for which, between, fails_at, failing, refused in steps:
        await _between(between, listings)
        commits = 0

        def failure(_: Commit, at: int | None = fails_at) -> StoreUnavailable | None:
            nonlocal commits
            commits += 1
            return StoreUnavailable("gone") if commits == at else None

        listings.store.failing = failure
        listings.pages = {name: pages[place] for name, place in zip(NAMES, which, strict=True)}
        kind = SourceRefused("410", status=410) if refused else SourceUnavailable("down")
        listings.failing = {failing: kind} if failing else {}
        results.append(await listings())
    return results, listings.store


async def _between(what: str, listings: Listings) -> None:
    store, state = listings.store, listings.store.state
    store.failing = lambda _: None
    if what == "ignore":
        listings.feed = msgspec.structs.replace(listings.feed, ignore=() if listings.feed.ignore else ("/n",))
    elif what == "removals":
        listings.feed = msgspec.structs.replace(listings.feed, removals=not listings.feed.removals)
    elif what == "resync":
        store.mark("resync", "1")
    elif what == "wait":
        listings.clock.pass_by(MINUTE * 200)
    elif what == "forget":
        store.kept_listings.pop("q1", None)
    elif what == "write" and store.snapshots:
        key, known = min(store.snapshots.items())
        if not known.removed:
            raw = known.raw.replace(b'"n": ', b'"n": 1')
            written = {key: msgspec.structs.replace(known, raw=raw, sequence=state.sequence + 1)}
            event = b'{"subject":"a","type":"x.created.v1","data":{"cause":"full"}}'
            await store.commit(Commit(state.generation, state.sequence, written, (event,)))


FEEDS = [FEED, msgspec.structs.replace(FEED, newest=True), msgspec.structs.replace(FEED, silent_baseline=True)]


@given(
    pages=st.lists(st.lists(PAGE, min_size=1, max_size=2), min_size=4, max_size=4),
    steps=st.lists(STEP, min_size=3, max_size=9),
    feed=st.sampled_from(FEEDS),
)
def test_what_is_published_does_not_depend_on_digests(pages: Any, steps: Any, feed: Feed) -> None:
    """The same events, snapshots and counts, whatever is listed, written by others, configured, or fails between."""
    listed = [[_records(page) for page in listing] for listing in pages]
    results, store = asyncio.run(_played(listed, steps, feed, digests=True))
    expected, plain = asyncio.run(_played(listed, steps, feed, digests=False))
    assert store.events == plain.events
    assert store.snapshots == plain.snapshots
    counts = ("ok", "mode", "records", "unchanged", "created", "modified", "removed", "quarantined", "pages", "error")
    for one, other in zip(results, expected, strict=True):
        assert [getattr(one, name) for name in counts] == [getattr(other, name) for name in counts]


@pytest.mark.parametrize("tagged", [False, True])
async def test_a_listing_that_shows_an_older_version_than_the_round_has_published_is_compared_again(
    tagged: bool,
) -> None:
    """A record went to another listing in its old version: it may be the true one."""
    listings = Listings()
    reader = ConditionalReader(listings.ask) if tagged else None
    for name in NAMES:
        listings.pages[name] = [[_version(name, 1)]]
    await settled(listings, reader)
    listings.pages["q0"] = [[_version("q0", 9)]]

    def moved() -> None:
        listings.pages["q0"], listings.pages["q1"] = [[]], [[_version("q1", 1), _version("q0", 1)]]

    listings.then = moved
    assert (await listings(reader)).modified == 1
    assert [(await listings(reader)).modified for _ in range(2)] == [1, 0]
    assert listings.store.snapshots["q0"].raw == json.dumps(_version("q0", 1)).encode()


def _version(subject: str, n: int) -> dict[str, Any]:
    return {"id": subject, "n": n, "lastModifiedAt": f"2025-03-01T10:00:{n:02d}Z"}


async def test_a_listing_that_shows_a_version_which_is_held_back_has_no_digest() -> None:
    """What holds it back may end without an event."""
    listings = Listings(msgspec.structs.replace(FEED, newest=True))
    listings.pages["q0"] = [[_version("q0", 9)]]
    await settled(listings)
    listings.pages["q0"] = [[_version("q0", 1)]]
    listings.feed = msgspec.structs.replace(listings.feed, second_look=MINUTE * 60)
    for _ in range(3):
        assert (await listings()).changes == 0
    assert not listings.store.kept_listings["q0"].content
