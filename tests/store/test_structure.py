"""Skeletons and layouts have the structure of records and none of their values, and so have dictionaries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain, product
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.diff import Snapshot
from poller.store.snapshots import SAMPLES, STRUCTURAL, SnapshotCodec, UnknownDictionary, are_stored
from poller.store.structure import MOST_LAYOUTS, Structure, layouts, skeletons
from tests.changes.shapes import DRAWN, SHAPES, drawn, encoded, ids_of
from tests.store.records import unavailability

LONG = 6  # characters: shorter texts may come about by chance
KIND = re.compile("key|again|text|number|word|[0:TZ.+ -]+|x{8}(?:-x{4}){3}-x{12}")  # of a value in a layout
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
    assert (old.outdated, old.is_current) == ((1,), False)
    known = {f"k{number}": Snapshot(1, 1, unavailability(number)) for number in range(SAMPLES)}
    stored = old.encode("k1", known["k1"])
    assert SnapshotCodec.dictionary_of(stored) == 1
    number, dictionary = old.successor(known)
    old.add(number, dictionary)
    assert (number, old.is_current, old.outdated) == (STRUCTURAL, True, (1,))
    assert old.decode("k1", stored) == known["k1"]
    assert SnapshotCodec.dictionary_of(old.encode("k1", known["k1"])) == STRUCTURAL
    emptied = SnapshotCodec({1: b"", STRUCTURAL: dictionary})
    assert (emptied.outdated, emptied.dictionaries, emptied.is_settled) == ((), 2, True)
    few = SnapshotCodec({1: b"reason of somebody"})
    few.add(*few.successor({"k1": known["k1"]}))
    assert (few.is_current, few.is_settled) == (True, False)
    assert SnapshotCodec.dictionary_of(few.encode("k1", known["k1"])) is None
    trained = few.train(unavailability(number) for number in range(SAMPLES))
    assert trained is not None
    assert trained[0] == STRUCTURAL + 1


@given(SHAPES, st.data())
def test_a_record_is_given_back_from_its_values(shape: dict[str, str], data: st.DataObject) -> None:
    """Law: each byte of a record that has a layout comes back, whatever it is; a key counts only where it stands."""
    samples, others = drawn(shape, data, 6), drawn(shape, data, 4)
    found = Structure(tuple(layouts(list(zip(samples, ids_of(samples), strict=True)))))
    assert len(found.layouts) <= MOST_LAYOUTS
    assert Structure.of(found.encode()) == found
    for records in (samples, others):
        keys: list[bytes | None] = [*ids_of(records)]
        for known in (keys, [None] * len(keys), [*reversed(keys)]):
            for record, key, packed in zip(records, known, found.pack(records, known), strict=True):
                if packed is not None:
                    assert found.unpack(packed, (key or b"").decode()) == record
                    assert (key is None or key in record) or "key" not in found.layouts[packed[0]].kinds


def test_values_of_the_right_length_are_not_all_of_the_right_kind() -> None:
    """Law: a record with another character somewhere comes back as it is, and those beside it are stored as ever."""
    made = [
        {"id": str(UUID(int=2**100 - n)), "of": str(UUID(int=2**99 + n)), "why": "x" * n, "on": f"2026-01-{n:02}"}
        for n in range(1, 5)
    ]
    records = encoded(made)
    ids: list[bytes | None] = [*ids_of(records)]
    found = Structure(tuple(layouts([*zip(records, ids, strict=True)])))
    alone = [found.pack([record], [key])[0] for record, key in zip(records, ids, strict=True)]
    assert None not in alone
    for at, other in product(range(len(records[1])), [b"-", b"0", b"f", b"g", b"F", b"\n", b'"', b"x"]):
        record = records[1][:at] + other + records[1][at + 1 :]
        first, packed, *others = found.pack([records[0], record, *records[2:]], ids)
        assert [first, *others] == [alone[0], *alone[2:]]
        assert packed == found.pack([record], ids[1:2])[0]
        assert packed is None or found.unpack(packed, (ids[1] or b"").decode()) == record


@given(st.lists(VALUES, min_size=8, max_size=8, unique_by=json.dumps), st.booleans())
def test_a_layout_holds_no_value(values: list[Any], is_plain: bool) -> None:
    """Law: no text, no number and no name in a map of a record stands in a layout."""
    records = encoded(
        [{"id": f"number {number}", "data": value} for number, value in enumerate(values)] * 2, is_plain=is_plain
    )
    found = layouts([(record, None) for record in records])
    assert all(KIND.fullmatch(kind) for layout in found for kind in layout.kinds)
    written = b"\n".join(chain.from_iterable(layout.texts for layout in found))
    for text in {text for value in values for text in values_of(value)}:
        for one in (text, json.dumps(text)[1:-1]):
            assert one.encode() not in written or len(one) < LONG, text


def test_the_values_of_a_record_take_few_bytes() -> None:
    """Law: a UUID takes 16 bytes, a date 4, the same time again none, a text one more than it has."""
    records = encoded(
        [
            {
                "id": str(UUID(int=number)),
                "of": str(UUID(int=7 * number)),
                "why": "x" * number,
                "at": f"2026-01-{number:02}",
            }
            for number in range(1, 9)
        ]
    )
    (layout,) = found = layouts(list(zip(records, ids_of(records), strict=True)))
    assert layout.kinds == ("key", "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", "text", "0000-00-00")
    assert layout.texts == (b'{"id":"', b'","of":"', b'","why":"', b'","at":"', b'"}')
    packed = Structure(tuple(found)).pack(records, [*ids_of(records)])
    assert [len(one) - 1 for one in packed if one] == [16 + 4 + 1 + number for number in range(1, 9)]


def test_a_modified_record_has_a_layout_although_no_sample_was_modified() -> None:
    """Law: while no record was modified its two times are the same, and one of them is stored; later both are."""
    records = encoded(
        [
            {"id": str(UUID(int=n)), "at": f"2026-01-0{n}T00:00:00Z", "on": f"2026-01-0{n}T00:00:00Z"}
            for n in range(1, 9)
        ]
    )
    found = layouts(list(zip(records, ids_of(records), strict=True)))
    form = "0000-00-00T00:00:00Z"
    assert [one.kinds for one in found] == [("key", form, "again"), ("key", form, form)]
    modified = records[0].replace(b"01T00", b"02T11", 1)
    packed = Structure(tuple(found)).pack([records[0], modified], [*ids_of(records[:1] * 2)])
    assert [(one[0], len(one) - 1) for one in packed if one] == [(0, 7), (1, 14)]


@given(SHAPES, st.data())
def test_snapshots_give_their_records_back_whatever_the_dictionary_is(
    shape: dict[str, str], data: st.DataObject
) -> None:
    """Law: with layouts or without, together and alone; a seal finds each damaged byte, and knows the stored record."""

    def drawn(count: int) -> dict[str, Snapshot]:
        ids = [str(one) for one in data.draw(st.lists(st.uuids(), min_size=count, max_size=count, unique=True))]
        values = [{name: data.draw(DRAWN[kind]) for name, kind in shape.items()} for _ in ids]
        records = encoded([{"id": one, **more} for one, more in zip(ids, values, strict=True)])
        return {one: Snapshot(1, 5, record, changed_at=9) for one, record in zip(ids, records, strict=True)}

    few = drawn(4)
    samples = {**few, **{str(UUID(int=number)): one for number, one in enumerate([*few.values()] * SAMPLES)}}
    codec = SnapshotCodec()
    if dictionary := codec.train_with(samples):
        codec.add(*dictionary)
    others = {**few, **drawn(3), str(UUID(int=1)): Snapshot(1, 5, b'{"id":"a","other":[1]}', changed_at=9)}
    stored = dict(zip(others, codec.encode_all(others), strict=True))
    assert {key: codec.decode(key, one) for key, one in stored.items()} == others
    assert {key: codec.encode(key, one) for key, one in others.items()} == stored
    assert all(are_stored([one.raw for one in others.values()], [*stored.values()]))
    key, one = next(iter(stored.items()))
    at, bits = data.draw(st.integers(1, len(one) - 1)), data.draw(st.integers(1, 255))
    damaged = one[:at] + bytes((one[at] ^ bits,)) + one[at + 1 :]
    assert are_stored([others[key].raw], [damaged]) == [False]
    with pytest.raises((ValueError, IndexError, UnknownDictionary)):
        codec.decode(key, damaged)


def test_a_damaged_dictionary_is_refused() -> None:
    """Law: nothing is written with it, for that could not be read; nor with one of a later version."""
    known = {f"k{number}": Snapshot(1, 1, unavailability(number)) for number in range(SAMPLES)}
    trained = SnapshotCodec().train_with(known)
    assert trained is not None
    number, dictionary = trained
    for at in range(20, len(dictionary), 50):
        with pytest.raises(ValueError, match="damaged"):
            SnapshotCodec({number: dictionary[:at] + bytes((dictionary[at] ^ 1,)) + dictionary[at + 1 :]})
    later = msgspec.msgpack.encode([[["text"]], b""])
    digest = blake2b(later, digest_size=8).digest()
    with pytest.raises(ValueError, match="later version"):
        SnapshotCodec({number: dictionary[:8] + digest + later})


def test_a_name_is_not_taken_for_another_one() -> None:
    """Law: the marks in a name are those of this name alone."""
    found = Structure(tuple(layouts([(b'{"a.b":%d}' % number, None) for number in range(4)])))
    assert [one is not None for one in found.pack([b'{"a.b":7}', b'{"aXb":7}'], [None, None])] == [True, False]


def test_what_has_the_form_of_no_number_of_digits_is_a_text() -> None:
    """Law: a UUID in upper case is one; a number that is longer than a length can say has no layout."""
    records = encoded([{"of": str(UUID(int=number + (0xABCDEF << 100))).upper()} for number in range(4)])
    (layout,) = found = layouts([(record, None) for record in records])
    assert (layout.kinds, Structure(tuple(found)).pack(records, [None] * 4).count(None)) == (("text",), 0)
    assert layouts([(b'{"n":1%b}' % (b"0" * 130), None)] * 4) == []
    short = Structure(tuple(layouts([(b'{"n":1}', None)] * 4)))
    assert short.pack([b'{"n":1%b}' % (b"0" * 130)], [None]) == [None]


def test_a_dictionary_is_outdated_only_in_a_form_that_has_layouts() -> None:
    """Law: a feed of the second form keeps its dictionary, and is written without layouts whatever there is."""
    records = {f"k{number}": Snapshot(1, 1, unavailability(number)) for number in range(SAMPLES)}
    second, third = SnapshotCodec(form=2).train_with(records), SnapshotCodec().train_with(records)
    assert second is not None
    assert third is not None
    assert (SnapshotCodec(dict([second]), form=2).outdated, SnapshotCodec(dict([second])).outdated) == ((), (2,))
    assert SnapshotCodec(dict([third])).outdated == ()
    of_second = SnapshotCodec(dict([third]), form=2)
    assert not any(one[0] & 64 for one in of_second.encode_all(records))
    modified = {"k1": Snapshot(2, 9, unavailability(1, reason="other").replace(b"2026-01-02T10", b"2026-02-02T11"))}
    assert all(one[0] & 64 for one in SnapshotCodec(dict([third])).encode_all(modified))


def test_records_without_a_common_structure_have_no_layout() -> None:
    """Law: nor has what is cut off, what has escapes, maps of names, or long values."""
    for record in (
        b'{"id":"1","a":"\\u00e9"}',
        b'{"id":"1","a":"%b"}' % (b"x" * 128),
        b'{"id":"1","2024":1}',
        b'{"id":"1","a":1',
        b'["1"]',
        b"{}",
    ):
        assert layouts([(record, None)] * 4) == []
    assert layouts([(b'{"id":"%d","a":1}' % number, None) for number in range(1)]) == []
