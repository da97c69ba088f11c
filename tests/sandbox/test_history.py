"""Laws of :mod:`poller.sandbox.history`."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from poller.sandbox.api import SandboxRequest, answer
from poller.sandbox.history import RESOURCES, History, LogList, UnusableRecord
from tests.sandbox.conftest import NOON

if TYPE_CHECKING:
    from datetime import datetime


class Row(msgspec.Struct, frozen=True):
    number: int


def listing_of(rows: list[Row], struck: set[int]) -> LogList[Row]:
    listing: LogList[Row] = LogList()
    for row in rows:
        listing.append(row)
    for row in rows:
        if row.number in struck:
            listing.strike(row)
    return listing


@given(
    numbers=st.lists(st.integers(1, 1000), unique=True, max_size=300).map(sorted),
    struck=st.sets(st.integers(1, 1000), max_size=300),
    after=st.integers(0, 1001),
    limit=st.integers(1, 50),
)
def test_a_page_is_the_next_live_rows(numbers: list[int], struck: set[int], after: int, limit: int) -> None:
    """A page has the first live rows after ``after`` and says whether more follow, compacted or not."""
    listing = listing_of([Row(number) for number in numbers], struck)
    live = [number for number in numbers if number not in struck]
    page = listing.page(after=after, limit=limit)
    ahead = [number for number in live if number > after]
    assert [row.number for row in page.rows] == ahead[:limit]
    assert page.more == (len(ahead) > limit)
    assert len(listing) == len(live)


def test_struck_rows_are_dropped_in_the_end() -> None:
    """A listing keeps a bounded number of rows, however often its one record changes."""
    listing: LogList[Row] = LogList()
    listing.append(Row(1))
    for number in range(2, 10_000):
        listing.strike(Row(number - 1))
        listing.append(Row(number))
    assert len(listing) == 1
    assert len(listing._rows) < 200


def test_a_pick_is_live() -> None:
    """A pick is one of the live rows, each possible, and None if there are none."""
    rng = Random(1)
    listing = listing_of([Row(number) for number in range(1, 21)], set(range(1, 17)))
    picks = [listing.pick(rng) for _ in range(200)]
    assert {row.number for row in picks if row} == {17, 18, 19, 20}
    assert None not in picks
    assert listing_of([Row(1)], {1}).pick(rng) is None


# Laws of :mod:`poller.sandbox.history`: versions, and that no reader misses a present one.

QUALIFICATION = "0F0F0F0F-0000-4000-8000-000000000001"


class Envelope(msgspec.Struct):
    results: list[msgspec.Raw]
    deltaToken: str  # noqa: N815 - the API's spelling
    pageToken: str | None = None  # noqa: N815 - the API's spelling


class Reading(RuleBasedStateMachine):
    """A reader pages through a list and its deltas while records are created, changed and removed."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self.counter = 0
        self.current: dict[str, bytes] = {}
        self.removed: set[str] = set()
        self.seen: dict[str, bytes] = {}
        self.query: dict[str, str] = {}
        self.round_delta: str | None = None

    @rule(name=st.sampled_from("abcdefghij"), upper=st.booleans())
    def put(self, name: str, *, upper: bool) -> None:
        self.counter += 1
        record = b'{"n":%d,"id":"%s"}' % (self.counter, (name.upper() if upper else name).encode())
        self.history.put("contractTypes", record, NOON)
        self.current[name] = record

    @rule(name=st.sampled_from("abcdefghij"))
    def remove(self, name: str) -> None:
        removed = self.history.remove("contractTypes", name, NOON)
        assert (removed is None) == (name not in self.current)
        if self.current.pop(name, None) is not None:
            self.removed.add(name)

    @rule(limit=st.integers(1, 12))
    def read_a_page(self, limit: int) -> None:
        ask = SandboxRequest("contractTypes", query=(*self.query.items(), ("limit", str(limit))))
        said = answer(self.history, ask)
        assert said.status == 200
        page = msgspec.json.decode(said.body, type=Envelope)
        assert len(page.results) <= limit
        for raw in page.results:
            record = bytes(raw)
            self.seen[msgspec.json.decode(record)["id"].lower()] = record
        self.expect_one_delta_token(page)
        if page.pageToken is not None:
            assert page.results
            self.query["pageToken"] = page.pageToken
            return
        self.query, self.round_delta = {"sinceDeltaToken": page.deltaToken}, None
        self.at_the_end_of_a_round()

    def expect_one_delta_token(self, page: Envelope) -> None:
        self.round_delta = self.round_delta or page.deltaToken
        assert page.deltaToken == self.round_delta

    def at_the_end_of_a_round(self) -> None:
        assert self.seen.items() >= self.current.items()
        assert self.seen.keys() - self.current.keys() <= self.removed

    @precondition(lambda self: "pageToken" in self.query)
    @rule()
    def give_up_the_round(self) -> None:
        """A reader that loses a round starts it again from its delta token."""
        self.query.pop("pageToken")
        self.round_delta = None

    @invariant()
    def nothing_is_forgotten(self) -> None:
        versions = list(self.history.since(0))
        assert [version.number for version in versions] == list(range(1, self.history.version + 1))
        assert self.history.count("contractTypes") == len(self.current)


