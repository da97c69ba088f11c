"""Laws of :mod:`poller.changes.records`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.records import MAX_ID_LENGTH, Record, Rejected, identities, record_reader
from tests.changes.samples import FEW, OBJECTS, spelled

UUID = "0B8ce21A-7f3d-4Cc5-9e1b-00aAbBcCdDeE"
read = record_reader("id")


def record_of(**fields: Any) -> Record:
    found = read(msgspec.json.encode(fields))
    assert isinstance(found, Record)
    return found


def test_a_uuid_is_one_key_in_any_case() -> None:
    """Ids of UUID shape are one key whatever the case of their letters; the subject stays as it was received."""
    records = [record_of(id=spelling) for spelling in (UUID, UUID.lower(), UUID.upper())]
    assert {record.key for record in records} == {UUID.lower()}
    assert [record.subject for record in records] == [UUID, UUID.lower(), UUID.upper()]


@pytest.mark.parametrize("subject", ["Ab", UUID + "A", "{" + UUID + "}", UUID.replace("-", ""), "é", " ", "a b/c?d"])
def test_other_ids_count_as_they_stand(subject: str) -> None:
    """What is not exactly of UUID shape is a key letter by letter."""
    assert record_of(id=subject).key == subject


@pytest.mark.parametrize(("number", "key"), [(0, "0"), (7, "7"), (-5, "-5"), (10**40, "1" + "0" * 40)])
def test_integers_are_ids(number: int, key: str) -> None:
    """An integer is an id, written as its digits, and never that of the record whose id is the same as text."""
    raw, text = b'{"id":%d}' % number, b'{"id":"%d"}' % number
    found, other = read(raw), read(text)
    assert isinstance(found, Record)
    assert (found.subject, found.raw) == (key, raw)
    assert other == Record(key, key, text, None, None)
    assert found.key != key


@given(st.text(max_size=6), st.integers())
def test_no_text_has_the_key_of_an_integer(text: str, number: int) -> None:
    """Whatever the text, control characters among it: it has another key, or it is no id."""
    whole = record_of(id=number) if -(2**63) <= number < 2**64 else read(b'{"id":%d}' % number)
    assert isinstance(whole, Record)
    for subject in (text, whole.key, f"{text}{number}"):
        found = read(msgspec.json.encode({"id": subject}))
        assert isinstance(found, Rejected) or found.key != whole.key


def test_composed_and_decomposed_ids_are_two_records() -> None:
    """Texts that only look alike are two ids: nothing is normalized."""
    assert record_of(id="\u00e9").key == "\u00e9" != record_of(id="e\u0301").key == "e\u0301"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{}", "no id: 'id'"),
        (b'{"ID":"a"}', "no id"),
        (b'{"id":""}', "no id"),
        (b'{"id":null}', "no id"),
        (b'{"id":true}', "no id"),
        (b'{"id":{"id":"a"}}', "no id"),
        (b'{"id":["a"]}', "no id"),
        (b'{"id":1.0}', "no id"),
        (b'{"id":"%b"}' % (b"x" * 1_000_000), "an id of 1000000 characters"),
        (b'{"id":"a\\u0000b"}', "an id with control characters"),
        (b'{"id":"\\n"}', "an id with control characters"),
        (b'{"id":"\\u0085"}', "an id with control characters"),
        (b'{"id":"\\ufffe"}', "an id with control characters"),
        (b'{"id":"\\ud83f\\udfff"}', "an id with control characters"),
        (b'{"id":"\\ud800"}', "not JSON"),
        (b'{"id":%b}' % (b"1" * 5_000), "not usable"),
        (b'{"id":"\xff"}', "not UTF-8"),
        (b"[]", "not an object"),
        (b'"a"', "not an object"),
        (b"null", "not an object"),
        (b"5", "not an object"),
        (b'{"id":"a"', "not JSON"),
        (b'{"id":"a","b":NaN}', "not JSON"),
        (b'{"id":"a","b":%b}' % (b"[" * 100_000 + b"]" * 100_000), "nested too deep: more than 100 levels"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_what_has_no_usable_identity_is_rejected(raw: bytes, reason: str) -> None:
    """Each is rejected with its bytes and the reason, in one short line."""
    found = read(raw)
    assert isinstance(found, Rejected)
    assert found.raw == raw
    assert found.reason.startswith(reason)
    assert len(found.reason) < 200
    assert found.reason.isprintable()


def test_the_longest_id_is_usable() -> None:
    """The limit itself is within the limit."""
    assert record_of(id="x" * MAX_ID_LENGTH).key == "x" * MAX_ID_LENGTH
    assert isinstance(read(b'{"id":"%b"}' % (b"x" * (MAX_ID_LENGTH + 1))), Rejected)


@pytest.mark.parametrize(
    "text",
    [
        "2025-01-31T09:30:00Z",
        "2025-01-31T09:30:00.1Z",
        "2025-01-31T09:30:00.123456789Z",
        "2025-01-31T09:30:00+02:00",
        "2025-01-31T09:30:00.5-11:30",
        "2025-01-31T09:30:00-00:00",
        "2024-02-29T23:59:59Z",
    ],
)
def test_an_rfc_3339_time_is_kept_as_received(text: str) -> None:
    """A time with its offset is the record's time, letter by letter."""
    assert record_of(id="a", lastModifiedAt=text).modified == text


