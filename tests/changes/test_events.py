"""Laws of :mod:`poller.changes.events`; the ``cloudevents`` SDK reads the events as an independent decoder."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import example, given
from hypothesis import strategies as st

from poller.changes.canonical import canonical
from poller.changes.diff import Change, ChangeKind
from poller.changes.events import MAX_EVENT_BYTES, Cause, EventFrame
from poller.changes.records import Record
from poller.clock import rfc3339
from tests.changes.samples import FEW, OBJECTS, spelled

SOURCE = "https://api.example.org/v1/contractTypes"
STEM = "org.example.api.contractType"
RECORDED = "2025-03-01T12:00:00.125Z"


def frame(
    feed: str = "acme/contractTypes", generation: str = "g1", cause: Cause = Cause.DELTA, source: str = SOURCE
) -> EventFrame:
    return EventFrame(feed=feed, generation=generation, source=source, type_stem=STEM, cause=cause)


def created(raw: bytes = b'{"id":"K"}', *, key: str = "k", revision: int = 1, modified: str | None = None) -> Change:
    return Change(ChangeKind.CREATED, key, key.upper(), modified, raw, canonical(raw), None, (), revision)


def altered(raw: bytes, previous: bytes, changed: tuple[str, ...] = ("/a",)) -> Change:
    return Change(ChangeKind.MODIFIED, "k", "K", None, raw, canonical(raw), previous, changed, 2)


def removed(previous: bytes, revision: int = 3) -> Change:
    return Change(ChangeKind.REMOVED, "k", "K", None, None, b"", previous, (), revision)


def written(change: Change, *, sequence: int = 42, by: EventFrame | None = None) -> bytes:
    by = by or frame()
    return by.encode(change, event_id=by.event_id(change), sequence=sequence, recorded=RECORDED)


def attributes(event: bytes) -> dict[str, Any]:
    """Every attribute as the SDK reads and validates it, and the data."""
    read = JSONFormat().read(CloudEvent, event)
    data = read.get_data()
    assert isinstance(data, dict)
    return {**read.get_attributes(), "data": data}


TEXTS = st.text(
    min_size=1, max_size=20, alphabet=st.characters(exclude_categories=("Cs", "Cc", "Cn"), exclude_characters="\x7f")
)
CHANGES = st.builds(
    lambda kind, subject, fields, before, changed, revision, modified: Change(
        kind,
        subject,
        subject,
        modified,
        None if kind is ChangeKind.REMOVED else spelled(fields),
        b"" if kind is ChangeKind.REMOVED else canonical(spelled(fields)),
        None if kind is ChangeKind.CREATED else spelled(before),
        tuple(sorted(changed)) if kind is ChangeKind.MODIFIED else (),
        revision,
    ),
    st.sampled_from(list(ChangeKind)),
    TEXTS,
    OBJECTS,
    OBJECTS,
    st.sets(TEXTS.map(lambda text: f"/{text}"), min_size=1, max_size=3),
    st.integers(1, 10**12),
    st.sampled_from([None, "2025-01-31T09:30:00.123456789+02:00", "2025-01-31T09:30:00Z"]),
)


@FEW
@given(CHANGES, st.integers(1, 10**20 - 1), st.sampled_from(list(Cause)))
@example(altered(b'{"a":1}', b'{"a":2}'), 1, Cause.RESYNC)
@example(created('{"id":"\\"é\U0001f600\u2028"}'.encode(), key='"é\U0001f600\u2028\\'), 1, Cause.BASELINE)
def test_the_sdk_reads_every_attribute_of_the_contract(change: Change, sequence: int, cause: Cause) -> None:
    """The SDK reads exactly the attributes and data that the contract lists."""
    by = frame(cause=cause)
    data: dict[str, Any] = {"revision": change.revision, "cause": str(cause)}
    if change.raw is not None:
        data["record"] = json.loads(change.raw)
    if change.previous is not None:
        data["previous"] = json.loads(change.previous)
    if change.kind is ChangeKind.MODIFIED:
        data["changed"] = list(change.changed)
    assert attributes(written(change, sequence=sequence, by=by)) == {
        "specversion": "1.0",
        "id": by.event_id(change),
        "source": SOURCE,
        "type": f"{STEM}.{change.kind}.v1",
        "subject": change.subject,
        "time": datetime.fromisoformat(change.modified or RECORDED),
        "recordedtime": RECORDED,
        "sequence": str(sequence).zfill(20),
        "partitionkey": change.subject,
        "cause": str(cause),
        "datacontenttype": "application/json",
        "data": data,
    }


@FEW
@given(
    st.lists(st.tuples(TEXTS, OBJECTS, st.sampled_from([None, "2025-01-31T09:30:00Z"])), max_size=4),
    st.integers(1, 10**20 - 9) | st.sampled_from([998, 9_999, 123_997]),  # the last digits begin anew
    st.sampled_from(["%", "%%b%d", '"é', ""]),
)
def test_new_records_that_are_encoded_together_are_as_each_by_itself(
    found: list[tuple[str, dict[str, Any], str | None]], sequence: int, mark: str
) -> None:
    """Ids and events of new records made together are those made of each, whatever signs the constants have."""
    records = [Record(subject.lower(), subject, spelled(fields), time, None) for subject, fields, time in found]
    by = EventFrame(
        feed="a/b",
        generation="g",
        source=f"{SOURCE}?q={mark}",
        type_stem=STEM + mark,
        cause=Cause.FULL,
        extensions={"tracestate": f"x={mark}"},
    )
    for recorded in (RECORDED, "2025-03-01T12:00:00.126Z"):
        ids, events = by.created(records, [canonical(one.raw) for one in records], sequence=sequence, recorded=recorded)
        changes = [
            Change(ChangeKind.CREATED, one.key, one.subject, one.modified, one.raw, canonical(one.raw), None, (), 1)
            for one in records
        ]
        assert ids == [by.event_id(change) for change in changes]
        assert events == [
            by.encode(change, event_id=event_id, sequence=number, recorded=recorded)
            for number, (change, event_id) in enumerate(zip(changes, ids, strict=True), start=sequence)
        ]
        for event in map(json.loads, events):
            assert (event["source"], event["tracestate"]) == (f"{SOURCE}?q={mark}", f"x={mark}")
            assert (event["recordedtime"], event["type"]) == (recorded, f"{STEM}{mark}.created.v1")


@FEW
@given(CHANGES)
def test_names_and_values_keep_to_the_allowed_characters(change: Change) -> None:
    """Attribute names are short lower-case letters and digits; values hold no control characters."""
    event = json.loads(written(change))
    event.pop("data")
    for name, value in event.items():
        assert re.fullmatch("[a-z0-9]{1,20}", name)
        assert isinstance(value, str)
        assert value
        assert not re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", value)
    assert re.fullmatch("[0-9a-f]{32}", event["id"])
    assert re.fullmatch("[0-9]{20}", event["sequence"])


@pytest.mark.parametrize(
    "raw",
    [
        b'{"id":"K","n":1.0}',
        b'{"id":"K","n":12345678901234567890123}',
        b'{"z":1,"id":"K","a":1e400}',
        b'{ "id" : "K",\n\t"e":"\\u00e9\\/" }',
        b'{"id":"K","id":"K"}',
    ],
)
def test_records_are_embedded_byte_by_byte(raw: bytes) -> None:
    """Record and previous record are embedded byte for byte."""
    assert b'"data":{"record":' + raw + b',"revision":1,' in written(created(raw))
    assert b'"data":{"record":{},"previous":' + raw + b',"changed":["/a"],' in written(altered(b"{}", raw))
    assert b'"data":{"previous":' + raw + b',"revision":3,' in written(removed(raw))


def test_the_same_change_has_the_same_id_for_ever() -> None:
    """The id does not depend on cause, source, time or spelling, and is the same in every version of the program.

    A backfilled event has another one, likewise.
    """
    change = created(b'{"id":"K","n":1.0}')
    again = created(b'{ "n":1, "id":"K" }', modified="2025-01-31T09:30:00Z")
    ids: dict[bool, set[str]] = {False: set(), True: set()}
    for cause in Cause:
        made = frame(cause=cause, source=f"urn:{cause}")
        ids[cause is Cause.BACKFILL] |= {made.event_id(change), made.event_id(again)}
    assert ids == {False: {"4e7669996e5185c09f5cc663779cd938"}, True: {"ed848df7538f9fb3e1fe7613dae927bb"}}


def test_a_different_change_has_a_different_id() -> None:
    """Feed, generation, key, revision and content enter the id, separated so that two parts cannot run together."""
    changes = [
        *(created(b'{"n":%d}' % number) for number in range(3)),
        *(created(revision=revision) for revision in (1, 2, 11, 12)),
        *(created(key=key) for key in ("k1", "k2", "1")),
        removed(b'{"n":1}', 5),
        removed(b'{"n":1}', 6),
    ]
    frames = [
        frame(),
        frame(feed="acme/other"),
        frame(generation="g2"),
        frame(feed="acme/contractTypesg1", generation=""),
    ]
    ids = [by.event_id(change) for by in frames for change in changes]
    assert len(set(ids)) == len(ids)


@FEW
@given(st.lists(CHANGES, min_size=2, max_size=3))
def test_ids_are_equal_if_and_only_if_the_changes_are(changes: list[Change]) -> None:
    """Within a feed the id depends on key, revision and content only."""
    by = frame()
    identities = {(change.key, change.revision, change.canonical) for change in changes}
    assert len({by.event_id(change) for change in changes}) == len(identities)


def test_an_event_within_64_kib_keeps_what_was_before() -> None:
    """An event of exactly 64 KiB keeps its previous version; one byte more and it is omitted and listed as such."""
    room = MAX_EVENT_BYTES - len(written(altered(b"{}", b'{"x":""}')))
    exact = written(altered(b"{}", b'{"x":"%b"}' % (b"y" * room)))
    assert len(exact) == MAX_EVENT_BYTES == 64 * 1024
    assert attributes(exact)["data"]["previous"] == {"x": "y" * room}
    assert "omitted" not in attributes(exact)["data"]
    beyond = attributes(written(altered(b"{}", b'{"x":"%b"}' % (b"y" * (room + 1)))))["data"]
    assert beyond == {"record": {}, "omitted": ["previous"], "changed": ["/a"], "revision": 2, "cause": "delta"}


def test_a_removal_beyond_64_kib_leaves_out_what_was_before() -> None:
    """A removal event beyond 64 KiB omits the previous version too, and is still published."""
    data = attributes(written(removed(b'{"x":"%b"}' % (b"y" * MAX_EVENT_BYTES))))["data"]
    assert data == {"omitted": ["previous"], "revision": 3, "cause": "delta"}


def test_a_record_is_never_left_out() -> None:
    """A record beyond 64 KiB is published whole: an event without its record would be a lost change."""
    raw = b'{"x":"%b"}' % (b"y" * MAX_EVENT_BYTES)
    assert attributes(written(created(raw)))["data"] == {"record": json.loads(raw), "revision": 1, "cause": "delta"}
    data = attributes(written(altered(raw, b"{}")))["data"]
    assert (data["record"], data["omitted"]) == (json.loads(raw), ["previous"])


@given(st.datetimes(min_value=datetime(1000, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 -- hypothesis wants it naive
@FEW
def test_recorded_times_are_rfc_3339_in_milliseconds(moment: datetime) -> None:
    """Recorded times are cut to milliseconds, never rounded up, and have a fixed length."""
    text = rfc3339(moment)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    assert timedelta() <= moment - datetime.fromisoformat(text) < timedelta(milliseconds=1)


def test_extensions_are_attributes_and_nothing_else() -> None:
    """A frame's extensions appear as attributes, count towards the size limit, and do not enter the id."""
    carried = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": 'a="b"'}
    by = EventFrame(
        feed="acme/contractTypes", generation="g1", source=SOURCE, type_stem=STEM, cause=Cause.DELTA, extensions=carried
    )
    change = created()
    assert by.event_id(change) == frame().event_id(change)
    assert attributes(written(change, by=by)) == attributes(written(change)) | carried
    before = b'{"x":"%b"}' % (b"y" * (MAX_EVENT_BYTES - len(written(altered(b"{}", b'{"x":""}')))))
    assert b'"previous"' in written(altered(b"{}", before))
    assert attributes(written(altered(b"{}", before), by=by))["data"]["omitted"] == ["previous"]
