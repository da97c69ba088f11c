"""Laws of :mod:`poller.changes.plan`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from poller.changes.canonical import without
from poller.changes.diff import ChangeKind, Snapshot
from poller.changes.events import Cause, EventFrame
from poller.changes.full_readings import HeldVersion, VersionPolicy
from poller.changes.plan import (
    Commit,
    MetKeys,
    PublishRules,
    RoundCounts,
    SeenKeys,
    SubstreamSnapshot,
    packed,
    plan,
    plan_removals,
    seconds_of,
)
from poller.changes.records import Rejected, record_reader
from tests.changes.samples import FEW


def test_tallies_add_up_field_by_field() -> None:
    """``+=`` adds each field to the first tally and leaves the second unchanged."""
    total, part = RoundCounts(1, 2, 3, 4, 5, 6, 7, 0.5), RoundCounts(10, 20, 30, 40, 50, 60, 70, 1.0)
    same = total
    total += part
    assert total is same
    assert total == RoundCounts(11, 22, 33, 44, 55, 66, 77, 1.5)
    assert part == RoundCounts(10, 20, 30, 40, 50, 60, 70, 1.0)


@pytest.mark.parametrize("kind", list(ChangeKind))
def test_each_kind_has_its_count(kind: ChangeKind) -> None:
    """Counting a change counts its kind and nothing else."""
    tally = RoundCounts()
    tally.count(kind, 1)
    assert getattr(tally, kind) == 1
    assert tally.created + tally.modified + tally.removed == 1


def test_a_commit_knows_where_it_leads_and_whether_it_is_needed() -> None:
    """Each event takes one sequence number; a commit with nothing to write is empty."""
    assert Commit("g", 7, events=(b"a", b"b")).next_sequence == 9
    assert Commit("g", 7, qualifications=("q",)).empty
    assert not Commit("g", 7, snapshots={"k": Snapshot(0, 0, b"{}")}).empty
    assert not Commit("g", 7, events=(b"a",)).empty
    assert not Commit("g", 7, rejected=(Rejected(b"", "why"),)).empty
    assert not Commit("g", 7, marks={"m": None}).empty


# Laws of :mod:`poller.changes.plan`: the keys of a listing are stored exactly, and compactly.

UUIDS = st.uuids().map(str)
KEYS = st.lists(UUIDS | UUIDS.map(str.upper) | st.text(min_size=1, max_size=40) | st.just("{" + "0" * 34 + "}"))


@given(KEYS)
def test_keys_come_back_as_they_were(keys: list[str]) -> None:
    """Any key is restored from its packed form, including a UUID in an unusual spelling."""
    assert list(SubstreamSnapshot(held=packed(keys)).keys) == keys


def test_a_uuid_takes_18_bytes() -> None:
    """A packed UUID takes its 16 bytes and two more."""
    assert len(packed([str(UUID(int=number)) for number in range(10)])) == 10 * 18 + 1


def test_a_reading_that_ended_replaces_what_was_held_and_one_that_failed_does_not() -> None:
    """A failed reading keeps the keys and discards the validators."""
    listing = SubstreamSnapshot().after(5, keys=["a", "b"], changed=True, validators={"If-None-Match": '"1"'})
    failed = listing.failed(9)
    assert (list(failed.keys), failed.tried, failed.read, failed.validators) == (["a", "b"], 9, 5, {})
    same = listing.unchanged(9)
    assert (list(same.keys), same.tried, same.read, same.validators) == (["a", "b"], 9, 9, listing.validators)
    gone = same.after(11, gone=True)
    assert (list(gone.keys), gone.read, gone.gone) == ([], 11, True)


def test_a_copy_leaves_what_the_reading_before_it_was_the_first_to_lack() -> None:
    """A copy from a cache is no reading: what the last reading lacked is still what the last one lacked."""
    lacking = SubstreamSnapshot().after(5, keys=["a", "b"]).after(7, keys=["a"])
    assert list(lacking.keys_left) == ["b"]
    assert list(lacking.after(9, keys=["a"], copied=1000).keys_left) == ["b"]
    assert list(lacking.after(9, keys=["a"]).keys_left) == []


def test_heat_rises_with_changes_and_cools_with_rest() -> None:
    """Heat tends to 2 when every reading changes something and to 0 when none does."""
    listing = SubstreamSnapshot()
    for moment in range(20):
        listing = listing.after(moment, changed=True)
    assert 1.99 < listing.heat <= 2
    for moment in range(20):
        listing = listing.unchanged(moment)
    assert listing.heat < 0.01


# Laws of :mod:`poller.changes.plan`, the last of them as a state machine of pages and crashes.

QUALIFICATION: Final = "0b8ce21a-7f3d-4cc5-9e1b-00aabbccddee"
RECORDED: Final = "2025-03-01T12:00:00.000Z"
CHANGED_AT: Final = 1_740_830_400
read: Final = record_reader("id")


def planned(
    raws: Iterable[bytes],
    known: Mapping[str, Snapshot] | None = None,
    *,
    sequence: int = 0,
    rules: PublishRules | None = None,
    cause: Cause = Cause.DELTA,
) -> tuple[Commit, RoundCounts]:
    frame = EventFrame(feed="acme/f", generation="g", source="urn:x", type_stem="t", cause=cause)
    return plan(
        [read(raw) for raw in raws],
        known or {},
        frame=frame,
        generation="g",
        sequence=sequence,
        recorded=RECORDED,
        rules=rules or PublishRules(),
    )


def decoded(commit: Commit) -> list[dict[str, Any]]:
    return [json.loads(event) for event in commit.events]


def sum_of(tally: RoundCounts) -> int:
    return tally.created + tally.modified + tally.removed + tally.unchanged + tally.quarantined


BROKEN_ONE: Final = b'{"id":"x","n":[[[}'


def version(subject: str, value: int) -> bytes:
    return b'{"id":"%b","n":%d}' % (subject.encode(), value)


BROKEN = st.sampled_from([b"{}", b"[]", b'{"id":""}', b'{"id":"a","n":"\xff"}', b'{"id":"a","n":[[[}'])
VERSIONS = st.builds(version, st.sampled_from("abcd"), st.integers(0, 2))
SLICES = st.lists(VERSIONS | BROKEN, max_size=8)


def distinct(raws: Iterable[bytes]) -> list[bytes]:
    """Each record once."""
    return list({getattr(read(raw), "key", raw): raw for raw in raws}.values())


@FEW
@given(SLICES, SLICES)
def test_planning_a_slice_again_after_its_commit_finds_nothing(earlier: list[bytes], raws: list[bytes]) -> None:
    """A slice of distinct records planned again after its own commit is all unchanged, whatever the cause."""
    known = planned(earlier)[0].snapshots
    first, tally = planned(distinct(raws), known, sequence=7)
    left = {**known, **first.snapshots}
    again, second = planned(distinct(raws), left, sequence=first.next_sequence, cause=Cause.RESYNC)
    assert (again.events, dict(again.snapshots)) == ((), {})
    assert again.rejected == first.rejected
    assert second.unchanged == tally.records - tally.quarantined


@FEW
@given(SLICES)
def test_every_record_is_counted_once(raws: list[bytes]) -> None:
    """Counts add up to the records; each event is a creation or modification, each rejection is quarantined."""
    commit, tally = planned(raws)
    assert tally.records == len(raws) == sum_of(tally)
    assert len(commit.events) == tally.created + tally.modified
    assert len(commit.rejected) == tally.quarantined


@FEW
@given(SLICES, st.integers(0, 10**12))
def test_sequences_have_no_gaps_and_revisions_rise_by_one(raws: list[bytes], sequence: int) -> None:
    """Sequence numbers have no gaps, and each record's revisions rise by one."""
    commit, _ = planned(raws, {"a": Snapshot(5, 3, version("a", 0))}, sequence=sequence)
    events = decoded(commit)
    assert [int(event["sequence"]) for event in events] == list(range(sequence + 1, commit.next_sequence + 1))
    for key, before in (("a", 5), ("b", 0), ("c", 0), ("d", 0)):
        revisions = [event["data"]["revision"] for event in events if event["subject"] == key]
        assert revisions == list(range(before + 1, before + 1 + len(revisions)))
        if revisions:
            last = [event for event in events if event["subject"] == key][-1]
            kept = commit.snapshots[key]
            assert (kept.revision, kept.sequence) == (revisions[-1], int(last["sequence"]))
            assert json.loads(kept.raw) == last["data"]["record"]
        else:
            assert key not in commit.snapshots


