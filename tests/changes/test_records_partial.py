"""Laws of :mod:`poller.changes.records` on partial records."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.canonical import canonical
from poller.changes.records import Record, merged, overlaid, record_reader
from tests.changes.samples import CHANCE, KEYS, MANY, TREES, spelled

QUALIFICATION = "0b8ce21a-7f3d-4cc5-9e1b-00aabbccddee"
MEMBERS = st.dictionaries(KEYS, TREES, max_size=6)
read = record_reader("id")


def record_of(raw: bytes) -> Record:
    found = read(raw)
    assert isinstance(found, Record)
    return found


@MANY
@given(MEMBERS, st.lists(st.sets(st.integers(0, 5)), max_size=5), CHANCE)
def test_the_parts_of_a_record_make_it_up(members: dict[str, Any], parts: list[set[int]], chance: Any) -> None:
    """Parts that together hold all members give the whole record, in any order and spelling."""
    names = list(members)
    raw = b"{}"
    for part in [*parts, set(range(6))]:
        some = {name: members[name] for place, name in enumerate(names) if place in part}
        raw = overlaid(raw, spelled(some, chance))
    assert canonical(raw) == canonical(spelled(members))


@MANY
@given(MEMBERS, MEMBERS)
def test_what_is_received_counts_and_what_is_not_is_kept(known: dict[str, Any], received: dict[str, Any]) -> None:
    """Each member is the received value, else the known one; merging the same part again changes no byte."""
    once = overlaid(spelled(known), spelled(received))
    assert canonical(once) == canonical(spelled({**known, **received}))
    assert overlaid(once, spelled(received)) == once


def test_each_value_keeps_its_bytes_and_the_known_keys_their_order() -> None:
    """Numbers, escapes and white space within a value are kept; new keys follow the known ones."""
    known = rb'{ "id" : "a", "n": 1.50, "o": { "b" : 1e2 }, "t":"\u00e9" }'
    received = b'{"new":[1 , 2],"n":%b,"id":"a"}' % (b"7" * 5_000)
    assert overlaid(known, received) == (
        rb'{"id":"a","n":%b,"o":{ "b" : 1e2 },"t":"\u00e9","new":[1 , 2]}' % (b"7" * 5_000)
    )


def test_a_received_null_is_a_value() -> None:
    """A received null replaces the value, an absent member keeps it, and an object is replaced as a whole."""
    raw = overlaid(b'{"id":"a","x":1,"y":2,"o":{"p":1,"q":2}}', b'{"id":"a","x":null,"o":{"p":3}}')
    assert json.loads(raw) == {"id": "a", "x": None, "y": 2, "o": {"p": 3}}


def test_what_a_record_says_of_itself_is_that_of_the_whole() -> None:
    """A merged record has the part's key and subject, and the known time and qualification where the part has none."""
    known = b'{"id":"A","lastModifiedAt":"2025-01-31T09:30:00Z","qualificationID":"%b"}' % QUALIFICATION.encode()
    part = record_of(b'{"id":"A","n":1}')
    whole = merged(part, known)
    assert whole == Record("A", "A", known[:-1] + b',"n":1}', "2025-01-31T09:30:00Z", QUALIFICATION)
    assert whole == record_of(whole.raw)
    assert merged(record_of(b'{"id":"A","lastModifiedAt":null}'), known).modified is None


def test_the_identity_is_that_of_the_feeds_id_field() -> None:
    """A merged record keeps its identity when the feed's id field is not ``id``."""
    part = record_reader("code")(msgspec.json.encode({"code": 5, "id": "x"}))
    assert isinstance(part, Record)
    whole = merged(part, b'{"id":"y","code":5,"n":1}')
    assert (whole.key, whole.subject, json.loads(whole.raw)) == (part.key, "5", {"id": "x", "code": 5, "n": 1})


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"id":"a","n":1,"n":2}', 'the key "n" stands twice'),
        (b'{"id":"a","n":{"m":1,"m":1}}', 'the key "m" stands twice'),
        (b'{"id":"a","n":"\xff"}', "not UTF-8"),
        (b'{"id":"a","n":' + b"[" * 100 + b"]" * 100 + b"}", "nested too deep"),
    ],
    ids=["twice", "twice below", "not UTF-8", "deep"],
)
def test_a_part_that_cannot_be_used_is_refused(raw: bytes, reason: str) -> None:
    """An unusable part is refused before it is merged."""
    with pytest.raises(ValueError, match=reason):
        merged(record_of(raw), b'{"id":"a"}')
