"""Laws of :mod:`poller.client.http_events`: which events a request holds, and what is none."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given

from poller.client import ContentRefused, ReceivedEvent, verify
from poller.delivery.cloudevent import Mode, envelope_of
from tests.changes.samples import FEW
from tests.client.webhooks import BATCH, SECRET, STRUCTURED, event, request_of
from tests.delivery.events import MEMBERS, entry, pair, spelled, string_form

LARGE = b'{"n":123456789012345678901234567890,"f":0.10,"e":1.00000000000000000001,"s":"caf\xc3\xa9","u":"\\u00e9"}'


def read(body: bytes, content_type: str = STRUCTURED, **headers: str) -> list[ReceivedEvent]:
    return verify({"Content-Type": content_type, **headers}, body, None)


@pytest.mark.parametrize("mode", ["structured", "binary", "batch"])
def test_what_the_daemon_sends_is_what_the_stream_holds(mode: Mode) -> None:
    """In each mode the events of a request have the attributes and the data of the stream, byte for byte."""
    keys = ("K", 'a "b" %é') if mode == "batch" else ('a "b" %é',)
    headers, body = request_of(mode, *keys)
    found = verify(headers, body, SECRET)
    for event_, key in zip(found, keys, strict=True):
        envelope, written = pair(entry(key=key))
        assert {name: _text(value) for name, value in event_.get_attributes().items()} == dict(envelope.attributes())
        assert event_.raw_data == bytes(envelope.data)
        assert event_.get_data()["record"]["big"] == 123456789012345678901234567890
        if mode != "binary":
            assert event_.to_json() == written
        assert dict(envelope_of(event_.to_json()).attributes()) == dict(envelope.attributes())


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return str(value)


@FEW
@given(MEMBERS)
def test_any_attribute_in_any_mode(members: dict[str, Any]) -> None:
    """Attributes of any name and text come through: typed in JSON, as text in binary mode."""
    body = spelled(**members)
    (structured,) = read(body)
    assert structured.get_attributes() == json.loads(body)
    (batched,) = read(b"[" + body + b"]", BATCH)
    assert batched.get_attributes() == json.loads(body)
    headers, sent = _binary(body)
    (binary,) = verify(headers, sent, None)
    assert binary.get_attributes() == {name: string_form(value) for name, value in json.loads(body).items()}


def _binary(body: bytes) -> tuple[dict[str, str], bytes]:
    from poller.delivery.cloudevent import RequestForm  # noqa: PLC0415 -- used here alone

    sent = RequestForm("binary", signer=None, user_agent="p").request([pair(body)], timestamp=1)
    return dict(sent.headers), sent.body


def test_data_keeps_its_bytes() -> None:
    """Integers stay exact in the decoded data; every digit and escape of the data is in its raw bytes."""
    (structured,) = read(b'{ "specversion":"1.0","id":"1","source":"s","type":"t", "data" : ' + LARGE + b" }\n")
    (batched,) = read(b'[ {"data":' + LARGE + b',"specversion":"1.0","id":"1","source":"s","type":"t"} ]', BATCH)
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t"}
    (binary,) = read(LARGE, "application/vnd.x+json; charset=utf-8", **headers)
    for found in (structured, batched, binary):
        assert found.raw_data == LARGE
        assert found.get_data()["n"] == 123456789012345678901234567890
        assert found.get_data()["f"] == 0.1
        assert found.get_data()["s"] == "café"


@pytest.mark.parametrize(
    ("members", "data", "raw"),
    [
        ({}, None, None),
        ({"data": None}, None, b"null"),
        ({"data": [1, 2]}, [1, 2], b"[1, 2]"),
        ({"data": "text"}, "text", b'"text"'),
        ({"data": "text é", "datacontenttype": "text/plain"}, "text é", "text é".encode()),
        ({"data_base64": "AP8="}, b"\x00\xff", b"\x00\xff"),
        ({"data_base64": "AP8=", "data": None}, b"\x00\xff", b"\x00\xff"),
    ],
)
def test_data_of_every_kind(members: dict[str, Any], data: object, raw: bytes | None) -> None:
    """JSON, text and bytes are decoded as the event says; the raw bytes are those of the data's own type."""
    (found,) = read(spelled(**members))
    assert (found.get_data(), found.raw_data) == (data, raw)