@FEW
@given(st.lists(VERSIONS, max_size=8), st.lists(st.tuples(st.integers(0, 8), BROKEN), max_size=4))
def test_rejected_records_do_not_disturb_the_others(raws: list[bytes], broken: list[tuple[int, bytes]]) -> None:
    """Unusable records anywhere in a slice do not change the events and snapshots of the usable ones."""
    mixed = list(raws)
    for place, raw in broken:
        mixed.insert(place, raw)
    alone, disturbed = planned(raws)[0], planned(mixed)[0]
    assert (disturbed.events, disturbed.snapshots) == (alone.events, alone.snapshots)
    assert sorted(rejected.raw for rejected in disturbed.rejected) == sorted(raw for _, raw in broken)
    assert all(rejected.reason for rejected in disturbed.rejected)


@pytest.mark.parametrize("strip", [None, without(("/n",))])
@pytest.mark.parametrize("beside", [BROKEN_ONE, version("Known", 2)])
def test_new_records_are_planned_together_as_beside_others(strip: Callable[[Any], Any] | None, beside: bytes) -> None:
    """New records get the same events and snapshots whether all of a slice are new or not."""
    new = [
        b'{"id":"%b","n":%d,"lastModifiedAt":"2025-01-31T09:30:0%dZ","qualificationID":"%b"}'
        % (subject.encode(), number, number, QUALIFICATION.encode())
        for number, subject in enumerate(("a", QUALIFICATION.upper(), "c"))
    ]
    known, rules = {"Known": Snapshot(1, 1, version("Known", 2))}, PublishRules(strip, round_start=5)
    together, tally = planned(new, known, sequence=7, rules=rules)
    apart, others = planned([*new, beside], known, sequence=7, rules=rules)
    assert (together.events, together.snapshots, together.qualifications) == (
        apart.events,
        apart.snapshots,
        apart.qualifications,
    )
    assert (tally.created, tally.records, others.created) == (3, 3, 3)
    assert beside == BROKEN_ONE or together.digest == apart.digest
    held = VersionPolicy({"a": HeldVersion(b"x")}, begun=0, now=0)
    assert planned(new, known, rules=PublishRules(strip, holding=held))[0].held == {"a": None}


