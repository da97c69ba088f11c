"""Laws of :mod:`poller.delivery.cloudevent`."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.cloudevent import ATTRIBUTES, Envelope, LatestResults, delivery_key, envelope_of
from tests.changes.samples import FEW, MANY, OBJECTS
from tests.changes.samples import spelled as json_text
from tests.delivery.events import MEMBERS, RECORDED, SOURCE, TYPE, entry, spelled, string_form


def test_our_own_events_are_read_without_a_second_pass() -> None:
    """Every attribute that this program writes has a field; the data keeps its bytes."""
    read = envelope_of(entry())
    assert type(read) is Envelope
    assert (read.source, read.type, read.subject, read.partitionkey) == (SOURCE, TYPE, "K", "K")
    assert (read.time, read.recordedtime, read.sequence) == (RECORDED, RECORDED, f"{1:020}")
    assert read.datacontenttype == "application/json"
    assert bytes(read.data).startswith(b'{"record":{"id":"K","big":123456789012345678901234567890}')
    assert entry().endswith(bytes(read.data) + b"}")


@FEW
@given(OBJECTS)
def test_the_sdk_reads_the_same(fields: dict[str, Any]) -> None:
    """An event is read like the ``cloudevents`` SDK reads it, attributes and data."""
    written = entry(json_text(fields))
    theirs = JSONFormat().read(CloudEvent, written)
    ours = envelope_of(written)
    assert dict(ours.attributes()).keys() == theirs.get_attributes().keys()
    assert (ours.id, ours.source, ours.type) == (theirs.get_id(), theirs.get_source(), theirs.get_type())
    assert json.loads(bytes(ours.data)) == theirs.get_data()


@MANY
@given(MEMBERS)
def test_every_attribute_is_kept_in_its_string_form(members: dict[str, Any]) -> None:
    """Every attribute is kept as a string, also integers and booleans."""
    read = envelope_of(spelled(**members))
    expected = {"specversion": "1.0", "id": "a1", "source": "/s", "type": "t"} | members
    assert dict(read.attributes()) == {name: string_form(value) for name, value in expected.items()}
    for name, value in expected.items():
        assert read.attribute(name) == string_form(value)
    assert read.attribute("nosuchattribute") is None


@pytest.mark.parametrize("name", [*ATTRIBUTES[4:], "shard"])
def test_null_is_absent(name: str) -> None:
    """A null attribute is absent, as in the JSON format."""
    assert envelope_of(spelled(**{name: None})).attribute(name) is None


@pytest.mark.parametrize("data", ['{"a" : 1.0}', "[]", '"text"', "null", "1e400", '{"a":"\\ud83d\\ude00"}'])
def test_the_data_is_not_touched(data: str) -> None:
    """The data keeps its bytes, whether or not other attributes need a second pass."""
    for rest in (b"", b',"shard":7'):
        read = envelope_of(spelled()[:-1] + rest + b',"data":' + data.encode() + b"}")
        assert bytes(read.data) == data.encode()
        assert not read.opaque


@given(st.binary(max_size=20))
def test_bytes_in_base64_are_bytes(content: bytes) -> None:
    """``data_base64`` is decoded as binary data and is not an attribute."""
    read = envelope_of(spelled(data_base64=b64encode(content).decode()))
    assert (bytes(read.data), read.opaque, read.attribute("data_base64")) == (content, True, None)


def test_an_event_without_data_has_none() -> None:
    """An event without data has empty bytes as data, which differs from every JSON value."""
    assert bytes(envelope_of(spelled()).data) == b""
    assert envelope_of(spelled(data=1)).attribute("data") is None


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"data":' + b"[" * 100_000,
        spelled() + b"x",
        spelled()[:-1],
        spelled(specversion="0.3"),
        spelled(specversion=None),
        spelled(id=""),
        spelled(id=1),
        spelled(source=""),
        spelled(type=None),
        spelled(subject=["secret"]),
        spelled(shard=1.5),
        spelled(shard=["secret"]),
        spelled(Shard="secret"),
        spelled(**{" ": {"secret": "b"}}),
        spelled(data=1, data_base64=""),
        spelled(data_base64="secret"),
        spelled(data_base64=1),
        spelled(data_base64="AP8=!"),
        b'{"specversion":"1.0","id":"\\ud800","source":"s","type":"t"}',
        b'{"specversion":"1.0","id":"\xff","source":"s","type":"t"}',
        b'{"id":"a","source":"s","type":"t"}',
    ],
)
def test_what_is_no_event_is_refused(written: bytes) -> None:
    """Text that is no CloudEvent raises one kind of error, which repeats no value."""
    with pytest.raises(ValueError, match=r"^no CloudEvent 1\.0 in JSON: .") as refused:
        envelope_of(written)
    assert "secret" not in str(refused.value)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_event_or_refused(written: bytes) -> None:
    """Arbitrary bytes raise no error but the one for text that is no CloudEvent."""
    with pytest.raises(ValueError, match="no CloudEvent"):
        envelope_of(written)


# What is remembered of the latest events.


def test_an_event_that_many_subscriptions_get_is_read_once() -> None:
    """Entries of the same bytes have the same envelope, also after others; entries that differ in any byte do not."""
    written = [entry(b'{"id":"K","n":%d}' % number) for number in range(9)]
    list(map(envelope_of, written))  # there may be no room left: then all is dropped, and there is
    first = [envelope_of(one) for one in written]
    assert all(envelope_of(bytes(bytearray(one))) is read for one, read in zip(written, first, strict=True))
    assert [bytes(one.data) for one in first] == [
        bytes(json.dumps(json.loads(one)["data"], separators=(",", ":")), "utf-8") for one in written
    ]
    assert len({one.id for one in first}) == 9


def test_what_is_remembered_is_bounded() -> None:
    """Results are remembered up to a number and a size; a large one is not, and drops nothing that is small."""
    results: LatestResults[int, str] = LatestResults()
    for number in range(1000):
        results.put(number, str(number), 1)
        assert results.get(number) == str(number)
    assert 100 <= sum(results.get(number) is not None for number in range(1000)) <= 128
    for number in range(1000):
        results.put(number, str(number), 10_000)
    assert sum(results.get(number) is not None for number in range(1000)) <= 26
    results.put(0, "large", 10_000_000)
    assert results.get(0) is None
    assert results.get(999) == "999"


def test_an_entry_that_is_no_event_is_refused_each_time() -> None:
    """What cannot be read is not remembered as anything."""
    for _ in range(2):
        with pytest.raises(ValueError, match="no CloudEvent"):
            envelope_of(b'{"specversion":"1.0"}')


def test_only_the_letters_of_a_uuid_count_alike() -> None:
    """Law: two ids that are one record to the feed share a queue, and two that are not do not."""
    uuid = "7D9F3A52-6A0E-4F0C-9A50-0F5A1C4A7F11"
    assert delivery_key(uuid) == delivery_key(uuid.lower())
    for one, other in (("aB" * 18, "Ab" * 18), ("x-Y" * 12, "X-y" * 12)):
        assert delivery_key(one) != delivery_key(other)
