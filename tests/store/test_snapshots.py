"""Snapshots encode to small bytes and back, and stay readable while their dictionary is kept."""

from __future__ import annotations

import json
import random
from typing import cast
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.diff import Snapshot
from poller.store.snapshots import (
    FORM,
    SAMPLES,
    SEALED,
    SnapshotCodec,
    UnknownDictionary,
    are_stored,
    former_name,
    is_former,
    key_of,
    name_of,
    names_of,
)
from tests.store.records import unavailability

KEY = "0b8e7c5e-9d4a-4d9f-8a55-6c1f3f0e2a11"
KEYS = st.one_of(
    st.uuids().map(str),
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40),
    st.sampled_from([KEY, KEY.upper(), "\x017"]),
)
SNAPSHOTS = st.builds(
    Snapshot,
    revision=st.integers(0, 2**40),
    sequence=st.integers(0, 2**63),
    raw=st.binary(max_size=2000),
    removed=st.booleans(),
    missing=st.booleans(),
    changed_at=st.integers(0, 2**32 - 1),
)
FORMS = pytest.mark.parametrize("form", [1, 2, FORM])


def trained(form: int = FORM) -> tuple[SnapshotCodec, int, bytes]:
    codec = SnapshotCodec(form=form)
    records = [unavailability(number) for number in range(SAMPLES)]
    dictionary = codec.train(records, [str(json.loads(raw)["id"]) for raw in records])
    assert dictionary is not None
    codec.add(*dictionary)
    return codec, *dictionary


@FORMS
@given(SNAPSHOTS, KEYS, st.lists(st.integers(0, 2000), max_size=3))
def test_decoding_gives_back_what_was_encoded(form: int, snapshot: Snapshot, key: str, places: list[int]) -> None:
    """Law: decode(encode(x)) is x, with and without a dictionary, for any bytes, wherever the id is in them.

    Only the time of the change is not in the first form. Each codec reads both.
    """
    for place in places:
        raw = snapshot.raw[:place] + key.encode("utf-8", "surrogatepass") + snapshot.raw[place:]
        snapshot = msgspec.structs.replace(snapshot, raw=raw)
    known = snapshot if form >= SEALED else msgspec.structs.replace(snapshot, changed_at=0)
    with_dictionary, number, dictionary = trained(form)
    for codec in (SnapshotCodec(form=form), with_dictionary):
        stored = codec.encode(key, snapshot)
        assert codec.decode(key, stored) == known
        assert SnapshotCodec({number: dictionary}).decode(key, stored) == known
        assert key_of(name_of(key)) == key
        assert is_former(name_of(key), stored) is (form == 1)
        assert is_former(key.encode(), stored) is (form == 1 or former_name(key) is not None)


@given(st.lists(KEYS, max_size=12))
def test_names_give_keys_back(keys: list[str]) -> None:
    """Law: a field's name gives the key back, whichever keys are named together; two keys have two names."""
    names = names_of(keys)
    assert names == [name_of(key) for key in keys]
    assert [key_of(name) for name in names] == keys
    assert len({*names, *(key.encode() for key in keys)}) == len({*keys}) + sum(
        former_name(key) is not None for key in {*keys}
    )


def test_a_uuid_takes_17_bytes_and_its_record_goes_without_it() -> None:
    """Law: a UUID in lower case is in the name of the field and not in what that holds; all others are in both."""
    raw = unavailability(7)
    key = json.loads(raw)["id"]
    codec = trained()[0]
    assert len(name_of(key)) == 17
    with_id, without = (len(codec.encode(one, Snapshot(1, 1, raw))) for one in (key.upper(), key))
    assert without < with_id - 15
    for other in (key.upper(), "7", "\x017", "b" * 16):
        assert name_of(other) == other.encode()
        assert former_name(other) is None


@pytest.mark.parametrize("is_trained", [False, True])
@given(SNAPSHOTS, st.binary(max_size=60), st.integers(0, 400), st.integers(1, 255))
def test_a_seal_tells_whether_a_record_is_as_it_is_stored(
    is_trained: bool, snapshot: Snapshot, other: bytes, at: int, bits: int
) -> None:
    """Law: a record is as stored if it has the same bytes and the stored ones are whole; not if removed or missing."""
    codec = trained()[0] if is_trained else SnapshotCodec()
    stored = codec.encode(KEY, snapshot)
    is_live = not (snapshot.removed or snapshot.missing)
    assert are_stored([snapshot.raw], [stored]) == [is_live]
    assert are_stored([other], [stored]) == [is_live and other == snapshot.raw]
    assert are_stored([snapshot.raw] * 3, [None, b"", SnapshotCodec(form=1).encode(KEY, snapshot)]) == [False] * 3
    at %= len(stored)
    damaged = stored[:at] + bytes((stored[at] ^ bits,)) + stored[at + 1 :]
    assert are_stored([snapshot.raw] * 2, [damaged, stored[:at]]) == [False, False]