@pytest.mark.parametrize(
    ("content_type", "body", "data"),
    [
        ("text/plain", "é".encode(), "é"),
        ("text/plain; charset=latin-1", b"\xe9", "é"),
        ("text/plain", b"\xe9", b"\xe9"),
        ("text/plain; charset=nonsense", b"x", b"x"),
        ("application/octet-stream", b"text", b"text"),
        ("", b"text", b"text"),
        ("application/json", b"", None),
        ("application/json", b" [1] ", [1]),
    ],
)
def test_data_of_binary_mode(content_type: str, body: bytes, data: object) -> None:
    """In binary mode the type decides; text that its charset does not decode stays bytes. Its JSON reads the same."""
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t"}
    (found,) = read(body, content_type, **headers)
    assert (found.get_data(), found.raw_data) == (data, body or None)
    (again,) = read(found.to_json())
    assert (again.get_data(), again.get_attributes()) == (data, found.get_attributes())


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("plain", "plain"),
        ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        ("%e2%82%ac", "€"),
        ("%2520", "%20"),
        ("100%", "100%"),
        ('"a \\"b\\" %41"', 'a "b" A'),
        ('"', '"'),
        ("caf\xc3\xa9", "café"),
    ],
)
def test_escapes_of_headers(header: str, text: str) -> None:
    """Quoted strings are unquoted, then percent escapes resolved once, of lower or upper case."""
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "CE-Subject": header}
    (found,) = read(b"{}", "application/json", **headers)
    assert found.get_subject() == text


@pytest.mark.parametrize("header", ["%C0%A0", "%FF", "caf\xe9", "€"])
def test_a_header_that_is_no_utf8_is_refused(header: str) -> None:
    """Escapes that are no UTF-8 are refused, as the specification demands."""
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-subject": header}
    with pytest.raises(ContentRefused, match="UTF-8"):
        read(b"{}", "application/json", **headers)


def test_nothing_is_invented() -> None:
    """An event without a time has none; the SDK would give it the present one."""
    (found,) = read(event("a"))
    assert found.get_time() is None
    assert "time" not in found.get_attributes()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2025-03-01T12:00:00Z", datetime(2025, 3, 1, 12, tzinfo=UTC)),
        ("2025-03-01t14:00:00.125+02:00", datetime(2025, 3, 1, 12, 0, 0, 125_000, UTC)),
        ("2025-03-01 12:00:00.1234567899z", datetime(2025, 3, 1, 12, 0, 0, 123_456, UTC)),
        ("2016-12-31T23:59:60Z", datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_moments(text: str, moment: datetime) -> None:
    """Every moment of RFC 3339 is read, to the microsecond; a leap second is the second before it."""
    (found,) = read(event("a", time=text))
    assert found.get_time() == moment


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/cloudevents+json", None),
        ("Application/CloudEvents+JSON; charset=UTF-8", None),
        ('application/cloudevents+json;charset="utf-8"', None),
        ("application/cloudevents+json; charset=utf-16", 415),
        ("application/cloudevents+avro", 415),
        ("application/cloudevents", 415),
        ("application/json", 415),
        ("", 415),
    ],
)
def test_formats(content_type: str, status: int | None) -> None:
    """Structured and batch mode are known by their media type alone, whatever its case and parameters."""
    if status is None:
        assert read(event("a"), content_type)
        return
    with pytest.raises(ContentRefused) as refused:
        read(event("a"), content_type)
    assert refused.value.status == status


