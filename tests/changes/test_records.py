"""Laws of :mod:`poller.changes.records`."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.records import (
    MAX_ID_LENGTH,
    MAX_RECORD_BYTES,
    Record,
    Rejected,
    are_uuids,
    identities,
    is_single,
    latest_versions,
    modified_of,
    probable_keys,
    record_reader,
    records_reader,
    shape_of,
    twin_of,
    usable_keys,
    with_bytes,
)
from poller.lifecycle import at_once
from poller.source.paging import ListQuery
from tests.changes.samples import FEW, OBJECTS, spelled
from tests.harness.growth import LINEAR, growth
from tests.source.round_sides import FEED, Round, Script

UUID = "0B8ce21A-7f3d-4Cc5-9e1b-00aAbBcCdDeE"
read = record_reader("id")


def record_of(**fields: Any) -> Record:
    found = read(msgspec.json.encode(fields))
    assert isinstance(found, Record)
    return found


def test_a_uuid_is_one_key_in_any_case() -> None:
    """A UUID is one key in any case; the subject keeps the spelling received."""
    records = [record_of(id=spelling) for spelling in (UUID, UUID.lower(), UUID.upper())]
    assert {record.key for record in records} == {UUID.lower()}
    assert [record.subject for record in records] == [UUID, UUID.lower(), UUID.upper()]


@pytest.mark.parametrize("subject", ["Ab", UUID + "A", "{" + UUID + "}", UUID.replace("-", ""), "é", " ", "a b/c?d"])
def test_other_ids_count_as_they_stand(subject: str) -> None:
    """An id that is not exactly a UUID is used as its key unchanged."""
    assert record_of(id=subject).key == subject


@pytest.mark.parametrize(("number", "key"), [(0, "0"), (7, "7"), (-5, "-5"), (10**40, "1" + "0" * 40)])
def test_integers_are_ids(number: int, key: str) -> None:
    """An integer id has its digits as subject, and a different key from the same digits as text."""
    raw, text = b'{"id":%d}' % number, b'{"id":"%d"}' % number
    found, other = read(raw), read(text)
    assert isinstance(found, Record)
    assert (found.subject, found.raw) == (key, raw)
    assert other == Record(key, key, text, None, None)
    assert found.key != key


@given(st.integers(-(2**63), 2**64 - 1))
def test_an_integer_and_its_digits_are_twins(number: int) -> None:
    """The key of an integer id and that of its digits as text name each other."""
    found, other = record_of(id=number).key, record_of(id=str(number)).key
    assert (twin_of(found), twin_of(other)) == (other, found)


@pytest.mark.parametrize("subject", [UUID, "a1", "01", "+1", "-0", "1.0", "1e3", " 1", "\u0661", "--1", "-"])
def test_text_that_no_integer_is_written_as_has_no_twin(subject: str) -> None:
    """Only text that an integer is written as may be the id of a record whose id was an integer."""
    assert twin_of(record_of(id=subject).key) is None


@given(st.text(max_size=6), st.integers())
def test_no_text_has_the_key_of_an_integer(text: str, number: int) -> None:
    """No text id has the key of an integer id."""
    whole = record_of(id=number) if -(2**63) <= number < 2**64 else read(b'{"id":%d}' % number)
    assert isinstance(whole, Record)
    for subject in (text, whole.key, f"{text}{number}"):
        found = read(msgspec.json.encode({"id": subject}))
        assert isinstance(found, Rejected) or found.key != whole.key


def test_composed_and_decomposed_ids_are_two_records() -> None:
    """Ids that only look alike are different records: nothing is normalized."""
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
    """A record without a usable id is rejected with its bytes and a short printable reason."""
    found = read(raw)
    assert isinstance(found, Rejected)
    assert found.raw == raw
    assert found.reason.startswith(reason)
    assert len(found.reason) < 200
    assert found.reason.isprintable()


def test_the_longest_id_is_usable() -> None:
    """An id of the maximum length is usable, and one character more is rejected."""
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
    """A time with an offset is kept as the record's time, character by character."""
    assert record_of(id="a", lastModifiedAt=text).modified == text