TestReading = Reading.TestCase
TestReading.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestReading.__doc__ = """A finished round, full or delta, has listed every present record as it is now, whatever changed
meanwhile; any other record it listed was removed. All pages of a round carry its first delta token."""


def achievement(id_: str, qualification: str) -> dict[str, str]:
    return {"id": id_, "qualificationID": qualification}


def listed(history: History, qualification: str) -> list[str]:
    return [row.id for row in history.page("achievements", qualification, after=0, limit=100).rows]


def test_an_achievement_moves_with_its_qualification(history: History, at: datetime) -> None:
    """An achievement is listed under its present qualification only; both qualifications stay known."""
    other = QUALIFICATION.replace("1", "2")
    history.put("achievements", achievement("A", QUALIFICATION), at)
    history.put("achievements", achievement("a", other), at)
    assert listed(history, QUALIFICATION.lower()) == []
    assert listed(history, other) == ["a"]
    assert history.knows_qualification(QUALIFICATION.lower())
    assert not history.knows_qualification("unheard-of")


def test_a_variant_makes_its_qualification_known(history: History, at: datetime) -> None:
    """A qualification that only an evidence variant names is known and has no achievements."""
    history.put("evidenceVariants", {"id": "v", "qualificationID": QUALIFICATION}, at)
    assert history.knows_qualification(QUALIFICATION)
    assert listed(history, QUALIFICATION) == []


def test_ids_are_one_whatever_their_case(history: History, at: datetime) -> None:
    """An id in another case is the same record, served in the latest spelling."""
    history.put("contractTypes", b'{"id":"AbC"}', at)
    history.put("contractTypes", b'{"id":"aBc","x":1}', at)
    version = history.find("contractTypes", "ABC")
    assert version is not None
    assert (version.id, version.record, history.count("contractTypes")) == ("aBc", b'{"id":"aBc","x":1}', 1)


def test_resources_do_not_share_ids(history: History, at: datetime) -> None:
    """The same id in two resources is two records with one version numbering."""
    history.put("contractTypes", {"id": "x"}, at)
    history.put("employmentUnavailabilities", {"id": "x"}, at)
    history.remove("contractTypes", "x", at)
    assert history.find("contractTypes", "x") is None
    assert history.find("employmentUnavailabilities", "x") is not None
    assert history.version == 3


def test_a_removed_record_can_come_back(history: History, at: datetime) -> None:
    """A record put again after its removal is present again."""
    history.put("contractTypes", {"id": "x"}, at)
    history.remove("contractTypes", "x", at)
    history.put("contractTypes", {"id": "x"}, at)
    assert history.count("contractTypes") == 1
    assert [version.record is None for version in history.since(0)] == [False, True, False]


@pytest.mark.parametrize(
    ("resource", "record"),
    [
        ("contractTypes", b"[]"),
        ("contractTypes", b'{"id":1}'),
        ("contractTypes", b"{}"),
        ("contractTypes", b'{"id":"x"'),
        ("achievements", b'{"id":"x"}'),
        ("evidenceVariants", b'{"id":"x","qualificationID":7}'),
        ("contractTypes", b'{"id":"x","y":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ],
)
def test_what_cannot_be_listed_is_refused(history: History, at: datetime, resource: str, record: bytes) -> None:
    """A record without an identity is refused and adds no version."""
    with pytest.raises(UnusableRecord):
        history.put(resource, record, at)
    assert history.version == 0


# Laws of :mod:`poller.sandbox.history`.

REFERENCE = {
    "evidenceVariants": "id qualificationID code name externalCode externalId interval createdAt lastModifiedAt",
    "employmentUnavailabilities": "id employmentID reason interval createdAt lastModifiedAt",
    "contractTypes": "id code name externalCode externalId createdAt lastModifiedAt",
    "achievements": "id qualificationID evidenceVariantID employmentID submittedByID approvedByID issueDate "
    "expirationDate overriddenExpirationDate remark scoreOrder isAutoAchieved documents externalCode externalId "
    "createdAt lastModifiedAt",
}


@pytest.mark.parametrize("name", REFERENCE)
def test_fields_are_those_of_the_reference(name: str) -> None:
    """Every resource has exactly the reference's fields."""
    assert RESOURCES[name].fields == set(REFERENCE[name].split())


def test_resources_are_those_of_the_reference() -> None:
    """There are four resources; only achievements belong to a qualification and have no delta."""
    assert RESOURCES.keys() == REFERENCE.keys()
    assert [name for name, resource in RESOURCES.items() if resource.of_qualification] == ["achievements"]
    assert [name for name, resource in RESOURCES.items() if not resource.takes_delta] == ["achievements"]
