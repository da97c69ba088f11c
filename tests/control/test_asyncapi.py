"""The AsyncAPI document."""

from __future__ import annotations

import ast
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # ships no types

import poller
from poller.config.load import load
from poller.control import subscriptions as sampling
from poller.control.asyncapi import EXAMPLE, asyncapi, schemas_of
from poller.delivery.operational_events import OperationalEvent, OperationType, announcement_bytes
from poller.store.keys import operations_key


def resolved(document: dict[str, Any], reference: str) -> Any:
    value: Any = document
    for part in reference.removeprefix("#/").split("/"):
        value = value[part]
    return value


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for one in value.values() for found in references(one)]
    return [found for one in value for found in references(one)] if isinstance(value, list) else []


def test_structure() -> None:
    """Each feed and the operations have a channel whose address gives the stream's key; every reference resolves."""
    document = asyncapi(load(None, EXAMPLE))
    assert document["asyncapi"] == "3.0.0"
    assert len(document["channels"]) == len(document["operations"]) == 5
    for name, channel in document["channels"].items():
        address = channel["address"].replace("{feed}", channel["parameters"]["feed"]["default"])
        assert address == channel["x-redis-key"]
        assert len(channel["messages"]) == 3 or name == "operations"
        sent = document["operations"][f"publish.{name}"]["messages"]
        assert {one["$ref"].rpartition("/")[2] for one in sent} == set(channel["messages"])
    assert document["channels"]["operations"]["x-redis-key"] == operations_key("poller")
    assert all(resolved(document, reference) for reference in references(document))


def written_types() -> set[str]:
    """Each type of an operational event in the program's code, except in its documentation."""
    found = set()
    for path in Path(poller.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"^poller\.\w+\.\w+\.v1$", node.value))
    return found


def test_every_operational_event_is_a_message() -> None:
    """Each type in the code is a message of the operations stream, except the sample that only sinks get."""
    document = asyncapi(load(None, EXAMPLE))
    messages = set(document["channels"]["operations"]["messages"])
    assert {"poller.feed.paused.v1", "poller.feed.resumed.v1"} < messages
    assert messages == written_types() - {sampling.TYPE}
    assert messages <= document["components"]["messages"].keys()


@pytest.mark.parametrize("kind", OperationType)
def test_operational_events_are_valid(kind: OperationType) -> None:
    """Each operational event is valid by the schema of its type, and by no other."""
    told = OperationalEvent(kind, "acme/x", datetime(2026, 3, 2, tzinfo=UTC), "why", {"count": 3, "sink": None})
    event = json.loads(announcement_bytes(told))
    schemas = asyncapi(load(None, EXAMPLE))["components"]["schemas"]
    fits = [name for name in OperationType if Draft202012Validator(schemas[name]).is_valid(event)]
    assert fits == [kind]


def test_no_secret() -> None:
    """The document does not show the password of the store's URL."""
    document = asyncapi(load(None, {**EXAMPLE, "REDIS_URL": "rediss://me:pass-word@db.example:6379/1"}))
    assert document["servers"]["redis"]["host"] == "db.example:6379"
    assert "pass-word" not in json.dumps(document)


def test_schemas_are_schemas() -> None:
    """Every event schema is valid JSON Schema 2020-12."""
    schemas = schemas_of(load(None, EXAMPLE))
    assert len(schemas) == 12
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
