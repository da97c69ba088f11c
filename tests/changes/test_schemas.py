"""The schemas of events: every published event is valid, and what the daemon itself writes is constrained."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # ships no types

from poller.changes.diff import ChangeKind
from poller.changes.events import FIELDS, event_schema
from tests.changes.samples import FEW, TREES, spelled

EVENT: dict[str, Any] = {
    "specversion": "1.0",
    "id": "0" * 32,
    "source": "https://api.example.org/v1/contractTypes",
    "type": "org.example.contractType.created.v1",
    "subject": "1",
    "time": "2026-03-02T08:15:00.000Z",
    "recordedtime": "2026-03-02T08:15:00.000Z",
    "sequence": "0" * 20,
    "partitionkey": "1",
    "cause": "delta",
    "datacontenttype": "application/json",
    "data": {"record": {"id": "1"}, "revision": 1, "cause": "delta"},
}


def event_of(type_name: str, record: dict[str, Any]) -> dict[str, Any]:
    return {**EVENT, "type": f"org.example.{type_name}.created.v1", "data": {**EVENT["data"], "record": record}}


def schema_of(type_name: str) -> Draft202012Validator:
    return Draft202012Validator(event_schema(f"org.example.{type_name}", ChangeKind.CREATED))


@FEW
@given(data=st.data(), type_name=st.sampled_from(sorted(FIELDS)))
def test_whatever_a_record_holds(data: st.DataObject, type_name: str) -> None:
    """A record with any value in any of the known fields is valid."""
    fields = {name: data.draw(TREES) for name in FIELDS[type_name]}
    schema_of(type_name).validate(event_of(type_name, json.loads(spelled({**fields, "id": "1"}))))


def test_stamps_as_numbers() -> None:
    """A time may be a number or a text, because the API does not document which it sends."""
    schema_of("contractType").validate(event_of("contractType", {"id": "1", "createdAt": 1735689600}))


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("id", "1"), ("sequence", "1"), ("subject", ""), ("specversion", "0.3"), ("type", "x"), ("source", None)],
)
def test_attributes_are_held(key: str, wrong: object) -> None:
    """The schema constrains the attributes, which the daemon writes."""
    schema = schema_of("contractType")
    schema.validate(EVENT)
    assert not schema.is_valid({**EVENT, key: wrong})
    assert not schema.is_valid({name: value for name, value in EVENT.items() if name != key})


def test_events_of_earlier_versions_are_valid() -> None:
    """A stream holds events without the attribute ``cause``, and these are valid; a wrong cause is not."""
    schema = schema_of("contractType")
    schema.validate({name: value for name, value in EVENT.items() if name != "cause"})
    assert not schema.is_valid({**EVENT, "cause": "whim"})


@pytest.mark.parametrize(("key", "wrong"), [("revision", -1), ("cause", "whim"), ("record", {}), ("changed", [])])
def test_data_is_held(key: str, wrong: object) -> None:
    """The schema constrains revision and cause, requires an id in a record, and allows no ``changed`` in a creation."""
    assert not schema_of("contractType").is_valid({**EVENT, "data": {**EVENT["data"], key: wrong}})


def test_every_field_is_described() -> None:
    """The schema describes every field that the API reference names."""
    assert all(list(field) == ["description"] for fields in FIELDS.values() for field in fields.values())


@pytest.mark.parametrize(("wrong", "name"), [("00-1-2-01", "traceparent"), (1, "traceparent"), ("", "tracestate")])
def test_a_trace_may_be_there_and_is_held(wrong: object, name: str) -> None:
    """An event is valid with and without the round's trace; a trace must be spelled as W3C defines it."""
    carried = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03", "tracestate": "a=b"}
    schema = schema_of("contractType")
    schema.validate(EVENT)
    schema.validate({**EVENT, **carried})
    assert not schema.is_valid({**EVENT, **carried, name: wrong})
