"""JSON Schemas of events: CloudEvents attributes, ``data``, and the API's records.

**Invariants**

- Every event that this program publishes is valid under the schema of its type. The reference leaves open which
  fields a record has, which may be null and how some are written, so known fields are described and only the id is
  required.
- The keywords used mean the same in JSON Schema 2020-12 and in draft 7, which AsyncAPI builds on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from poller.changes.diff import ChangeKind
from poller.changes.events import Cause

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

_UUID: Final[Schema] = {"description": "A UUID."}
_TEXT: Final[Schema] = {"description": "Text."}
_DATE: Final[Schema] = {"description": "A calendar date, YYYY-MM-DD."}
_TIME: Final[Schema] = {"description": "A moment; how it is written is the API's choice."}
_INTERVAL: Final[Schema] = {"description": "An object."}
_STAMPS: Final = {"createdAt": _TIME, "lastModifiedAt": _TIME}
_EXTERNAL: Final = {"externalCode": _TEXT, "externalId": _TEXT}

FIELDS: Final[dict[str, dict[str, Schema]]] = {
    "evidenceVariant": {"qualificationID": _UUID, "code": _TEXT, "name": _TEXT, **_EXTERNAL, "interval": _INTERVAL}
    | _STAMPS,
    "employmentUnavailability": {"employmentID": _UUID, "reason": _TEXT, "interval": _INTERVAL} | _STAMPS,
    "contractType": {"code": _TEXT, "name": _TEXT, **_EXTERNAL} | _STAMPS,
    "achievement": {
        **dict.fromkeys(
            ("qualificationID", "evidenceVariantID", "employmentID", "submittedByID", "approvedByID"), _UUID
        ),
        **dict.fromkeys(("issueDate", "expirationDate", "overriddenExpirationDate"), _DATE),
        "remark": _TEXT,
        "scoreOrder": {"description": "An integer."},
        "isAutoAchieved": {"description": "true or false."},
        "documents": {"description": "A list of objects with contentType and filename."},
        **_EXTERNAL,
    }
    | _STAMPS,
}
"""What the reference says of each kind of record, by its type name, but for the id."""

_ATTRIBUTES: Final[dict[str, Schema]] = {
    "specversion": {"const": "1.0"},
    "id": {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "The same change has the same id, for ever."},
    "source": {"type": "string", "format": "uri-reference", "minLength": 1, "description": "The listing's URL."},
    "subject": {"type": "string", "minLength": 1, "description": "The record's id as received."},
    "time": {
        "type": "string",
        "format": "date-time",
        "description": "The record's lastModifiedAt where that is RFC 3339, else recordedtime.",
    },
    "recordedtime": {"type": "string", "format": "date-time", "description": "When the daemon saw it."},
    "sequence": {
        "type": "string",
        "pattern": "^[0-9]{20}$",
        "description": "Rises by one with each event of a feed, no gaps.",
    },
    "partitionkey": {"type": "string", "minLength": 1, "description": "As subject."},
    "datacontenttype": {"const": "application/json"},
}
_OPTIONAL: Final[dict[str, Schema]] = {
    "traceparent": {
        "type": "string",
        "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$",
        "description": "The round that found it, where rounds are traced: CloudEvents' distributed tracing.",
    },
    "tracestate": {"type": "string", "minLength": 1, "description": "Goes with traceparent."},
}
_REVISION: Final[Schema] = {"type": "integer", "minimum": 1, "description": "1, 2, 3 … for each record."}
_CAUSE: Final[Schema] = {"enum": [cause.value for cause in Cause], "description": "The kind of reading that found it."}
_CHANGED: Final[Schema] = {
    "type": "array",
    "items": {"type": "string", "pattern": "^(/.*)?$"},
    "minItems": 1,
    "uniqueItems": True,
    "description": "JSON pointers to what differs, sorted; arrays as a whole.",
}
_OMITTED: Final[Schema] = {
    "type": "array",
    "items": {"const": "previous"},
    "description": "What was left out because the event would be too large.",
}


def record_schema(type_name: str, *, id_field: str = "id") -> Schema:
    """A record of this kind; of an unknown kind, any object with an id."""
    fields = FIELDS.get(type_name)
    identity: Schema = {"type": ["string", "integer"]}
    return {"type": "object", "required": [id_field], "properties": {id_field: identity, **(fields or {})}}


def event_schema(type_stem: str, kind: ChangeKind, *, id_field: str = "id") -> Schema:
    """The schema of the events of one type, as structured CloudEvents JSON.

    Args:
        type_stem: the type without the kind of change, e.g. ``org.example.api.contractType``.
        kind: created, modified or removed.
        id_field: the field that holds the record's id.
    """
    event_type = f"{type_stem}.{kind}.v1"
    type_name = type_stem.rpartition(".")[2]
    attributes = {**_ATTRIBUTES, "type": {"const": event_type}}
    return {
        "title": event_type,
        "description": f"A record of the kind {type_name} was {kind}.",
        "type": "object",
        "required": [*attributes, "data"],
        "properties": {**attributes, **_OPTIONAL, "data": _data(record_schema(type_name, id_field=id_field), kind)},
    }


def event_schemas(stems: Iterable[tuple[str, str]]) -> dict[str, Schema]:
    """All schemas by event type, for each ``(type stem, id field)``."""
    return {
        f"{stem}.{kind}.v1": event_schema(stem, kind, id_field=id_field)
        for stem, id_field in dict.fromkeys(stems)
        for kind in ChangeKind
    }


def events_document(schemas: dict[str, Schema]) -> Schema:
    """One JSON Schema that an event of any of these types is valid under."""
    return {
        "$schema": DIALECT,
        "title": "Events of poller",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in schemas],
        "$defs": schemas,
    }


def _data(record: Schema, kind: ChangeKind) -> Schema:
    properties: dict[str, Schema] = {"revision": _REVISION, "cause": _CAUSE}
    required = ["revision", "cause"]
    if kind is not ChangeKind.REMOVED:
        properties["record"] = {**record, "description": "The record exactly as received."}
        required.append("record")
    if kind is not ChangeKind.CREATED:
        properties["previous"] = {**record, "description": "The record as last seen."}
        properties["omitted"] = _OMITTED
    if kind is ChangeKind.MODIFIED:
        properties["changed"] = _CHANGED
        required.append("changed")
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}