@pytest.mark.parametrize(
    "value",
    [
        *("", "yesterday", "2025-01-31", "2025-01-31T09:30:00", "2025-01-31 09:30:00Z", "2025-01-31T09:30Z"),
        *("2025-02-30T00:00:00Z", "2025-13-01T00:00:00Z", "2025-01-31T25:00:00Z", "2025-01-31T23:59:60Z"),
        *("0000-01-01T00:00:00Z", "25-01-31T09:30:00Z", "+02025-01-31T09:30:00Z", "20250131T093000Z"),
        *("2025-01-31T09:30:00+0200", "2025-01-31T09:30:00+24:00", "2025-01-31T09:30:00,5Z", "2025-01-31T09:30:00.Z"),
        *("2025-01-31T09:30:00Z\n", " 2025-01-31T09:30:00Z", "٢٠٢٥-01-31T09:30:00Z", "2025-W05-5T09:30:00Z"),
        *(None, 1738315800, 1738315800.5, True, [], {"at": "2025-01-31T09:30:00Z"}),
    ],
)
def test_what_is_no_rfc_3339_time_counts_as_none(value: Any) -> None:
    """The reference does not say what the field holds; whatever it is, the record stays usable."""
    assert record_of(id="a", lastModifiedAt=value).modified is None


@pytest.mark.parametrize(
    ("value", "kept"), [(UUID, UUID.lower()), ("q", None), ("", None), (None, None), (5, None), ([], None)]
)
def test_a_qualification_is_kept_where_it_is_one(value: Any, kept: str | None) -> None:
    """Only an id of UUID shape can be put into the path of a listing."""
    assert record_of(id="a", qualificationID=value).qualification == kept


@FEW
@given(OBJECTS, st.text(min_size=1, max_size=5, alphabet="abcñ 1-"))
def test_the_bytes_are_those_received(fields: Any, subject: str) -> None:
    """Whatever else a record holds, its bytes are kept as they came and its id is read out of them."""
    raw = spelled({**fields, "id": subject})
    assert read(raw) == Record(subject, subject, raw, None, None)


def test_the_id_field_is_the_feeds() -> None:
    """A feed may call its id otherwise; then ``id`` is a field like any other."""
    found = record_reader("code")(b'{"id":"x","code":"y"}')
    assert isinstance(found, Record)
    assert found.key == "y"


@pytest.mark.parametrize(
    "rest",
    [
        *(rb'"\ud800"', b'"a\nb"', b'"\xff"', b"NaN", b'"\x00"', b"7" * 5_000, b'{"id":"z","id":"y"}', b'["id"]'),
        *(b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 2_000 + b"1" + b"}" * 2_000, rb'"\u00"', b'"id"', rb'"\"id\":1"'),
    ],
    ids=lambda rest: repr(rest[:12]),
)
def test_the_id_of_what_cannot_be_used_is_read_from_its_bytes(rest: bytes) -> None:
    """Whatever is wrong with a record, its id is told, as the key that a usable record with it would have."""
    for record, key in (
        (b'{"id":"a","n":%b}', "a"),
        (b'{"n":%b,"id":"a"}', "a"),
        (b' { "n" : %b , "id" : 7 } ', "\x017"),
        (b'{"n":%b,"\\u0069d":"' + UUID.encode() + b'"}', UUID.lower()),
        (b'{"n":%b,"id":-0}', "\x010"),
    ):
        assert identities(record.replace(b"%b", rest), "id") == frozenset({key})


def test_an_id_that_stands_in_a_record_twice_is_both() -> None:
    """Nobody can tell which of the two the record is, so both are there."""
    assert identities(b'{"id":"a","n":NaN,"id":2}', "id") == frozenset({"a", "\x012"})


@pytest.mark.parametrize(
    "raw",
    [
        *(
            b"null",
            b"7",
            b'["id"]',
            b'["id",{"id":"a"}]',
            b"",
            b"{}",
            b'{"n":{"id":"a"}}',
            b'{"id":null}',
            b'{"id":""}',
        ),
        *(
            b'{"id":true}',
            b'{"id":1.0}',
            b'{"id":{"id":"a"}}',
            b'{"id":"\xff"}',
            b'{"id":"a","id":null}',
            b'{"code":"a"}',
        ),
    ],
)
def test_where_no_id_can_be_read_none_is_made_up(raw: bytes) -> None:
    """No object, no such key, a value that names nothing, bytes that are no text: any known record may be meant."""
    assert identities(raw, "id") is None


@FEW
@given(OBJECTS, st.text(min_size=1, max_size=5))
def test_an_id_is_the_same_from_the_bytes_and_from_the_record(fields: Any, subject: str) -> None:
    """Of a record that can be used both ways of reading agree."""
    raw = spelled({**fields, "id": subject})
    found = read(raw)
    if isinstance(found, Record):
        assert identities(raw, "id") == frozenset({found.key})
