"""Laws of :mod:`poller.changes.layouts`: what is made of records by columns is what is made of each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.canonical import parse_received, without
from poller.changes.events import Cause, EventFrame
from poller.changes.layouts import Layout
from poller.changes.plan import Commit, PublishRules, plan
from poller.changes.records import Record, Rejected, alike, alike_reader, record_reader
from poller.store.snapshots import SAMPLES, SnapshotCodec
from poller.store.structure import Structure, layouts
from tests.changes.shapes import SHAPES, drawn, encoded, ids_of

RECORDED = "2026-01-02T03:04:05.678Z"
FRAME = EventFrame(
    feed="a/b",
    generation="g",
    source="https://api.example.org/v1/contractTypes",
    type_stem="org.example.api.contractType",
    cause=Cause.BASELINE,
)
read, read_alike = record_reader("id"), alike_reader("id")


def usual(number: int, **changed: object) -> dict[str, object]:
    """A record with a value of each kind."""
    return {
        "id": str(UUID(int=2**100 - number)),
        "employmentID": str(UUID(int=2**99 + number)),
        "why": "é" * (number % 3) + "x",
        "of": {"start": f"2026-01-{number % 28 + 1:02}", "n": 7 * number, "is": None if number % 2 else True},
        "createdAt": f"2026-01-01T00:00:{number % 60:02}.125Z",
        "lastModifiedAt": f"2026-01-01T00:00:{number % 60:02}.125Z",
        "qualificationID": str(UUID(int=2**98 + number)),
    } | changed


def of(records: Sequence[bytes]) -> Layout:
    """The layout of these records that is tried first."""
    return layouts(list(zip(records, ids_of(records), strict=True)))[0]


USUAL = encoded([usual(number) for number in range(1, 9)])
LAYOUT = of(USUAL)


def plain(records: Sequence[Record | Rejected]) -> list[Record | Rejected]:
    """The same, as if they had been read as JSON."""
    return [
        Record(one.key, one.subject, one.raw, one.modified, one.qualification) if isinstance(one, Record) else one
        for one in records
    ]


def planned(records: Sequence[Record | Rejected], rules: PublishRules = PublishRules()) -> Commit:  # noqa: B008 -- it is frozen
    """What a first reading commits of these."""
    return plan(records, {}, frame=FRAME, generation="g", sequence=41, recorded=RECORDED, rules=rules)[0]


def check(raws: Sequence[bytes], layout: Layout) -> bool:
    """Whether these are read by this layout; if so, all that is made of them is as ever."""
    found = read_alike(raws, layout)
    if found is None:
        return False
    alone = [read(raw) for raw in raws]
    assert plain(found) == alone
    by_columns = alike(found)
    assert by_columns is not None
    assert by_columns.keyed_forms(b"|") == [b"%b|%b" % (one.key.encode(), parse_received(one.raw)[1]) for one in found]
    packed = Structure((layout,)).pack_alike(by_columns)
    assert packed == Structure((layout,)).pack(raws, [one.key.encode() for one in found])
    if len({one.key for one in found}) == len(found):
        commit, other = planned(found), planned(alone)
        assert commit.alike == by_columns
        assert other.alike is None
        assert (commit.events, commit.snapshots, commit.digest) == (other.events, other.snapshots, other.digest)
        assert (commit.qualifications, commit.next_sequence) == (other.qualifications, other.next_sequence)
    return True


@given(SHAPES, st.data())
def test_records_of_one_layout_are_read_as_each_by_itself(shape: dict[str, str], data: st.DataObject) -> None:
    """Law: identity, canonical form, event, snapshot, whatever values the records have and whatever layout is tried."""
    samples, others = drawn(shape, data, 6), drawn(shape, data, 3)
    for layout in layouts(list(zip(samples, ids_of(samples), strict=True))):
        for records in (samples, others, samples[:1]):
            check(records, layout)


def test_records_with_a_value_of_each_kind_are_read_by_their_layout() -> None:
    """Law: so what the other laws here say is not said of nothing."""
    assert check(USUAL, LAYOUT)
    assert check(USUAL[:1], LAYOUT)
    assert {"key", "again", "text", "number", "word", "0000-00-00"} <= set(LAYOUT.kinds)
    assert read_alike([], LAYOUT) is None


def test_the_same_time_again_is_that_of_the_last_time() -> None:
    """Law: whatever values stand between the two."""
    records = encoded(
        [{"id": str(UUID(int=n)), "at": f"2026-01-0{n}", "z": "x", "no": n, "a": f"2026-01-0{n}"} for n in range(1, 9)]
    )
    assert of(records).kinds == ("key", "0000-00-00", "text", "number", "again")
    assert check(records, of(records))


def test_a_character_that_does_not_fit_is_never_overlooked() -> None:
    """Law: a record with another byte somewhere is read as it is, or none of those beside it is read by columns."""
    fitting = 0
    others = [b"-", b"0", b"9", b"f", b"g", b"F", b"\n", b'"', b"x", b"\\", b"\xc3", b"\xff", b" ", b"T", b"}", b"\x7f"]
    for at, other in product(range(len(USUAL[1])), others):
        changed = USUAL[1][:at] + other + USUAL[1][at + 1 :]
        fitting += check([USUAL[0], changed, USUAL[2]], LAYOUT)
        check([changed], LAYOUT)
    assert fitting > 100


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("id", UUID(int=5).hex), ("id", str(UUID(int=2**127)).upper()), ("id", 7), ("id", None)),
        *(("why", "a\nb"), ("why", 'a"b'), ("why", "a\\b"), ("why", "x" * 128), ("why", 1), ("why", {})),
        *(("lastModifiedAt", None), ("lastModifiedAt", "2026-01-01T00:00:61.125Z"), ("lastModifiedAt", "2026-01-01")),
        *(("of", {"start": "2026-01-01", "n": value, "is": None}) for value in (10**30, 1.5, 1.0, -7, 0, -0.0, 1e16)),
        *(("qualificationID", "a/b"), ("qualificationID", ""), ("qualificationID", 3), ("more", 1)),
    ],
)
def test_one_record_that_differs_is_read_as_it_is(name: str, value: object) -> None:
    """Law: the others are read as JSON then, and so is it."""
    changed = encoded([usual(3, **{name: value})])
    for raws in ([*USUAL[:2], *changed], [*changed, *USUAL[:2]], changed):
        check(raws, LAYOUT)
    assert check(USUAL[:2], LAYOUT)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lastModifiedAt", ["2026-02-28T23:59:59Z", "2026-02-29T23:59:59Z", "2026-01-01T23:59:60Z"]),
        ("lastModifiedAt", ["2026-02-28T23:59:59+01:00", "2026-02-28T23:59:59+01:75", "2026-02-28T23:59:59+23:59"]),
        ("lastModifiedAt", ["2026-02-28T23:59:59Z", "2026-02-28T24:00:00Z", "2026-02-28T00:00:00Z"]),
        ("lastModifiedAt", ["2026-02-28", "2026-02-27", "2026-02-26"]),
        ("lastModifiedAt", ["yesterday", "2026-02-27T00:00:00Z", ""]),
        ("lastModifiedAt", ["2026-W05-5T09:30:00Z", "2026-W06-5T09:30:00Z", "2026-W07-5T09:30:00Z"]),
        ("lastModifiedAt", [1, 2, 20260101]),
        ("lastModifiedAt", [True, None, False]),
        ("qualificationID", [1, 22, 3]),
        ("qualificationID", [None, True, None]),
        ("qualificationID", ["abc", "a/b", "..", ""]),
        ("qualificationID", [{"a": 1}, {"a": 2}, {"a": 3}]),
    ],
)
def test_members_that_are_no_time_or_no_reference_are_read_as_such(name: str, values: list[object]) -> None:
    """Law: a record by its layout has the time and the qualification that it has as JSON."""
    records = encoded([usual(number, **{name: value}) for number, value in enumerate(values)])
    for layout in layouts(list(zip(records, ids_of(records), strict=True))):
        check(records, layout)
    same = encoded([usual(number, **{name: values[0]}) for number in range(4)])
    assert check(same, of(same))


@pytest.mark.parametrize(("first", "second"), [(b"\xc3", b"\xa9"), (b"\xff", b"x"), (b"\xed\xa0\x80", b"x")])
def test_text_that_is_no_utf_8_is_no_record(first: bytes, second: bytes) -> None:
    """Law: also where two records have a half of a character each."""
    raws = [record.replace(b"x", text, 1) for record, text in zip(USUAL[1:3], (first, second), strict=True)]
    assert first + b'"' in raws[0]
    assert b'"' + second in raws[1]
    assert not check(raws, LAYOUT)


def test_a_record_without_a_known_key_is_read_as_json() -> None:
    """Law: the id has to be the value that the layout takes for the key."""
    assert alike_reader("employmentID")(USUAL, LAYOUT) is None
    assert alike_reader("why")(USUAL, LAYOUT) is None
    without_key = Layout(LAYOUT.texts, tuple("text" if kind == "key" else kind for kind in LAYOUT.kinds))
    assert read_alike(USUAL, without_key) is None
    twice = Layout(tuple(text.replace(b"employmentID", b"id") for text in LAYOUT.texts), LAYOUT.kinds)
    assert read_alike([record.replace(b"employmentID", b"id") for record in USUAL], twice) is None


def test_records_of_several_layouts_are_not_alike() -> None:
    """Law: one that was read as JSON, or by another layout, is not in the columns; without any there are none."""
    found = list(read_alike(USUAL, LAYOUT) or ())
    same = Layout(LAYOUT.texts, LAYOUT.kinds)
    for other in (read(USUAL[0]), *(read_alike(USUAL[:1], same) or ())):
        assert isinstance(other, Record)
        assert alike([*found[1:], other]) is None
        assert alike([other, *found[1:]]) is None
    assert alike([]) is None


def test_a_commit_of_other_than_new_records_has_no_columns() -> None:
    """Law: they are those of all of its snapshots, in their order, and of nothing else."""
    found = list(read_alike(USUAL, LAYOUT) or ())
    commit = planned(found)
    assert commit.alike is not None
    assert list(commit.snapshots) == [key.decode() for key in commit.alike.keys]
    assert planned([*found, found[0]]).alike is None
    assert planned([*found, Rejected(b"{", "no JSON")]).alike is None
    assert planned(found, PublishRules(silent=True)).alike is None
    ignoring = PublishRules(strip=without(("/why",)))
    assert planned(found, ignoring).events == planned(plain(found), ignoring).events
    assert planned(found, ignoring).events != commit.events
    assert planned(found, ignoring).alike == commit.alike


@pytest.mark.parametrize("form", [1, 2, 3])
def test_snapshots_are_stored_as_if_their_records_were_read_as_json(form: int) -> None:
    """Law: in all forms, with the layout of the dictionary, another one, or no dictionary at all."""
    raws = encoded([usual(number) for number in range(SAMPLES)])
    other = encoded([{**usual(number), "more": number} for number in range(SAMPLES)])
    found = list(read_alike(raws, of(raws)) or ())
    commit = planned(found)
    assert commit.alike is not None
    codecs = [SnapshotCodec(form=form), SnapshotCodec({2: Structure((of(raws),)).encode()}, form=form)]
    for samples in (raws, other):
        codec = SnapshotCodec(form=form)
        trained = codec.train(samples, [key.decode() for key in ids_of(samples)])
        assert trained is not None
        codec.add(*trained)
        codecs.append(codec)
    for codec in codecs:
        stored = codec.encode_all(commit.snapshots, commit.alike)
        assert stored == codec.encode_all(commit.snapshots)
        pairs = zip(commit.snapshots.items(), stored, strict=True)
        assert all(codec.decode(key, one).raw == snapshot.raw for (key, snapshot), one in pairs)
    known = [None, of(raws), of(raws), of(other)]
    assert [codec.layout for codec in codecs] == (known if form == 3 else [None] * 4)
