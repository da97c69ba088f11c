"""Laws of request forms in :mod:`poller.delivery.cloudevent`, compared with the ``cloudevents`` SDK."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.cloudevent import BATCH_TYPE, STRUCTURED_TYPE, Mode, Request, RequestForm, header_text
from poller.delivery.signing import Signer, new_secret
from tests.changes.samples import FEW, OBJECTS
from tests.changes.samples import spelled as json_text
from tests.delivery.events import MEMBERS, entry, pair, spelled

SIGNER = Signer([new_secret(b"k" * 24)])
AT = 1_740_830_400
_FIELD = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


def request(mode: Mode, *written: bytes, **settings: Any) -> Request:
    form = RequestForm(mode, **{"signer": None, "user_agent": "poller/1"} | settings)
    return form.request([pair(one) for one in written], timestamp=AT)


def read(sent: Request) -> tuple[dict[str, Any], Any]:
    """Attributes and data as the SDK reads them."""
    headers = {name.lower(): value for name, value in sent.headers.items()}
    event = from_http_event(HTTPMessage(headers=headers, body=sent.body))
    attributes = event.get_attributes()
    return {**attributes, "time": str(attributes.get("time"))}, event.get_data()


def test_structured_is_the_entry_itself() -> None:
    """A structured request has the entry's bytes, content type and id, and no header of binary mode."""
    sent = request("structured", entry())
    assert sent.body == entry()
    assert sent.headers == {
        "User-Agent": "poller/1",
        "Content-Type": "application/cloudevents+json",
        "webhook-id": pair(entry())[0].id,
        "webhook-timestamp": str(AT),
    }


def test_binary_is_the_data_and_its_attributes() -> None:
    """A binary request has the data as its body, its type as Content-Type, and every other attribute as a header."""
    envelope, written = pair(entry())
    sent = request("binary", written)
    assert sent.body == bytes(envelope.data)
    assert sent.headers["Content-Type"] == "application/json"
    assert sent.headers["ce-specversion"] == "1.0"
    assert sent.headers["ce-cause"] == "delta"
    carried = {name for name in sent.headers if name.startswith("ce-")}
    assert carried == {f"ce-{name}" for name, _ in envelope.attributes() if name != "datacontenttype"}


@FEW
@given(OBJECTS, st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn")), min_size=1, max_size=9))
def test_the_sdk_reads_either_form_as_the_same_event(fields: dict[str, Any], key: str) -> None:
    """The SDK reads the same attributes and data from both forms of an event."""
    written = entry(json_text(fields), key=key)
    attributes, content = read(request("structured", written))
    assert read(request("binary", written)) == (attributes, content)
    assert attributes["subject"] == key
    assert content == json.loads(written)["data"]


def test_a_batch_is_an_array_of_the_entries_themselves() -> None:
    """A batch joins the entries' bytes; its id is a hash of their ids in order."""
    entries = [entry(key=key) for key in "ABC"]
    sent = request("batch", *entries)
    assert sent.body == b"[" + b",".join(entries) + b"]"
    assert json.loads(sent.body) == [json.loads(one) for one in entries]
    assert sent.headers["Content-Type"] == BATCH_TYPE == "application/cloudevents-batch+json"
    ids = {request("batch", *some).headers["webhook-id"] for some in (entries, entries[::-1], entries[:2], entries[:1])}
    assert len(ids) == 4
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)
    assert not any(name.startswith("ce-") for name in sent.headers)


def test_ids_of_a_batch_do_not_run_together() -> None:
    """Batches of different event ids have different ids, whatever characters the event ids contain."""
    lists = [("a", "b"), ("ab",), ('a","b',), ("a,b",), ("b", "a")]
    sent = [request("batch", *(spelled(id=one) for one in ids)).headers["webhook-id"] for ids in lists]
    assert len(set(sent)) == len(lists)


@pytest.mark.parametrize("mode", ["structured", "binary", "batch"])
def test_an_attempt_changes_timestamp_and_signature_alone(mode: Mode) -> None:
    """Between attempts only timestamp and signature change."""
    form = RequestForm(mode, signer=SIGNER, user_agent="poller/1")
    first, second = (form.request([pair(entry())], timestamp=at) for at in (AT, AT + 1))
    assert first.body == second.body
    changed = {name for name in first.headers if first.headers[name] != second.headers[name]}
    assert changed == {"webhook-timestamp", "webhook-signature"}
    assert (
        first.headers["webhook-signature"]
        == SIGNER.headers(first.headers["webhook-id"], AT, first.body)["webhook-signature"]
    )