@pytest.mark.parametrize(
    "value",
    [
        *("", "yesterday", "2025-01-31", "2025-01-31T09:30:00", "2025-01-31 09:30:00Z", "2025-01-31T09:30Z"),
        *("2025-02-30T00:00:00Z", "2025-13-01T00:00:00Z", "2025-01-31T25:00:00Z", "2025-01-31T23:59:60Z"),
        *("0000-01-01T00:00:00Z", "25-01-31T09:30:00Z", "+02025-01-31T09:30:00Z", "20250131T093000Z"),
        *("2025-01-31T09:30:00+0200", "2025-01-31T09:30:00+24:00", "2025-01-31T09:30:00,5Z", "2025-01-31T09:30:00.Z"),
        *("2025-01-31T09:30:00Z\n", " 2025-01-31T09:30:00Z", "٢٠٢٥-01-31T09:30:00Z", "2025-W05-5T09:30:00Z"),
        "2025-01-31T09:30:00.123456\u0661Z",
        *(None, 1738315800, 1738315800.5, True, [], {"at": "2025-01-31T09:30:00Z"}),
    ],
)
def test_what_is_no_rfc_3339_time_counts_as_none(value: Any) -> None:
    """A record whose time is not RFC 3339 is usable and has no time: the API does not document the format."""
    assert record_of(id="a", lastModifiedAt=value).modified is None


@pytest.mark.parametrize(
    "value",
    [
        *(
            "2025-01-31T09:30:00.123456789Z",
            "2024-02-29T23:59:59-11:30",
            "2025-02-29T00:00:00Z",
            "0000-01-01T00:00:00Z",
        ),
        *("2025-01-31T09:60:00Z", "2025-12-31T23:59:60Z", "2025-01-31T24:00:00Z", "2025-01-31T09:30:00+01:60"),
        *("2025-01-31 09:30:00Z", "2025-W05-5T09:30:00Z"),
        *("2025-01-31T09:30:00Z\n2025-01-31T09:30:00Z", "2025-01-31", "", None, 7, [], UUID, UUID.upper(), "a/b"),
    ],
)
@pytest.mark.parametrize("field", ["lastModifiedAt", "qualificationID", "id"])
def test_records_that_are_read_together_are_as_each_by_itself(field: str, value: Any) -> None:
    """A page is read as each of its records, usable or not, whatever one of them holds."""
    usual = {"id": UUID, "lastModifiedAt": "2025-01-31T09:30:00Z", "qualificationID": UUID}
    raws = [msgspec.json.encode(one) for one in (usual, {**usual, field: value}, {**usual, "id": UUID.upper()})]
    assert list(records_reader("id")(raws)) == [read(raw) for raw in raws]


@pytest.mark.parametrize("value", [b"1e400", b"-1.0E400", b'{"a":1e400}', b"[1e309]"])
@pytest.mark.parametrize("field", [b"lastModifiedAt", b"qualificationID"])
def test_a_number_beyond_the_range_of_a_float_is_no_reason_to_refuse_a_record(field: bytes, value: bytes) -> None:
    """It is no time and no reference, so the record has none; what else it has is read."""
    raw = b'{"id":"%b","%b":%b}' % (UUID.encode(), field, value)
    for found in (read(raw), *records_reader("id")([raw, raw])):
        assert isinstance(found, Record)
        assert (found.key, found.modified, found.qualification) == (UUID.lower(), None, None)
        assert with_bytes(found, raw) == found
    dated = b'{"qualificationID":%b,"lastModifiedAt":"2025-01-31T09:30:00Z"}' % value
    assert modified_of(dated) == "2025-01-31T09:30:00Z"