def test_a_record_twice_in_a_slice_is_compared_with_its_own_first_version() -> None:
    """Two versions of a record in one slice are two events, and the first is the previous version of the second."""
    commit, tally = planned([version("a", 1), version("a", 1), version("a", 2)])
    assert (tally.created, tally.modified, tally.unchanged) == (1, 1, 1)
    assert decoded(commit)[1]["data"]["previous"] == {"id": "a", "n": 1}
    assert commit.snapshots == {"a": Snapshot(2, 2, version("a", 2), changed_at=CHANGED_AT)}


def test_a_value_that_goes_and_comes_back_is_three_changes() -> None:
    """The values A, B, A give three events with three ids, the same in one slice as in three."""
    values = [version("a", value) for value in (1, 2, 1)]
    at_once = [event["id"] for event in decoded(planned(values)[0])]
    known: dict[str, Snapshot] = {}
    one_by_one = []
    for sequence, raw in enumerate(values):
        commit = planned([raw], known, sequence=sequence, cause=Cause.FULL)[0]
        known |= commit.snapshots
        one_by_one += [event["id"] for event in decoded(commit)]
    assert len(set(at_once)) == 3
    assert one_by_one == at_once


def test_a_record_that_returns_goes_on_counting() -> None:
    """A removed record that returns is created with the next revision, and its tombstone is replaced."""
    commit, tally = planned([version("a", 1)], {"a": Snapshot(4, 9, version("a", 1), removed=True)}, sequence=20)
    event = decoded(commit)[0]
    assert (tally.created, event["type"], event["data"]["revision"]) == (1, "t.created.v1", 5)
    assert "previous" not in event["data"]
    assert commit.snapshots == {"a": Snapshot(5, 21, version("a", 1), changed_at=CHANGED_AT)}


