"""Laws of :mod:`poller.sandbox.posted`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.sandbox.model import UnusableRecord
from poller.sandbox.posted import completed
from tests.sandbox.conftest import NOON

if TYPE_CHECKING:
    from random import Random

STAMPS = b'"createdAt":"2025-03-01T12:00:00.000Z","lastModifiedAt":"2025-03-01T12:00:00.000Z"'


def complete(body: bytes, rng: Random, present: bytes | None = None) -> bytes:
    return completed(body, present=lambda _: present, rng=rng, at=NOON)


def test_a_complete_record_is_not_touched(rng: Random) -> None:
    """Nothing missing, nothing changed: blanks, orders and spellings of numbers stay."""
    body = b' {"lastModifiedAt":1.0, "id":"x" ,"createdAt":12345678901234567890123,"a":[ ]}\n'
    assert complete(body, rng) == body


def test_what_is_missing_stands_in_front(rng: Random) -> None:
    """Missing members come first; what was posted follows with its own bytes."""
    assert complete(b'{"id":"x","n":1.0}', rng) == b"{" + STAMPS + b',"id":"x","n":1.0}'


def test_an_empty_object_becomes_a_record(rng: Random) -> None:
    """An object without members gets an id and its stamps."""
    record = msgspec.json.decode(complete(b" { } ", rng))
    assert record.keys() == {"id", "createdAt", "lastModifiedAt"}


def test_a_replaced_record_keeps_its_creation(rng: Random) -> None:
    """A replacement that does not say when it was created takes that from the record it replaces, literally."""
    record = complete(b'{"id":"x"}', rng, present=b'{"createdAt": "long ago","id":"x"}')
    assert b'"createdAt":"long ago"' in record
    assert complete(b'{"id":"x"}', rng, present=b'{"id":"x"}') == b"{" + STAMPS + b',"id":"x"}'


@given(
    record=st.dictionaries(st.text(st.characters(codec="utf-8")), st.none() | st.integers() | st.text()),
    rng=st.randoms(use_true_random=False),
)
def test_members_posted_are_members_served(record: dict[str, object], rng: Random) -> None:
    """Completing a record adds members and alters none."""
    record.pop("id", None)
    made = msgspec.json.decode(complete(msgspec.json.encode(record), rng))
    assert {name: made[name] for name in record} == record
    assert made.keys() == record.keys() | {"id", "createdAt", "lastModifiedAt"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b'{"id":"x"',
        b'{"a":NaN}',
        b'{"id":null}',
        b'{"id":7}',
        b'{"a":"\xff"}',
        b'\xef\xbb\xbf{"id":"x"}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_record_is_refused(body: bytes, rng: Random) -> None:
    """Only one JSON object in UTF-8 with a string for an id is a record."""
    with pytest.raises(UnusableRecord):
        complete(body, rng)
