"""The AsyncAPI document."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # ships no types

from poller.config.load import load
from poller.service.asyncapi import EXAMPLE, asyncapi, schemas_of


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
    """A channel for each feed whose address gives the stream's key, three messages each, no dangling reference."""
    document = asyncapi(load(None, EXAMPLE))
    assert document["asyncapi"] == "3.0.0"
    assert len(document["channels"]) == len(document["operations"]) == 4
    for channel in document["channels"].values():
        address = channel["address"].replace("{feed}", channel["parameters"]["feed"]["default"])
        assert address == channel["x-redis-key"]
        assert len(channel["messages"]) == 3
    assert all(resolved(document, reference) for reference in references(document))


def test_no_secret() -> None:
    """The password of the store's URL is not shown."""
    document = asyncapi(load(None, {**EXAMPLE, "REDIS_URL": "rediss://me:pass-word@db.example:6379/1"}))
    assert document["servers"]["redis"]["host"] == "db.example:6379"
    assert "pass-word" not in json.dumps(document)


def test_schemas_are_schemas() -> None:
    """Every event schema is valid JSON Schema 2020-12."""
    schemas = schemas_of(load(None, EXAMPLE))
    assert len(schemas) == 12
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