@pytest.mark.parametrize("value", [b"1e400", b"1.5"])
def test_a_number_with_a_point_or_an_exponent_is_no_id(value: bytes) -> None:
    """The reason names the id, however large the number is."""
    for found in (read(b'{"id":%b}' % value), *records_reader("id")([b'{"id":%b}' % value])):
        assert isinstance(found, Rejected)
        assert found.reason.startswith("no id: 'id' is absent, empty, or neither text nor an integer")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        *(
            (UUID, UUID.lower()),
            ("Q-1", "Q-1"),
            ("1.2_~", "1.2_~"),
            ("q" * 128, "q" * 128),
            (5, "5"),
            (2**70, str(2**70)),
        ),
        *(
            ("", None),
            (".", None),
            ("..", None),
            ("a/b", None),
            ("a?", None),
            ("%2e", None),
            ("a b", None),
            ("ä", None),
        ),
        *(("q\n", None), ("q" * 129, None), (None, None), (True, None), (1.5, None), ([], None)),
    ],
)
def test_a_qualification_is_kept_where_it_is_one(value: Any, kept: str | None) -> None:
    """Only what needs no quoting is kept as a qualification, because it goes into the path of a listing."""
    assert record_of(id="a", qualificationID=value).qualification == kept


@FEW
@given(OBJECTS, st.text(min_size=1, max_size=5, alphabet="abcñ 1-"))
def test_the_bytes_are_those_received(fields: Any, subject: str) -> None:
    """A record keeps its bytes, and its id is read from them."""
    raw = spelled({**fields, "id": subject})
    assert read(raw) == Record(subject, subject, raw, None, None)


def test_the_id_field_is_the_feeds() -> None:
    """A feed may name another id field; ``id`` is then an ordinary field."""
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
    """The key read from the bytes of an unusable record is the key that a usable record with that id would have."""
    for record, key in (
        (b'{"id":"a","n":%b}', "a"),
        (b'{"n":%b,"id":"a"}', "a"),
        (b' { "n" : %b , "id" : 7 } ', "\x017"),
        (b'{"n":%b,"\\u0069d":"' + UUID.encode() + b'"}', UUID.lower()),
        (b'{"n":%b,"id":-0}', "\x010"),
    ):
        assert identities(record.replace(b"%b", rest), "id") == frozenset({key})


def test_an_id_that_stands_in_a_record_twice_is_both() -> None:
    """A record with two ids counts as both records."""
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
    """Bytes without a readable id have no identity: any known record may be meant."""
    assert identities(raw, "id") is None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"id":"a","n":"5" pipe"}, {"id":"b"}, {"id":"c","n":"6" pipe"}',
        b'{"id":"a","n":1, {"id":"b"}, {"id":"c"}}',
        b'{"id":"a","n":[1}, {"id":"b"}, {"id":"c"]}',
        b'{"id":"a"}, {"id":"b"}',
        b'{"id":"a"} {"id":"b"}',
        b'{"id":"a","n":"5"","m":""x"}',
        b'{"id":"a","n":"x}',
        b'{"id":"a",{"id":"b"}}',
        b'{"id":"a","n":1,}',
        b'{"id":"a","n"}',
        b'["id":"a"]',
        b"",
    ],
)
def test_what_may_be_several_records_has_no_id(raw: bytes) -> None:
    """Bytes whose strings and brackets are not those of one JSON value have no identity."""
    assert not is_single(raw)
    assert identities(raw, "id") is None