def test_a_snapshot_says_when_its_record_changed() -> None:
    """That is when its last event was recorded, in seconds; a record that is only seen again keeps it."""
    first = planned([version("a", 1)])[0].snapshots["a"]
    assert (first.changed_at, seconds_of(RECORDED)) == (CHANGED_AT, CHANGED_AT)
    before = msgspec.structs.replace(first, changed_at=7, missing=True)
    assert planned([version("a", 1)], {"a": before})[0].snapshots["a"] == msgspec.structs.replace(before, missing=False)
    frame = EventFrame(feed="acme/f", generation="g", source="urn:x", type_stem="t", cause=Cause.DELTA)
    gone, _ = plan_removals({"a": ("a", before)}, {"a": frame}, generation="g", sequence=1, recorded=RECORDED)
    assert (gone.snapshots["a"].changed_at, gone.snapshots["a"].removed) == (CHANGED_AT, True)
    assert [seconds_of(f"{year}-01-01T00:00:00Z") for year in ("1960", "2200")] == [0, 2**32 - 1]


def test_a_silent_baseline_keeps_and_says_nothing() -> None:
    """A silent baseline stores snapshots without events; the first later change has revision 1."""
    silent, tally = planned([version("a", 1), version("b", 1), version("b", 2)], rules=PublishRules(silent=True))
    assert (silent.events, silent.next_sequence, sum_of(tally)) == ((), 0, 3)
    assert silent.snapshots == {
        "a": Snapshot(0, 0, version("a", 1), changed_at=CHANGED_AT),
        "b": Snapshot(0, 0, version("b", 2), changed_at=CHANGED_AT),
    }
    assert planned([version("a", 1), version("b", 2)], rules=PublishRules(silent=True))[0].snapshots == silent.snapshots
    after = decoded(planned([version("a", 1), version("b", 3)], silent.snapshots)[0])
    assert [(event["type"], event["data"]["revision"], event["sequence"]) for event in after] == [
        ("t.modified.v1", 1, "0" * 19 + "1")
    ]


def test_what_is_ignored_gives_no_event() -> None:
    """A difference in an ignored field gives no event, and the snapshot stays as last published."""
    rules = PublishRules(without(("/n",)))
    first = planned([version("a", 1)], rules=rules)[0]
    again, tally = planned([version("a", 2)], first.snapshots, sequence=1, rules=rules)
    assert (again.empty, tally.unchanged) == (True, 1)


def test_keys_meet_in_any_case_of_their_uuid() -> None:
    """A UUID in another case is the same record: unchanged if nothing else differs, otherwise its next revision."""
    cases = (QUALIFICATION, QUALIFICATION.upper())
    lower, upper = (b'{"id":"%b"}' % subject.encode() for subject in cases)
    assert planned([lower, upper])[1].modified == 0
    commit, tally = planned([lower, b'{"id":"%b","n":1}' % QUALIFICATION.upper().encode()])
    assert (tally.created, tally.modified) == (1, 1)
    assert set(commit.snapshots) == {QUALIFICATION}
    assert [event["subject"] for event in decoded(commit)] == [QUALIFICATION, QUALIFICATION.upper()]


def test_qualifications_are_noted_once() -> None:
    """Each qualification that a changed record names is noted once, in order of appearance."""
    raws = [b'{"id":"%d","qualificationID":"%b"}' % (number, QUALIFICATION.encode()) for number in range(3)]
    assert planned([*raws, version("a", 1)])[0].qualifications == (QUALIFICATION,)


def test_commits_with_different_events_have_different_digests() -> None:
    """The digest of a commit is equal for the same events and different for others."""
    digests = [planned([version("a", value) for value in values])[0].digest for values in ((1,), (2,), (1, 2), (1,))]
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