@given(SNAPSHOTS, st.integers(0, 400), st.integers(1, 255))
def test_a_broken_seal_is_found_when_it_is_decoded(snapshot: Snapshot, at: int, bits: int) -> None:
    """Law: whichever byte of a snapshot of the second form is damaged, it is not read as another one."""
    codec = trained()[0]
    stored = codec.encode(KEY, snapshot)
    at %= len(stored)
    damaged = stored[:at] + bytes((stored[at] ^ bits,)) + stored[at + 1 :]
    if damaged[0] & 16:  # else it says that it is of the first form, which has no seal
        with pytest.raises((ValueError, IndexError, UnknownDictionary)):
            codec.decode(KEY, damaged)


def test_what_was_written_before_the_dictionary_stays_readable() -> None:
    """Law: a dictionary changes how later snapshots are written; earlier ones stay readable."""
    codec = SnapshotCodec()
    early = Snapshot(1, 1, unavailability(1))
    stored = codec.encode(KEY, early)
    codec.add(*trained()[1:])
    assert codec.decode(KEY, stored) == early
    assert len(codec.encode(KEY, early)) < len(stored)


def test_a_dictionary_makes_snapshots_small() -> None:
    """Law: with a dictionary a record of this shape takes less than half of its JSON."""
    codec, _, _ = trained()
    records = [unavailability(number) for number in range(1000, 1500)]
    stored = [codec.encode(KEY, Snapshot(1, number, raw)) for number, raw in enumerate(records)]
    assert sum(map(len, stored)) < 0.5 * sum(map(len, records))


@pytest.mark.parametrize("form", [SEALED, FORM])
def test_a_record_is_stored_in_less_with_a_layout(form: int) -> None:
    """Law: the third form takes a quarter of a record of this shape; one without a layout is compressed in it, too."""
    codec, _, _ = trained(form)
    records = {str(json.loads(raw)["id"]): Snapshot(1, 9, raw) for raw in map(unavailability, range(1000, 1100))}
    share = sum(map(len, codec.encode_all(records))) / sum(len(one.raw) for one in records.values())
    assert share < 0.3 if form == FORM else 0.3 < share < 0.45
    other = {**records, KEY: Snapshot(1, 9, unavailability(5, reason='an "escaped" reason'))}
    stored = dict(zip(other, codec.encode_all(other), strict=True))
    assert {key: codec.decode(key, one) for key, one in stored.items()} == other
    assert [codec.decode(KEY, stored[KEY]).raw] == [other[KEY].raw]
    assert bool(stored[KEY][0] & 64) is False
    assert {bool(stored[key][0] & 64) for key in records} == {form == FORM}


def test_a_layout_is_not_used_where_compression_is_better() -> None:
    """Law: long texts without variety stay compressed."""
    records = [unavailability(number, reason="na" * 60) for number in range(SAMPLES)]
    codec = SnapshotCodec()
    dictionary = codec.train(records, [str(json.loads(raw)["id"]) for raw in records])
    assert dictionary is not None
    codec.add(*dictionary)
    assert not codec.encode(KEY, Snapshot(1, 1, records[0]))[0] & 64


def test_training_is_deterministic_and_happens_once() -> None:
    """Law: the same records give the same dictionary, so a commit that is sent again is the same commit."""
    assert trained()[2] == trained()[2]
    codec, _, _ = trained()
    assert codec.train(unavailability(number) for number in range(SAMPLES)) is None


def test_few_records_add_up_over_commits() -> None:
    """Law: small commits count together until there are enough samples."""
    codec = SnapshotCodec()
    offers = [codec.train([unavailability(number)]) for number in range(SAMPLES)]
    assert offers[:-1] == [None] * (SAMPLES - 1)
    assert offers[-1] is not None


def test_records_that_teach_nothing_are_stored_without_a_dictionary() -> None:
    """Law: if no dictionary can be trained, snapshots are written without one."""
    codec = SnapshotCodec()
    assert codec.train([b""] * SAMPLES) is None
    assert codec.decode(KEY, codec.encode(KEY, Snapshot(1, 1, b"{}"))).raw == b"{}"


def sample(count: int = SAMPLES, *, more: bytes = b"") -> dict[str, Snapshot]:
    """Snapshots of records, with this property at their end."""
    raws = [raw[:-1] + more + b"}" for raw in map(unavailability, range(count))]
    return {str(json.loads(raw)["id"]): Snapshot(1, 1, raw) for raw in raws}