def test_the_subscriptions_headers_come_along() -> None:
    """A subscription's headers are sent and may replace User-Agent; the origin is sent if it was granted."""
    sent = request("structured", entry(), headers={"user-agent": "mine", "X-Team": "a b"}, origin="poller.example.org")
    assert sent.headers["user-agent"] == "mine"
    assert "User-Agent" not in sent.headers
    assert sent.headers["X-Team"] == "a b"
    assert sent.headers["WebHook-Request-Origin"] == "poller.example.org"


@given(MEMBERS | st.builds(lambda text: {"shard": text}, st.text()))
def test_no_text_of_an_event_breaks_out_of_its_header(members: dict[str, Any]) -> None:
    """Every value of an event is one header field, and decodes to itself."""
    sent = request("binary", spelled(**members, data=1))
    for name, value in pair(spelled(**members))[0].attributes():
        assert unquote(sent.headers[f"ce-{name}"]) == value
    assert all(_FIELD.fullmatch(value) or not value for value in sent.headers.values())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain/~!#$&'()*+,-.:;<=>?@[\\]^_`{|}", "plain/~!#$&'()*+,-.:;<=>?@[\\]^_`{|}"),
        ('a "b"', "a%20%22b%22"),
        ("100%", "100%25"),
        ("€", "%E2%82%AC"),
        ("\U0001f600", "%F0%9F%98%80"),
        ("a\r\nb\x7f", "a%0D%0Ab%7F"),
    ],
)
def test_what_is_percent_encoded(value: str, text: str) -> None:
    """Only space, quotation mark, percent sign and characters outside U+0021 to U+007E are percent-encoded."""
    assert header_text(value) == text


@pytest.mark.parametrize("webhook_id", ["a.b", "a b", "a\nb: c", "é", "x" * 129])
def test_an_id_that_no_header_can_hold_is_hashed(webhook_id: str) -> None:
    """An id that a header cannot hold, or that has a dot, is hashed; the same id always has the same hash."""
    first, second = (request("structured", spelled(id=webhook_id)).headers["webhook-id"] for _ in range(2))
    assert first == second
    assert re.fullmatch("[0-9a-f]{32}", first)


@pytest.mark.parametrize(
    ("members", "content_type", "body"),
    [
        ({"data": {"a": 1}}, "application/json", b'{"a": 1}'),
        ({"data": "x"}, "application/json", b'"x"'),
        ({"data": "x", "datacontenttype": "application/problem+json; v=1"}, "application/problem+json; v=1", b'"x"'),
        ({"data": "xé", "datacontenttype": "text/plain"}, "text/plain", "xé".encode()),
        ({"data": {"a": 1}, "datacontenttype": "text/plain"}, "text/plain", b'{"a": 1}'),
        ({"data_base64": "AP8=", "datacontenttype": "image/png"}, "image/png", b"\0\xff"),
        ({"data_base64": "IngiIA==", "datacontenttype": "text/plain"}, "text/plain", b'"x" '),
        ({"data_base64": "AP8="}, None, b"\0\xff"),
        ({}, None, b""),
    ],
)
def test_the_body_of_binary_mode_is_what_the_type_says(
    members: dict[str, Any], content_type: str | None, body: bytes
) -> None:
    """The body of binary mode is the data: JSON as spelled, text as text, bytes as bytes."""
    sent = request("binary", spelled(**members))
    assert (sent.headers.get("Content-Type"), sent.body) == (content_type, body)


@pytest.mark.parametrize(
    "content_type", ["a\r\nX: y", "é", " a", "", STRUCTURED_TYPE, "Application/CloudEvents-batch+json"]
)
def test_a_type_that_cannot_be_told_is_refused_in_binary_mode(content_type: str) -> None:
    """A content type that is no header value, or that of another mode, is refused in binary mode."""
    written = spelled(data=1, datacontenttype=content_type)
    if content_type:
        with pytest.raises(ValueError, match="datacontenttype"):
            request("binary", written)
    assert request("structured", written).headers["Content-Type"] == STRUCTURED_TYPE


@pytest.mark.parametrize(("mode", "number"), [("structured", 0), ("structured", 2), ("binary", 2), ("batch", 0)])
def test_the_number_of_events_fits_the_mode(mode: Mode, number: int) -> None:
    """A number of events that the mode cannot carry is an error."""
    with pytest.raises(ValueError, match="events in one request"):
        request(mode, *[entry()] * number)