@pytest.mark.parametrize(
    "text", [b'\\"', b'"', b'"id":"', b'"id":7,', b'["a\\"', b'"id" ', b'"id": ', b"{", b'"id":"a" ']
)
@pytest.mark.parametrize("start", [b'{"id":"a",', b'{"id":NaN,"x":"', b'{"id":7'])
def test_an_id_is_looked_for_in_time_by_the_length_alone(start: bytes, text: bytes) -> None:
    """The search for an id takes time linear in the length of the record, whatever the record repeats."""
    assert growth(lambda size: identities(start + text * (size // len(text)), "id"), 4 * 1024) < LINEAR
    assert growth(lambda size: identities(start + text * (size // len(text)) + b"}", "id"), 4 * 1024) < LINEAR


def test_a_record_of_too_many_ids_or_brackets_has_none() -> None:
    """The search for an id is bounded: a record with too many ids or too many elements has no identity."""
    several = [b'"id":%d' % number for number in range(20)]
    assert identities(b'{"n":NaN,' + b",".join(several[:16]) + b"}", "id") is not None
    assert identities(b'{"n":NaN,' + b",".join(several) + b"}", "id") is None
    assert identities(b'{"id":1,"n":[NaN' + b",0" * 100_000 + b"]}", "id") == frozenset({"\x011"})
    assert identities(b'{"id":1,"n":[NaN' + b",0" * 300_000 + b"]}", "id") is None


def test_a_record_beyond_any_use_is_rejected() -> None:
    """A record above the size limit is rejected, and its id still counts as seen."""
    usable = b'{"id":"a","x":"%b"}' % (b"x" * (MAX_RECORD_BYTES - 17))
    assert isinstance(read(usable), Record)
    rejected = read(usable + b" ")
    assert isinstance(rejected, Rejected)
    assert rejected.reason == f"a record of {MAX_RECORD_BYTES + 1} bytes; at most {MAX_RECORD_BYTES} are usable"
    assert identities(rejected.raw, "id") == frozenset({"a"})


def test_parts_are_laid_over_each_other_in_time_by_their_number() -> None:
    """Merging the parts of one record takes time linear in their number, even if each part has another key."""

    def parts(count: int) -> None:
        found = [read(b'{"id":1,"k%d":0}' % number) for number in range(count)]
        (whole,) = at_once(latest_versions(found, partial=True))
        assert whole.raw.count(b":") == count + 1

    assert growth(parts, 250) < LINEAR


@FEW
@given(OBJECTS, st.binary(min_size=1, max_size=3).filter(lambda junk: not set(junk) & set(b'\\"')))
def test_what_is_wrong_within_strings_or_numbers_leaves_a_value_single(value: Any, junk: bytes) -> None:
    """A JSON value is a single value whatever bytes its strings hold and however its numbers are spelled."""
    raw = spelled(value)
    assert is_single(raw)
    assert is_single(b' {"a" : [' + raw + b' , "' + junk + b'" , NaN, 0x1F ] }\n')


@FEW
@given(OBJECTS, OBJECTS)
def test_two_objects_are_never_single(one: Any, other: Any) -> None:
    """Two objects are never a single value, whatever separates them and wherever an extra quotation mark is."""
    first, second = spelled({**one, "id": "a"}), spelled({**other, "id": "b"})
    for between in (b"", b",", b" ", b":", b"x"):
        assert not is_single(first + between + second)
        broken = first[:-1] + b',"n":"5" pipe"}' + between + second[:-1] + b',"n":"6" pipe"}'
        assert not is_single(broken)


@FEW
@given(OBJECTS, st.text(min_size=1, max_size=5))
def test_an_id_is_the_same_from_the_bytes_and_from_the_record(fields: Any, subject: str) -> None:
    """For a usable record the id read from the bytes is the id of the record."""
    raw = spelled({**fields, "id": subject})
    found = read(raw)
    if isinstance(found, Record):
        assert identities(raw, "id") == frozenset({found.key})


# Laws of :mod:`poller.changes.records`: another choice of fields causes no burst of events and loses no change.

KEYS = ("a", "b", "c")
SHAPES = st.sampled_from([(), ("id", "a"), ("id", "b", "c"), ("id", "a", "b", "c")])


def test_without_fields_all_counts() -> None:
    """There is no shape when all fields were and are requested; an unknown earlier choice counts as the present one."""
    assert shape_of((), ()) is None
    assert shape_of(None, ()) is None
    assert shape_of(("a",), ()) is not None


@given(
    st.lists(
        st.tuples(SHAPES, st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, st.integers(0, 2)))),
        min_size=2,
        max_size=7,
    )
)
async def test_what_was_published_agrees_with_the_source_in_all_that_was_asked_for_twice(
    steps: list[tuple[tuple[str, ...], dict[str, int]]],
) -> None:
    """The events, laid over each other, give the source's value of every published field that is still requested.

    A changed choice of fields alone publishes nothing.
    """
    read = Round()
    laid: dict[str, Any] = {}
    sources: list[dict[str, Any]] = []
    for fields, values in steps:
        source = {"id": "x", **values}
        shown = {key: value for key, value in source.items() if not fields or key in fields}
        feed = msgspec.structs.replace(FEED, query=ListQuery(fields=fields), delta=False)
        count = len(read.store.events)
        result = await read(Script().on([shown]), feed)
        assert result.ok
        assert (await read(Script().on([shown]), feed)).changes == 0
        for event in read.store.events[count:]:
            laid |= event["data"]["record"]
            if "changed" in event["data"]:
                previous, record = event["data"]["previous"], event["data"]["record"]
                for pointer in event["data"]["changed"]:
                    assert previous.get(pointer[1:]) != record.get(pointer[1:])
                    if pointer[1:] not in record:
                        laid.pop(pointer[1:], None)
        sources.append(source)
        if len(sources) > 1 and all(one == source for one in sources):
            assert result.changes == 0
        assert all(laid[key] == shown.get(key) for key in laid if not fields or key in fields), (laid, shown)


# Laws of :mod:`poller.changes.records`.

NINE, TEN, ELEVEN = (f"2025-03-01T{hour}:00:00Z" for hour in ("09", "10", "11"))
ELEVEN_ELSEWHERE = "2025-03-01T09:00:00-02:00"


def version(n: int, modified: str | None = None, **more: Any) -> bytes:
    when = {} if modified is None else {"lastModifiedAt": modified}
    return msgspec.json.encode({"id": "a", "n": n, **when, **more})


def left_of(*raws: bytes, partial: bool = False) -> list[Any]:
    """What remains of a page: values of the records, reasons of the rejected ones."""
    found = at_once(latest_versions([read(raw) for raw in raws], partial=partial))
    return [json.loads(one.raw) if isinstance(one, Record) else one.reason for one in found]


def test_a_page_without_repetitions_stays_as_it_is() -> None:
    """A page without repeated ids keeps its records and rejections in order."""
    records = [read(b'{"id":"b"}'), read(b"{}"), read(b'{"id":1}'), read(b'{"id":"1"}'), read(b"{}")]
    assert at_once(latest_versions(records)) == records


@pytest.mark.parametrize(
    ("modified", "chosen"),
    [
        ((NINE, TEN), 1),
        ((TEN, NINE), 0),
        ((TEN, TEN), 1),
        ((ELEVEN_ELSEWHERE, TEN), 0),
        ((TEN, None), 1),
        ((None, TEN), 1),
        ((None, None), 1),
        ((TEN, ELEVEN, NINE), 1),
        ((ELEVEN, None, NINE), 0),
    ],
)
def test_the_one_modified_last_is_chosen(modified: tuple[str | None, ...], chosen: int) -> None:
    """The version modified last is chosen, by moment, not spelling; without a time the page order decides."""
    raws = [version(place, when) for place, when in enumerate(modified)]
    assert left_of(b'{"id":"b"}', *raws, b'{"id":"c"}') == [{"id": "b"}, json.loads(raws[chosen]), {"id": "c"}]


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"id":"a","n":2,"n":3}', 'the key "n" stands twice'),
        (b'{"id":"b","n":2,"id":"a"}', 'the key "id" stands twice'),
        (b'{"id":"a","n":"\xff"}', "not UTF-8"),
        (b'{"id":"a","n":1e99999999999999999999}', "a number is out of any range"),
    ],
    ids=["twice", "id twice", "not UTF-8", "range"],
)
def test_a_version_that_cannot_be_used_displaces_none(bad: bytes, reason: str, partial: bool) -> None:
    """An unusable version is rejected with its bytes, and the usable one is kept, in either order."""
    for raws in ([version(1), bad], [bad, version(1)]):
        assert left_of(*raws, partial=partial) == [{"id": "a", "n": 1}, reason]
    (rejected,) = (one for one in at_once(latest_versions([read(bad), read(bad), read(version(1))]))[1:2])
    assert rejected == Rejected(bad, reason)


def test_parts_are_laid_over_each_other_in_order() -> None:
    """Parts of one record in one page are merged in order of their modification times."""
    name, reason = version(1, ELEVEN, name="x"), version(2, TEN, reason="y")
    whole = {"id": "a", "n": 1, "name": "x", "reason": "y", "lastModifiedAt": ELEVEN}
    assert left_of(name, reason, partial=True) == [whole]
    assert left_of(reason, name, partial=True) == [whole]
    assert left_of(name, version(3, NINE, late=1), reason, partial=True) == [{**whole, "late": 1}]


@FEW
@given(st.permutations([NINE, TEN, ELEVEN]), st.booleans())
def test_three_parts_in_any_order_are_one_record(times: list[str], other_between: bool) -> None:
    """In any order of the page the latest value counts, and a member that only an earlier part has is kept."""
    raws = [version(int(when[11:13]), when, **{f"only{when[11:13]}": True}) for when in times]
    if other_between:
        raws.insert(1, b'{"id":"b"}')
    (found,) = (one for one in left_of(*raws, partial=True) if one["id"] == "a")
    assert found == {"id": "a", "n": 11, "lastModifiedAt": ELEVEN, "only09": True, "only10": True, "only11": True}


@pytest.mark.parametrize(
    "ids",
    [
        ["0A0B0C0D-0000-4000-8000-00000000000F", "0a0b0c0d-0000-4000-8000-00000000000e"],
        ["0A0B0C0D-0000-4000-8000-00000000000F", "x"],
        [1, "1", "a"],
        [-(10**30), "A", "é\u2028"],
        [],
    ],
)
def test_the_keys_of_usable_records_are_those_of_the_reader(ids: list[Any]) -> None:
    """Read together, they are what they are one by one."""
    raws = [json.dumps({"n": 1, "id": one}).encode() for one in ids]
    together = usable_keys(b", ".join(raws), "id")
    each = [one.key for one in map(record_reader("id"), raws) if isinstance(one, Record)]
    assert together == each


_LINES = st.lists(
    st.uuids().map(str) | st.sampled_from(["", "0" * 36, "-" * 36, "0B8CE21A-7f3d-4cc5-9e1b-00aabbccddee"])
)


@given(_LINES, st.integers(0, 200), st.sampled_from(["", "\n", "-", "g", "A", "\xe9", "0"]))
def test_lines_are_uuids_if_each_is_one(lines: list[str], at: int, put: str) -> None:
    """Lines are looked at together; the answer is the one that each gives, whatever stands in them."""
    text = "\n".join(lines)
    text = text[:at] + put + text[at + len(put) :]
    each = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
    assert are_uuids(text) is all(map(each, text.split("\n")))


@given(
    st.lists(
        OBJECTS.map(lambda one: json.dumps(one).encode())
        | st.sampled_from(
            [b'{"id":"a"}', b'{"id":7}', b'{"id":"7"}', b"{}", b"7", b'{"id":"\xff"}', b'{"id":[]}', b"[" * 3000]
        )
    )
)
def test_probable_keys_are_those_of_usable_records(raws: list[bytes]) -> None:
    """Where there are any, there is one for each record, and the usable ones have these."""
    found = probable_keys(raws, "id")
    if found is not None:
        assert len(found) == len(raws)
        for key, record in zip(found, map(record_reader("id"), raws), strict=True):
            assert isinstance(record, Rejected) or record.key == key


def test_ids_that_cannot_be_read_together_have_no_keys() -> None:
    """A page of them is compared record by record."""
    assert usable_keys(b'{"id":"a"},{"id":[1]}', "id") is None
    assert usable_keys(b'{"id":"a"},{}', "id") is None