class PagesAndCrashes(RuleBasedStateMachine):
    """Pages are planned and committed, or the process dies before or after the commit and reads the page again.

    The model is the last value of each key and the list of events that an observer of every page would publish.
    """

    @initialize()
    def start(self) -> None:
        self.known: dict[str, Snapshot] = {}
        self.events: list[dict[str, Any]] = []
        self.sequence = 0
        self.model: dict[str, tuple[int, int]] = {}  # key: revision, value
        self.told: list[tuple[str, str, int, int]] = []  # key, kind, revision, value

    @rule(
        page=st.dictionaries(st.sampled_from("abcde"), st.integers(0, 2), max_size=5),
        deaths=st.lists(st.sampled_from(["before", "after"]), max_size=3),
    )
    def page(self, page: dict[str, int], deaths: list[str]) -> None:
        """One page is read until its commit succeeds; each death on the way happens before or after the write."""
        for death in [*deaths, "none"]:
            commit, tally = planned(
                [version(key, value) for key, value in page.items()], self.known, sequence=self.sequence
            )
            assert tally.records == len(page) == sum_of(tally)
            if death != "before":
                self._write(commit)
        for key, value in page.items():
            revision, last = self.model.get(key, (0, -1))
            if value != last:
                self.model[key] = (revision + 1, value)
                self.told.append((key, "modified" if revision else "created", revision + 1, value))

    def _write(self, commit: Commit) -> None:
        assert commit.sequence == self.sequence
        self.known |= commit.snapshots
        self.events += decoded(commit)
        self.sequence = commit.next_sequence

    @invariant()
    def nothing_is_lost_doubled_or_misnamed(self) -> None:
        """The events are those of the model, in order, with sequences without gaps and unique ids."""
        seen = [
            (event["subject"], event["type"].split(".")[1], event["data"]["revision"], event["data"]["record"]["n"])
            for event in self.events
        ]
        assert seen == self.told
        assert [int(event["sequence"]) for event in self.events] == list(range(1, len(seen) + 1))
        assert len({event["id"] for event in self.events}) == len(seen)

    @invariant()
    def the_snapshots_are_the_last_versions(self) -> None:
        """The snapshot of each key is its last version, as received."""
        assert {key: (kept.revision, kept.raw) for key, kept in self.known.items()} == {
            key: (revision, version(key, value)) for key, (revision, value) in self.model.items()
        }


PagesAndCrashes.TestCase.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)
TestPagesAndCrashes = PagesAndCrashes.TestCase


# The keys seen in a round are stored exactly, and compactly.


@given(st.lists(st.lists(st.text(max_size=4), unique=True)), st.sampled_from([0, 3, 1000]))
def test_a_key_that_was_met_is_never_taken_for_new(pages: list[list[str]], few: int) -> None:
    """Each key that was met before is among those that may have been, in order; while keys are few, no other is."""
    met, before = MetKeys(few=few), set[str]()
    for keys in pages:
        again, known = met.meet(keys), [key for key in keys if key in before]
        assert [key for key in again if key in before] == known
        assert again == known or len(before) > few
        before.update(keys)


def test_a_page_may_have_keys_of_the_first_ones_and_of_later_ones() -> None:
    """Both count as met, in the order of the page."""
    met = MetKeys(few=1)
    pages = ["first"], ["later"], ["new", "later", "first"]
    assert [met.meet(keys) for keys in pages] == [[], [], ["later", "first"]]


def test_hardly_a_new_key_is_taken_for_met() -> None:
    """Of 200 000 different keys about thirty are taken for met, and all when they come again."""
    pages = [[f"key {number}" for number in range(start, start + 1000)] for start in range(0, 200_000, 1000)]
    met = MetKeys()
    assert sum(len(met.meet(keys)) for keys in pages) < 100
    assert all(met.meet(keys) == keys for keys in pages)


@given(st.lists(st.text(max_size=40)), st.lists(st.text(max_size=40)))
def test_what_was_seen_is_in_it_and_nothing_else(some: list[str], others: list[str]) -> None:
    """The set contains exactly the keys added, in any order of adding and asking."""
    seen = SeenKeys()
    assert not seen
    seen.update(some)
    assert all(key in seen for key in some)
    assert [key in seen for key in others] == [key in set(some) for key in others]
    seen.update(others)
    assert all(key in seen for key in (*some, *others))
    assert bool(seen) == bool(some or others)


@pytest.mark.parametrize("size", [1, 1000, 1024, 1025, 5000])
def test_a_reading_of_any_size_is_seen(size: int) -> None:
    """Keys that came in parts are in it, once each, and a repetition is noticed, however many there are."""
    keys = [f"key {number}" for number in range(size)]
    seen = SeenKeys()
    for start in range(0, size, 700):
        seen.update(keys[start : start + 700])
        assert keys[start] in seen  # asked in between
    assert all(key in seen for key in keys)
    assert not any(f"other {number}" in seen for number in range(size))
    assert not seen.has_repeated
    seen.update(keys[-1:])
    assert seen.has_repeated