SECRETIVE = "a value"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (STRUCTURED, b""),
        (STRUCTURED, b"[]"),
        (STRUCTURED, b'"a value"'),
        (STRUCTURED, event("a") + b"x"),
        (STRUCTURED, event("a") + event("b")),
        (STRUCTURED, event("a")[:-1]),
        (STRUCTURED, b"\xff"),
        (STRUCTURED, b"\xef\xbb\xbf" + event("a")),
        (STRUCTURED, event("a").replace(b'"1.0"', b'"0.3"')),
        (STRUCTURED, event("a")[:-1] + b', "id": "a value"}'),
        (STRUCTURED, event("a")[:-1] + b', "data": NaN}'),
        (STRUCTURED, event("a")[:-1] + b', "data": ' + b"9" * 5000 + b"}"),
        (STRUCTURED, event("a")[:-1] + b', "data": ' + b"[" * 100_000 + b"}"),
        (STRUCTURED, event("a")[:-1] + b', "subject": "\\ud800"}'),
        (STRUCTURED, b'{"specversion":"1.0","id":"1","source":"s"}'),
        (STRUCTURED, spelled(id="")),
        (STRUCTURED, spelled(id=7)),
        (STRUCTURED, spelled(source=None)),
        (STRUCTURED, spelled(subject="")),
        (STRUCTURED, spelled(Name="a value")),
        (STRUCTURED, spelled(extra={"a": "a value"})),
        (STRUCTURED, spelled(extra=1.5)),
        (STRUCTURED, spelled(time="a value")),
        (STRUCTURED, spelled(time="2025-13-01T12:00:00Z")),
        (STRUCTURED, spelled(time="2025-03-01T12:00:00")),
        (STRUCTURED, spelled(data=1, data_base64="AP8=")),
        (STRUCTURED, spelled(data_base64="a value")),
        (STRUCTURED, spelled(data_base64=7)),
        (BATCH, event("a")),
        (BATCH, b"["),
        (BATCH, b"[" + event("a")),
        (BATCH, b"[" + event("a") + b",]"),
        (BATCH, b"[" + event("a") + b" " + event("b") + b"]"),
        (BATCH, b'["a value"]'),
        (BATCH, b"[" + event("a") + b", " + spelled(id="") + b"]"),
        (BATCH, b"[[" + event("a") + b"]]"),
    ],
)
def test_what_is_no_event_is_refused(content_type: str, body: bytes) -> None:
    """Content that is no CloudEvent 1.0 is refused as a whole with 400, without a value of it in the reason."""
    with pytest.raises(ContentRefused) as refused:
        read(body, content_type)
    assert refused.value.status == 400
    assert SECRETIVE not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "headers",
    [
        {"ce-id": "1", "ce-source": "s", "ce-type": "t"},
        {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s"},
        {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-data": "x"},
        {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-datacontenttype": "text/plain"},
        {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-a-b": "x"},
    ],
)
def test_headers_that_are_no_event_are_refused(headers: dict[str, str]) -> None:
    """In binary mode a missing or reserved attribute is refused, and JSON that is none."""
    with pytest.raises(ContentRefused) as refused:
        read(b"{}", "application/json", **headers)
    assert refused.value.status == 400
    good = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t"}
    with pytest.raises(ContentRefused, match="no JSON"):
        read(b"{", "application/json", **good)
    with pytest.raises(ContentRefused, match="twice"):
        verify([*good.items(), ("CE-ID", "2")], b"", None)
    with pytest.raises(ContentRefused, match="twice"):
        verify([("content-type", STRUCTURED), ("Content-Type", STRUCTURED)], event("a"), None)


def test_a_batch_has_a_limit_and_may_be_empty() -> None:
    """A batch above the limit is refused with 413; an empty one is valid and has no events."""
    body = b"[" + b", ".join([event(str(number)) for number in range(3)]) + b"]"
    assert [found.get_id() for found in read(body, BATCH)] == ["0", "1", "2"]
    with pytest.raises(ContentRefused, match="more than 2") as refused:
        verify({"content-type": BATCH}, body, None, max_events=2)
    assert refused.value.status == 413
    assert read(b" [ ] ", BATCH) == []


def test_an_event_can_be_handed_to_another_process() -> None:
    """A pickled event, as queues of tasks make it, is the same with its raw data."""
    (found,) = read(event("a", data={"x": 1}))
    again = pickle.loads(pickle.dumps(found))  # noqa: S301 -- its own
    assert (again.get_attributes(), again.get_data()) == (found.get_attributes(), found.get_data())
    assert (again.raw_data, again.to_json()) == (found.raw_data, found.to_json())