MORE = b',"coverNeeded":true,"approvedBy":"somebody of the department"'


def test_there_is_no_dictionary_with_a_number_of_two_bytes() -> None:
    """Law: a feed whose API changes again and again keeps its last dictionary."""
    _, _, dictionary = trained()
    offered = SnapshotCodec({254: dictionary}).improvement(sample(more=MORE))
    assert offered is not None
    assert offered[0] == 255
    assert SnapshotCodec({255: dictionary}).improvement(sample(more=MORE)) is None


def test_a_dictionary_is_replaced_where_that_saves_a_fifth_in_a_form_with_layouts() -> None:
    """Law: before that form processes of earlier versions may write; without a dictionary one comes by itself."""
    codec, number, dictionary = trained()
    assert codec.improvement(sample(more=MORE)) is not None
    assert codec.improvement(sample()) is None
    assert codec.improvement(sample(SAMPLES - 1, more=MORE)) is None
    assert SnapshotCodec().improvement(sample(more=MORE)) is None
    assert SnapshotCodec({number: dictionary}, form=SEALED).improvement(sample(more=MORE)) is None


def test_an_api_may_go_back_to_what_it_sent_before() -> None:
    """Law: a new dictionary has the former layouts as well, so no other is made when the former records return."""
    codec, _, _ = trained()
    number, dictionary = cast("tuple[int, bytes]", codec.improvement(sample(more=MORE)))
    codec.add(number, dictionary)
    for records in (sample(more=MORE), sample()):
        assert all(map(SnapshotCodec.has_layout, codec.encode_all(records)))
        assert codec.improvement(records) is None


def test_a_large_record_does_not_hide_that_the_others_have_changed() -> None:
    """Law: what each record saves counts, not what they take together."""
    codec, _, _ = trained()
    noise = random.Random(1).randbytes(500_000).hex().encode()
    large = {"large": Snapshot(1, 1, b'{"id":"large","blob":"%b"}' % noise)}
    assert codec.improvement(large | sample(SAMPLES - 1, more=MORE)) is not None
    assert codec.improvement({f"{at}": large["large"] for at in range(SAMPLES)}) is None


def test_a_missing_dictionary_is_named() -> None:
    """Law: a snapshot with an unknown dictionary raises an error that has the dictionary's number."""
    codec, number, _ = trained()
    stored = codec.encode(KEY, Snapshot(1, 1, unavailability(7)))
    with pytest.raises(UnknownDictionary) as caught:
        SnapshotCodec().decode(KEY, stored)
    assert caught.value.number == number


def test_damaged_bytes_are_refused() -> None:
    """Law: damaged bytes raise ValueError."""
    codec, _, _ = trained()
    stored = codec.encode(KEY, Snapshot(1, 1, unavailability(7)))
    with pytest.raises(ValueError, match="not a snapshot"):
        codec.decode(KEY, stored[:-4])
    assert json.loads(codec.decode(KEY, stored).raw)


@pytest.mark.parametrize("number", [1, 7, 8, 300])
@pytest.mark.parametrize("trained", [False, True])
def test_snapshots_that_are_encoded_together_are_those_that_are_encoded_alone(number: int, trained: bool) -> None:
    """Law: what is stored does not depend on what is stored with it."""
    codec = SnapshotCodec()
    assert not codec.is_settled
    if trained:
        dictionary = codec.train(unavailability(one) for one in range(SAMPLES))
        assert dictionary is not None
        codec.add(*dictionary)
        assert codec.is_settled
    snapshots = {
        str(UUID(int=one)): Snapshot(
            one + 1, one * 300, unavailability(one) if one % 3 else b"{}", one % 5 == 0, one % 7 == 0
        )
        for one in range(number)
    }
    stored = codec.encode_all(snapshots)
    assert stored == [codec.encode(key, one) for key, one in snapshots.items()]
    assert [codec.decode(key, one) for key, one in zip(snapshots, stored, strict=True)] == list(snapshots.values())


@pytest.mark.parametrize("empty", [8, 7, 1])
def test_snapshots_without_a_record_are_encoded_together(empty: int) -> None:
    """Law: records that cannot be read any more are removed like others, however many there are."""
    snapshots = {str(one): Snapshot(1, 2, b"" if one < empty else b"{}", removed=True) for one in range(8)}
    stored = SnapshotCodec().encode_all(snapshots)
    assert [SnapshotCodec().decode(KEY, one) for one in stored] == list(snapshots.values())
