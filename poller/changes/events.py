"""Events of changes: structured CloudEvents JSON (CloudEvents 1.0.2), and the JSON Schemas of each event type.

**Invariants**

- The same change always has the same ``id``: a hash of feed, generation, record key, revision and canonical content.
  It does not depend on when, by whom or in which mode the change was found. The content alone would repeat when a value
  goes A, B, A; the revision alone would repeat after a failover that rolled it back.
- A backfilled event has an id of its own, which is the same whenever the same revision is backfilled.
- The record is embedded as the bytes that were received: large integers, floats and key order are unchanged.
- JSON is written by hand here, on the hot path; the tests read every event back with the ``cloudevents`` SDK.
- Every event that this program publishes is valid under the schema of its type. The API's reference leaves open which
  fields a record has, which may be null and how some are written, so known fields are described and only the id is
  required.
- The schema keywords used mean the same in JSON Schema 2020-12 and in draft 7, which AsyncAPI builds on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, Final

import msgspec

from poller.changes.diff import Change, ChangeKind
from poller.changes.layouts import AlikeRecords
from poller.changes.records import Record
from poller.resources import RESOURCES

# Receivers must accept events of 64 KiB. A larger event leaves out the previous version, and says so.
MAX_EVENT_BYTES: Final = 64 * 1024

_quoted: Final = msgspec.json.Encoder().encode
_number: Final = b"%020d".__mod__
_LAST_DIGITS: Final = tuple(b"%03d" % number for number in range(1000))
_FIRST_REVISION: Final = f"\0{1}\0".encode()  # as it stands in what an id is made of
_lines: Final = msgspec.json.Encoder().encode_lines


class Cause(StrEnum):
    """Why there is an event: the kind of reading that found a change, or a backfill."""

    BASELINE = "baseline"
    DELTA = "delta"
    FULL = "full"
    RECONCILE = "reconcile"
    RESYNC = "resync"
    BACKFILL = "backfill"


class EventFrame:
    """The constant parts of all events of one listing."""

    def __init__(
        self,
        *,
        feed: str,
        generation: str,
        source: str,
        type_stem: str,
        cause: Cause,
        extensions: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Encode the constants of a listing.

        Args:
            feed: ``SOURCE/NAME``.
            generation: drawn once when the feed's state was created.
            source: the CloudEvents source, a URI reference.
            type_stem: the type without the kind of change, e.g. ``org.example.api.contractType``.
            cause: the kind of reading, or a backfill.
            extensions: further attributes of each event, such as its trace; no part of the id.
        """
        self._origin = blake2b(f"{feed}\0{generation}\0".encode(), digest_size=16)
        if cause is Cause.BACKFILL:  # no id of a change begins like this: its canonical form is no number
            self._origin.update(b"backfill\0")
        self._source = b'","source":' + _quoted(source) + b',"type":"'
        self._types = {kind: _quoted(f"{type_stem}.{kind}.v1")[1:-1] + b'","subject":' for kind in ChangeKind}
        self._cause = b',"cause":"' + cause.encode() + b'"}}'
        named = {"cause": str(cause), **extensions}
        self._extensions = b"".join(b',"%b":%b' % (name.encode(), _quoted(text)) for name, text in named.items())
        self._heads: dict[ChangeKind, tuple[str, tuple[bytes, ...]]] = {}

    def event_id(self, change: Change) -> str:
        """The event's id: 32 lower-case hex digits; see the invariants of this module."""
        # No part holds a NUL (keys have none), so the parts cannot run into each other.
        digest = self._origin.copy()
        digest.update(f"{change.key}\0{change.revision}\0".encode() + change.canonical)
        return digest.hexdigest()

    def encode(self, change: Change, *, event_id: str, sequence: int, recorded: str) -> bytes:
        """The event as UTF-8 JSON.

        Args:
            change: of the record.
            event_id: from :meth:`event_id`.
            sequence: the feed's running number of this event, from 1.
            recorded: when the daemon read the record, from :func:`~poller.clock.rfc3339`.
        """
        subject, time = _quoted(change.subject), (change.modified or recorded).encode()
        values = (event_id.encode(), subject, time, _number(sequence), subject, b"")
        head = b"".join(chain.from_iterable(zip(self._texts(change.kind, recorded), values, strict=True)))
        return head + self._content(change, room=MAX_EVENT_BYTES - len(head))

    def created(
        self, records: Sequence[Record], forms: Iterable[bytes], *, sequence: int, recorded: str
    ) -> tuple[list[str], list[bytes]]:
        """The ids and the events of new records, as :meth:`event_id` and :meth:`encode` give them of each.

        They are made in less than half of the time.

        Args:
            records: none of which was known before.
            forms: what counts of each, in canonical form.
            sequence: the number of the first event.
            recorded: as for :meth:`encode`.
        """
        keyed = [record.key.encode() + _FIRST_REVISION + form for record, form in zip(records, forms, strict=True)]
        subjects = _lines([record.subject for record in records]).splitlines()
        return self._created(records, keyed, subjects, sequence=sequence, recorded=recorded)

    def created_alike(
        self, records: Sequence[Record], alike: AlikeRecords, *, sequence: int, recorded: str
    ) -> tuple[list[str], list[bytes]]:
        """As :meth:`created`, of records by columns; in two thirds of the time."""
        subjects = (b'"%b"' % b'"\n"'.join(alike.keys)).split(b"\n")
        return self._created(
            records, alike.keyed_forms(_FIRST_REVISION), subjects, sequence=sequence, recorded=recorded
        )

    def _created(
        self,
        records: Sequence[Record],
        keyed: Iterable[bytes],
        subjects: Sequence[bytes],
        *,
        sequence: int,
        recorded: str,
    ) -> tuple[list[str], list[bytes]]:
        """The ids and the events of new records.

        Args:
            records: none of which was known before.
            keyed: what the id of each is a hash of.
            subjects: of each, as JSON.
            sequence: the number of the first event.
            recorded: as for :meth:`encode`.
        """
        ids, copy = list[str](), self._origin.copy
        for one in keyed:
            digest = copy()
            digest.update(one)
            ids.append(digest.hexdigest())
        times = [(record.modified or recorded).encode() for record in records]
        numbers = _numbers(sequence, len(records))
        columns = (map(str.encode, ids), subjects, times, numbers, subjects, [record.raw for record in records])
        *heads, data = self._texts(ChangeKind.CREATED, recorded)
        texts = map(repeat, (*heads, data + b'{"record":'))
        parts = chain.from_iterable(zip(texts, columns, strict=True))
        return ids, list(map(b"".join, zip(*parts, repeat(b',"revision":1' + self._cause), strict=False)))

    def _texts(self, kind: ChangeKind, recorded: str) -> tuple[bytes, ...]:
        """What stands before an event's id, subject, time, number, the subject once more, and its data."""
        known, texts = self._heads.get(kind, ("", ()))
        if known != recorded:
            texts = (
                b'{"specversion":"1.0","id":"',
                self._source + self._types[kind],
                b',"time":"',
                b'","recordedtime":"%b","sequence":"' % recorded.encode(),
                b'","partitionkey":',
                self._extensions + b',"datacontenttype":"application/json","data":',
            )
            self._heads[kind] = recorded, texts
        return texts

    def _content(self, change: Change, *, room: int) -> bytes:
        if change.kind is ChangeKind.CREATED and change.raw is not None and change.previous is None:
            return b'{"record":%b,"revision":%d%b' % (change.raw, change.revision, self._cause)
        end = b',"revision":%d' % change.revision + self._cause
        if change.changed:
            end = b',"changed":' + _quoted(change.changed) + end
        record = b'"record":' + change.raw if change.raw is not None else b""
        previous = (b"," if record else b"") + b'"previous":' + (change.previous or b"")
        if change.previous is None or len(record) + len(previous) + len(end) + 1 > room:
            previous = (b"," if record else b"") + b'"omitted":["previous"]'
        return b"{" + record + previous + end


