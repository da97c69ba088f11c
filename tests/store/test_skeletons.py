"""Skeletons have the structure of records and none of their values, and so have the dictionaries trained on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from poller.changes.diff import Snapshot
from poller.store.skeletons import skeletons
from poller.store.snapshots import SAMPLES, STRUCTURAL, SnapshotCodec
from tests.store.records import unavailability

LONG = 6  # characters: shorter texts may come about by chance
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=LONG, max_size=40)
NUMBERS = st.integers(10**LONG, 10**15) | st.floats(1e6, 1e9)
VALUES = st.recursive(
    st.none() | st.booleans() | TEXTS | NUMBERS | st.uuids().map(str) | st.datetimes().map(lambda at: at.isoformat()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def values_of(value: Any) -> Iterator[str]:
    """All texts and numbers in a value, and the names in its maps."""
    if isinstance(value, dict):
        yield from value
        for one in value.values():
            yield from values_of(one)
    elif isinstance(value, list):
        for one in value:
            yield from values_of(one)
    elif isinstance(value, str):
        yield value
    elif value is not None and not isinstance(value, bool):
        yield json.dumps(value)


@given(st.lists(VALUES, min_size=8, max_size=8, unique_by=json.dumps), st.booleans())
def test_a_skeleton_holds_no_value(values: list[Any], is_plain: bool) -> None:
    """Law: no text, no number and no name in a map of a record stands in its skeleton, however it is written."""
    records = [
        json.dumps({"id": f"number {number}", "data": value}, ensure_ascii=is_plain).encode()
        for number, value in enumerate(values)
    ]
    written = b"\n".join(skeletons(records, variants=2))
    for text in {text for value in values for text in values_of(value)}:
        for one in (text, json.dumps(text)[1:-1]):
            assert one.encode() not in written or len(one) < LONG, text
    assert written.count(b'"data": ') == 2 * len(records)


@given(VALUES)
def test_a_skeleton_has_the_structure_of_its_record(value: Any) -> None:
    """Law: it is JSON with the same objects, arrays and literals, and the same spaces between them."""
    record = json.dumps({"id": 1, "data": value}, indent=1)
    (made_up,) = skeletons([record.encode()])
    lines, made = record.split("\n"), made_up.decode().split("\n")
    assert [len(line) - len(line.lstrip()) for line in made] == [len(line) - len(line.lstrip()) for line in lines]
    assert made[0] == lines[0]


@given(st.binary(max_size=60), st.integers(0, 300))
def test_what_is_no_json_has_no_skeleton(other: bytes, at: int) -> None:
    """Law: bytes that are no JSON, or a record that is cut off, raise nothing and show nothing."""
    record = unavailability(1, reason="Ada Lovelace")
    for raw in (other, record[:at], record[:at] + other):
        (made_up,) = skeletons([raw])
        assert b"Lovelace" not in made_up


def test_a_format_is_kept_without_its_digits() -> None:
    """Law: of a UUID, a date or a time only the marks stay; made-up values have the kind and the length of the real."""
    record = (
        b'{"id":"0b8e7c5e-9d4a-4d9f-8a55-6c1f3f0e2a11","at":"1971-02-03T04:05:06.789Z","day":"1971-02-03",'
        b'"n":-123.25,"zip":"81541","note":"1971 in Aachen","other":"2b"}'
    )
    (made_up,) = skeletons([record])
    found = json.loads(made_up)
    assert [found["id"][place] for place in (8, 13, 18, 23)] == ["-"] * 4
    assert (len(found["at"]), found["at"][10], found["at"][-1], len(found["day"])) == (24, "T", "Z", 10)
    assert found["zip"].isdecimal()
    assert not any(character.isdigit() for character in found["note"] + found["other"])
    assert {name: len(str(value)) for name, value in found.items() if name in {"zip", "note", "other"}} == {
        "zip": 5,
        "note": 14,
        "other": 2,
    }


def test_a_name_is_structure_only_where_most_have_it() -> None:
    """Law: the keys of a map are values, also what stands under them; optional properties and those in arrays are not.

    A name with four digits in a row is a value in any case, and one that is a text.
    """
    records = [
        json.dumps(
            {
                "id": number,
                "scores": {f"person{number}": {"points": 7}},
                "list": [{"inner": 1, "kind": 2}] if number % 3 == 0 else [],
                "shared": {"2024": 1, "Jane Doe": 2, "plain": 3},
                **({"rare": 1} if number == 1 else {}),
            }
        ).encode()
        for number in range(SAMPLES)
    ]
    made_up = b"".join(skeletons(records))
    for name in (b'"scores"', b'"list"', b'"inner"', b'"kind"', b'"plain"'):
        assert name in made_up
    for name in (b"person", b"points", b"rare", b"2024", b"Jane", b"Doe"):
        assert name not in made_up


def test_a_dictionary_holds_no_value_of_its_records() -> None:
    """Law: none of the records that a dictionary was trained on has left a value in it, and it has their structure."""
    reasons = [f"reason of number {number:03}" for number in range(SAMPLES)]
    records = [unavailability(number, reason=reason) for number, reason in enumerate(reasons)]
    found = SnapshotCodec().train(records)
    assert found is not None
    number, dictionary = found
    assert number >= STRUCTURAL
    for record in map(json.loads, records):
        for value in values_of(record):
            assert value.encode() not in dictionary or value in record or value in record["interval"]
    assert not any(reason.encode() in dictionary for reason in reasons)
    assert b"reason of" not in dictionary
    assert b'","employmentID":"' in dictionary


def test_the_same_records_have_the_same_skeletons() -> None:
    """Law: so a commit that writes a dictionary is the same one when it is sent again."""
    records = [unavailability(number) for number in range(9)]
    assert skeletons(records, variants=3) == skeletons(records, variants=3)
    assert len(set(skeletons(records, variants=3))) == 27


def test_a_successor_takes_the_place_of_a_dictionary_with_values() -> None:
    """Law: what names the old one stays readable until it is emptied; without enough records none takes its place."""
    old = SnapshotCodec({1: b"reason of somebody, and employmentID"})
    assert (old.outdated, old.is_structural) == ((1,), False)
    known = {f"k{number}": Snapshot(1, 1, unavailability(number)) for number in range(SAMPLES)}
    stored = old.encode("k1", known["k1"])
    assert SnapshotCodec.dictionary_of(stored) == 1
    number, dictionary = old.successor(known)
    old.add(number, dictionary)
    assert (number, old.is_structural, old.outdated) == (STRUCTURAL, True, (1,))
    assert old.decode("k1", stored) == known["k1"]
    assert SnapshotCodec.dictionary_of(old.encode("k1", known["k1"])) == STRUCTURAL
    emptied = SnapshotCodec({1: b"", STRUCTURAL: dictionary})
    assert (emptied.outdated, emptied.dictionaries, emptied.is_settled) == ((), 2, True)
    few = SnapshotCodec({1: b"reason of somebody"})
    few.add(*few.successor({"k1": known["k1"]}))
    assert (few.is_structural, few.is_settled) == (True, False)
    assert SnapshotCodec.dictionary_of(few.encode("k1", known["k1"])) is None
    trained = few.train(unavailability(number) for number in range(SAMPLES))
    assert trained is not None
    assert trained[0] == STRUCTURAL + 1
