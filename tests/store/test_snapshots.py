"""Snapshots encode to small bytes and back, and stay readable while their dictionary is kept."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.diff import Snapshot
from poller.store.snapshots import SAMPLES, SnapshotCodec, UnknownDictionary
from tests.store.records import unavailability

SNAPSHOTS = st.builds(
    Snapshot,
    revision=st.integers(0, 2**40),
    sequence=st.integers(0, 2**63),
    raw=st.binary(max_size=2000),
    removed=st.booleans(),
    missing=st.booleans(),
)


def trained() -> tuple[SnapshotCodec, int, bytes]:
    codec = SnapshotCodec()
    dictionary = codec.train(unavailability(number) for number in range(SAMPLES))
    assert dictionary is not None
    codec.add(*dictionary)
    return codec, *dictionary


@given(SNAPSHOTS)
def test_decoding_gives_back_what_was_encoded(snapshot: Snapshot) -> None:
    """Law: decode(encode(x)) is x, with and without a dictionary, for any bytes."""
    plain = SnapshotCodec()
    assert plain.decode(plain.encode(snapshot)) == snapshot
    codec, _, _ = trained()
    assert codec.decode(codec.encode(snapshot)) == snapshot


def test_what_was_written_before_the_dictionary_stays_readable() -> None:
    """Law: a dictionary changes how later snapshots are written; earlier ones stay readable."""
    codec = SnapshotCodec()
    early = Snapshot(1, 1, unavailability(1))
    stored = codec.encode(early)
    codec.add(*trained()[1:])
    assert codec.decode(stored) == early
    assert len(codec.encode(early)) < len(stored)


def test_a_dictionary_makes_snapshots_small() -> None:
    """Law: with a dictionary a record of this shape takes less than two fifths of its JSON."""
    codec, _, _ = trained()
    records = [unavailability(number) for number in range(1000, 1500)]
    stored = [codec.encode(Snapshot(1, number, raw)) for number, raw in enumerate(records)]
    assert sum(map(len, stored)) < 0.4 * sum(map(len, records))


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
    assert codec.decode(codec.encode(Snapshot(1, 1, b"{}"))).raw == b"{}"


def test_a_missing_dictionary_is_named() -> None:
    """Law: a snapshot with an unknown dictionary raises an error that has the dictionary's number."""
    codec, number, _ = trained()
    stored = codec.encode(Snapshot(1, 1, unavailability(7)))
    with pytest.raises(UnknownDictionary) as caught:
        SnapshotCodec().decode(stored)
    assert caught.value.number == number


def test_damaged_bytes_are_refused() -> None:
    """Law: damaged bytes raise ValueError."""
    codec, _, _ = trained()
    stored = codec.encode(Snapshot(1, 1, unavailability(7)))
    with pytest.raises(ValueError, match="not a snapshot"):
        codec.decode(stored[:-4])
    assert json.loads(codec.decode(stored).raw)


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
    snapshots = [
        Snapshot(one + 1, one * 300, unavailability(one) if one % 3 else b"{}", one % 5 == 0, one % 7 == 0)
        for one in range(number)
    ]
    stored = codec.encode_all(snapshots)
    assert stored == [codec.encode(one) for one in snapshots]
    assert [codec.decode(one) for one in stored] == snapshots


@pytest.mark.parametrize("empty", [8, 7, 1])
def test_snapshots_without_a_record_are_encoded_together(empty: int) -> None:
    """Law: records that cannot be read any more are removed like others, however many there are."""
    snapshots = [Snapshot(1, 2, b"" if one < empty else b"{}", removed=True) for one in range(8)]
    stored = SnapshotCodec().encode_all(snapshots)
    assert [SnapshotCodec().decode(one) for one in stored] == snapshots