def _numbers(first: int, count: int) -> list[bytes]:
    """Consecutive numbers of events, as they are written: those of a thousand share all but their last digits."""
    numbers: list[bytes] = []
    while len(numbers) < count:
        thousands, at = divmod(first + len(numbers), 1000)
        numbers += map((b"%017d" % thousands).__add__, _LAST_DIGITS[at : at + count - len(numbers)])
    return numbers


DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

FIELDS: Final[Mapping[str, Mapping[str, Schema]]] = {
    resource.type_name: {name: {"description": text} for name, text in resource.fields.items()}
    for resource in RESOURCES.values()
}
"""What the reference says of each kind of record, by its type name, but for the id."""

_ATTRIBUTES: Final[dict[str, Schema]] = {
    "specversion": {"const": "1.0"},
    "id": {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "The same change always has the same id."},
    "source": {"type": "string", "format": "uri-reference", "minLength": 1, "description": "The listing's URL."},
    "subject": {"type": "string", "minLength": 1, "description": "The record's id as received."},
    "time": {
        "type": "string",
        "format": "date-time",
        "description": "The record's lastModifiedAt where that is RFC 3339, else recordedtime.",
    },
    "recordedtime": {"type": "string", "format": "date-time", "description": "When the daemon read the record."},
    "sequence": {
        "type": "string",
        "pattern": "^[0-9]{20}$",
        "description": "Rises by one with each event of a feed, no gaps.",
    },
    "partitionkey": {"type": "string", "minLength": 1, "description": "As subject."},
    "datacontenttype": {"const": "application/json"},
}
_CAUSE: Final[Schema] = {
    "enum": [cause.value for cause in Cause],
    "description": "The kind of round that found it; backfill: the record as it is known.",
}
_OPTIONAL: Final[dict[str, Schema]] = {
    "cause": _CAUSE | {"description": "As data.cause; events of earlier versions do not have it."},
    "traceparent": {
        "type": "string",
        "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$",
        "description": "The round that found the change, if rounds are traced: CloudEvents' distributed tracing.",
    },
    "tracestate": {"type": "string", "minLength": 1, "description": "Goes with traceparent."},
}
_REVISION: Final[Schema] = {"type": "integer", "minimum": 1, "description": "1, 2, 3 … for each record."}
_NEVER_PUBLISHED: Final[Schema] = {
    "minimum": 0,
    "description": "1, 2, 3 … for each record; 0: a backfilled record of a silent first reading.",
}
_CHANGED: Final[Schema] = {
    "type": "array",
    "items": {"type": "string", "pattern": "^(/.*)?$"},
    "minItems": 1,
    "uniqueItems": True,
    "description": "JSON pointers to the fields that differ, sorted; arrays as a whole.",
}
_OMITTED: Final[Schema] = {
    "type": "array",
    "items": {"const": "previous"},
    "description": "Members left out because the event would be too large.",
}


def record_schema(type_name: str, *, id_field: str = "id") -> Schema:
    """The schema of a record; of an unknown type: any object with an id."""
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
    if kind is ChangeKind.CREATED:
        properties["revision"] = _REVISION | _NEVER_PUBLISHED
    else:
        properties["previous"] = {**record, "description": "The record as last seen."}
        properties["omitted"] = _OMITTED
    if kind is ChangeKind.MODIFIED:
        properties["changed"] = _CHANGED
        required.append("changed")
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}
