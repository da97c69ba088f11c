"""The OpenAPI document of this service, and the routes of all documents.

**Invariants**

* The document describes every route, and no other.
* Schemas are generated from the types that are sent; only descriptions are written by hand.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from poller import __version__
from poller.auth.sink_credential import AccessTokenCredential, PlainCredential
from poller.changes.events import DIALECT, events_document
from poller.config.settings import Settings, config_schema
from poller.control.asyncapi import asyncapi, schemas_of
from poller.control.backfill import CancelledBackfills, RequestedBackfill
from poller.control.commands import CommandResult
from poller.control.erasure import ErasureResult
from poller.control.record_history import RecordEvent
from poller.control.status import FeedStatus
from poller.daemon.health import ReadinessReport
from poller.web.events import KIND, GapNotice, PositionNotice
from poller.web.http import JSON, MOST, PROBLEM, Endpoint, PauseRequest, ProblemDetails, RequestRefused, at
from poller.web.records import NDJSON, CurrentRecord, RecordPage, RemovedRecord
from poller.web.subscription_schema import CONFIG, SubscriptionObject, SubscriptionRequest
from poller.web.subscriptions import BackfillRequest

Schema = dict[str, Any]

_REF: Final = "#/components/schemas/"
_CREDENTIALS: Final = (AccessTokenCredential, PlainCredential)
_TYPES: Final = (
    *_CREDENTIALS,
    BackfillRequest,
    CancelledBackfills,
    CommandResult,
    CurrentRecord,
    FeedStatus,
    GapNotice,
    PauseRequest,
    PositionNotice,
    ProblemDetails,
    ReadinessReport,
    RecordEvent,
    RecordPage,
    RemovedRecord,
    RequestedBackfill,
    ErasureResult,
    SubscriptionObject,
    SubscriptionRequest,
)
_REFUSALS: Final = {
    400: "The request cannot be read.",
    401: "The token is missing or wrong.",
    403: "No token is configured, or this token does not permit it.",
    404: "There is none.",
    409: "The present state does not allow it.",
    410: "The cursor has lost its meaning: begin again with the first page.",
    413: "The body is too large.",
    415: "The body has another type.",
    422: "The request is invalid; errors says where.",
    429: "Too many wrong tokens.",
    500: "What is stored cannot be read.",
    503: "The store is unavailable, or there are too many readers.",
}
_OPTIONAL_BODIES: Final = {"BackfillRequest", "PauseRequest"}
_GUARDED: Final = (401, 403, 429, 503)
_SECURITY: Final[Schema] = {
    "read": {
        "type": "http",
        "scheme": "bearer",
        "description": "The read token. If none is set, requests to a loopback address need none.",
    },
    "admin": {"type": "http", "scheme": "bearer", "description": "The admin token: permits changes and reading."},
}
_READING: Final[list[Schema]] = [{"read": []}, {"admin": []}, {}]
_CHANGING: Final[list[Schema]] = [{"admin": []}]
_BODY: Final = (400, 413, 415, 422)


def openapi(feeds: Sequence[str], *, url: str | None = None) -> Schema:
    """The document.

    Args:
        feeds: all configured feeds, ``SOURCE/NAME``.
        url: the public URL of the service; None: unknown.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": "poller", "version": __version__, "description": _PROSE},
        "servers": [{"url": url or "/", "description": "This service."}],
        "paths": _identified(_paths(_named(feeds))),
        "components": {"schemas": _schemas(feeds), "securitySchemes": _SECURITY},
    }


_PROSE: Final = (
    "How the daemon does, its events, its subscriptions, and orders to it. Reading needs the read token or the admin "
    "token, but for a loopback address where no read token is set; what changes something needs the admin token."
)
_METRICS: Final = ("text/plain", "application/openmetrics-text")
_NAMED: Final = 100  # feeds that the document lists
_ID: Final[Schema] = {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,63}$"}
_TEXT: Final[Schema] = {"type": "string"}
_LIST: Final[Sequence[Schema]] = (
    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": MOST, "default": 100}},
    {"name": "after", "in": "query", "schema": _TEXT, "description": "The list begins after this name."},
)
_CURSOR: Final[Schema] = {
    "name": "cursor",
    "in": "query",
    "schema": _TEXT,
    "description": "Of the Link of the page before; none: the first page.",
}
_BEFORE: Final[Schema] = {
    "name": "before",
    "in": "query",
    "schema": {"type": "string", "pattern": "^(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})$"},
    "description": "The events before this entry of the stream; none: the latest.",
}
_KNOWN: Final[Schema] = {
    "name": "If-None-Match",
    "in": "header",
    "schema": _TEXT,
    "description": "Entity tags of what the client has.",
}
_RECORD: Final[Schema] = {
    "name": "record",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
    "description": "The record's id as received, percent-encoded.",
}
_ERASED: Final[Sequence[Schema]] = (
    {"name": "reason", "in": "query", "schema": _TEXT, "description": "Why, for the operational event."},
    {
        "name": "force",
        "in": "query",
        "schema": {"type": "boolean", "default": False},
        "description": "Do not ask the API: a record that is still there is published again.",
    },
)
_SUBSCRIPTION: Final = ({"name": "subscription", "in": "path", "required": True, "schema": _ID},)
_ANEW: Final[Schema] = {"name": "anew", "in": "query", "schema": {"type": "boolean", "default": False}}
_EVENTS: Final[Sequence[Schema]] = (
    {"name": "feed", "in": "query", "schema": {"type": "array", "items": _TEXT}, "description": "SOURCE/NAME."},
    {
        "name": "type",
        "in": "query",
        "schema": {"type": "array", "items": _TEXT},
        "description": "Types, patterns or kinds.",
    },
    {
        "name": "from",
        "in": "query",
        "schema": {"type": "string", "default": "now"},
        "description": "now, earliest, the id of a message, or the id of a stream's entry.",
    },
    {
        "name": "Last-Event-ID",
        "in": "header",
        "schema": _TEXT,
        "description": "The last message's id; overrides from.",
    },
)


_OPERATIONS: Final = {
    ("get", "/"): "getPage",
    ("get", "/livez"): "isAlive",
    ("get", "/readyz"): "isReady",
    ("get", "/metrics"): "getMetrics",
    ("get", "/feeds"): "listFeeds",
    ("get", "/feeds/{source}/{name}"): "getFeed",
    ("post", "/feeds/{source}/{name}/pause"): "pauseFeed",
    ("post", "/feeds/{source}/{name}/resume"): "resumeFeed",
    ("post", "/feeds/{source}/{name}/resync"): "resyncFeed",
    ("post", "/feeds/{source}/{name}/release"): "releaseFeed",
    ("get", "/feeds/{source}/{name}/records"): "listRecords",
    ("get", "/feeds/{source}/{name}/records/{record}"): "getRecord",
    ("delete", "/feeds/{source}/{name}/records/{record}"): "eraseRecord",
    ("get", "/feeds/{source}/{name}/records/{record}/history"): "getRecordHistory",
    ("get", "/subscriptions"): "listSubscriptions",
    ("post", "/subscriptions"): "addSubscription",
    ("get", "/subscriptions/{subscription}"): "getSubscription",
    ("put", "/subscriptions/{subscription}"): "replaceSubscription",
    ("delete", "/subscriptions/{subscription}"): "deleteSubscription",
    ("post", "/subscriptions/{subscription}/pause"): "pauseSubscription",
    ("post", "/subscriptions/{subscription}/resume"): "resumeSubscription",
    ("get", "/subscriptions/{subscription}/backfill"): "listBackfills",
    ("post", "/subscriptions/{subscription}/backfill"): "beginBackfills",
    ("delete", "/subscriptions/{subscription}/backfill"): "cancelBackfills",
    ("get", "/events"): "followEvents",
    ("get", "/asyncapi.json"): "getAsyncApi",
    ("get", "/openapi.json"): "getOpenApi",
    ("get", "/schemas"): "listSchemas",
    ("get", "/schemas/{name}.json"): "getSchema",
    ("get", "/webhooks/callback"): "grantEvents",
    ("post", "/webhooks/callback"): "grantEventsByPost",
}
"""The operation ids; other operations are named by method and path."""


def _paths(named: Sequence[Schema]) -> Schema:
    feed, one = "/feeds/{source}/{name}", "/subscriptions/{subscription}"
    changed = _answer(200, "SubscriptionObject")
    gone: Mapping[int, Schema] = {204: {"description": "It is gone."}}
    json, schemas = _document_responses(JSON), _document_responses("application/schema+json")
    described = _document_responses("application/vnd.oai.openapi+json")
    name: Schema = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
    return {
        "/": {"get": _reading("A page for people.", {200: _content("text/html", _TEXT)})},
        "/livez": {"get": _open("Whether this process runs.", {200: _content(JSON, {"type": "object"})})},
        "/readyz": {
            "get": _open(
                "Whether this process is ready.",
                _answer(200, "ReadinessReport") | _answer(503, "ReadinessReport"),
            )
        },
        "/metrics": {"get": _open("Metrics for Prometheus.", {200: _texts(*_METRICS)})},
        "/feeds": {"get": _reading("All feeds, by name.", _answer(200, "FeedStatus", many=True), 400, 503, has=_LIST)},
        feed: {"get": _reading("One feed.", _answer(200, "FeedStatus"), 404, 503, has=named)},
        f"{feed}/pause": {
            "post": _order("Pause the feed in all processes until resumed.", *named, body="PauseRequest")
        },
        f"{feed}/resume": {"post": _order("Resume a paused feed and poll it immediately.", *named)},
        f"{feed}/resync": {"post": _order("Read a feed again in full. Publishes only what differs.", *named, _ANEW)},
        f"{feed}/release": {
            "post": _order("Approve removals held by the safety limit, or changes held after a new base_url.", *named)
        },
        **_record_paths(feed, named),
        "/subscriptions": {
            "get": _reading(
                "All subscriptions, by id.", _answer(200, "SubscriptionObject", many=True), 400, 503, has=_LIST
            ),
            "post": _change("Add a subscription.", _created(), 409, *_BODY, body="SubscriptionRequest"),
        },
        one: {
            "get": _reading("One subscription.", changed, 404, 422, 503, has=_SUBSCRIPTION),
            "put": _change(
                "Replace a subscription.", changed, 404, 409, *_BODY, has=_SUBSCRIPTION, body="SubscriptionRequest"
            ),
            "delete": _change("Delete a subscription with its undelivered events.", gone, 404, 409, has=_SUBSCRIPTION),
        },
        f"{one}/pause": {
            "post": _change(
                "Pause deliveries until resumed.", changed, 404, 409, *_BODY, has=_SUBSCRIPTION, body="PauseRequest"
            )
        },
        f"{one}/resume": {"post": _change("Resume a paused subscription.", changed, 404, 409, has=_SUBSCRIPTION)},
        f"{one}/backfill": {
            "get": _reading(
                "The backfills under way.", _answer(200, "RequestedBackfill", many=True), 404, 503, has=_SUBSCRIPTION
            ),
            "post": _change(
                "Deliver every live record once, as created events with cause backfill.",
                _answer(202, "RequestedBackfill", many=True),
                404,
                409,
                *_BODY,
                has=_SUBSCRIPTION,
                body="BackfillRequest",
            ),
            "delete": _change(
                "Cancel the backfills under way, of all or of the named feeds.",
                _answer(200, "CancelledBackfills"),
                404,
                *_BODY,
                has=_SUBSCRIPTION,
                body="BackfillRequest",
            ),
        },
        "/events": {
            "get": _reading(
                "New events, as server-sent events.", {200: _content(KIND, _TEXT)}, 400, 404, 503, has=_EVENTS
            )
        },
        "/asyncapi.json": {"get": _open("The streams and their events.", json)},
        "/openapi.json": {"get": _open("This document.", described)},
        "/schemas": {"get": _open("The list of JSON Schemas; /schemas/ is the same.", _list_of_schemas())},
        "/schemas/{name}.json": {"get": _open("One schema.", schemas, 404, has=(name,))},
        "/webhooks/callback": {
            "get": _callback("Grant events for a sink: the callback of its handshake."),
            "post": _callback("Grant events for a sink: the callback of its handshake."),
        },
    }


def _record_paths(feed: str, named: Sequence[Schema]) -> Schema:
    limit, same = _LIST[0], {304: {"description": "The client has it."}}
    listed = _answer(200, "RecordPage")
    listed[200]["content"][NDJSON] = {"schema": _TEXT}
    history: Sequence[Schema] = [*named, _RECORD, limit, _BEFORE]
    removed = {
        410: {"description": "It is removed, or was erased.", "content": {PROBLEM: {"schema": _ref("RemovedRecord")}}}
    }
    return {
        f"{feed}/records": {
            "get": _reading(
                "A page of the feed's records, or all of them as lines.",
                {**listed, **same},
                400,
                404,
                410,
                has=[*named, limit, _CURSOR, _KNOWN],
            )
        },
        f"{feed}/records/{{record}}": {
            "get": _reading(
                "One record, as it was last published.",
                {**_answer(200, "CurrentRecord"), **same, **removed},
                400,
                404,
                500,
                has=[*named, _RECORD, _KNOWN],
            ),
            "delete": _change(
                "Erase what is stored of one record; a tombstone without content stays.",
                _answer(200, "ErasureResult"),
                400,
                404,
                409,
                has=[*named, _RECORD, *_ERASED],
            ),
        },
        f"{feed}/records/{{record}}/history": {
            "get": _reading(
                "The events of one record that the stream still holds, the latest first.",
                _answer(200, "RecordEvent", many=True),
                400,
                404,
                has=history,
            )
        },
    }


def _named(feeds: Sequence[str]) -> Sequence[Schema]:
    """The parameters that name a feed, with all values unless there are too many."""
    few = len(feeds) <= _NAMED
    pairs = [feed.split("/", 1) for feed in feeds]
    parts = {name: [pair[at] for pair in pairs] for at, name in enumerate(("source", "name"))}
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"enum": list(dict.fromkeys(values))} if few else _TEXT,
        }
        for name, values in parts.items()
    ]


def _operation(
    summary: str, answers: Mapping[int, Schema], *refusals: int, has: Sequence[Schema] = (), body: str | None = None
) -> Schema:
    told = {
        status: {"description": _REFUSALS[status], **_content(PROBLEM, _ref("ProblemDetails"))} for status in refusals
    }
    found: Schema = {"summary": summary, "responses": {str(status): one for status, one in {**told, **answers}.items()}}
    if has:
        found["parameters"] = list(has)
    if body:
        found["requestBody"] = {"required": body not in _OPTIONAL_BODIES, "content": {JSON: {"schema": _ref(body)}}}
    return found


def _change(summary: str, answers: Mapping[int, Schema], *refusals: int, **more: Any) -> Schema:
    return _operation(summary, answers, *refusals, *_GUARDED, **more) | {"security": _CHANGING}


def _reading(summary: str, answers: Mapping[int, Schema], *refusals: int, **more: Any) -> Schema:
    return _operation(summary, answers, *refusals, *_GUARDED, **more) | {"security": _READING}


def _open(summary: str, answers: Mapping[int, Schema], *refusals: int, **more: Any) -> Schema:
    return _operation(summary, answers, *refusals, **more) | {"security": []}


def _identified(paths: Schema) -> Schema:
    """Add an ``operationId`` to each operation; generators make names from it."""
    return {
        path: {
            method: {"operationId": _OPERATIONS.get((method, path)) or _camel(f"{method}{path}")} | operation
            for method, operation in operations.items()
        }
        for path, operations in paths.items()
    }


def _camel(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+(\w?)", lambda found: str(found[1]).upper(), text)


def _order(summary: str, *has: Schema, body: str | None = None) -> Schema:
    answers = _answer(200, "CommandResult") | _answer(202, "CommandResult")
    return _change(summary, answers, 400, 404, 409, *(_BODY if body else ()), has=has, body=body)


def _callback(summary: str) -> Schema:
    asked = [{"name": name, "in": "query", "schema": _TEXT} for name in ("id", "key")]
    texts = {status: _content("text/plain", _TEXT) for status in (200, 404, 503)}
    return _open(summary, texts, has=asked)


def _created() -> Mapping[int, Schema]:
    location = {"location": {"schema": _TEXT, "description": "Where it is."}}
    return {201: {**_answer(201, "SubscriptionObject")[201], "headers": location}}


def _answer(status: int, name: str, *, many: bool = False) -> dict[int, Schema]:
    return {status: _content(JSON, {"type": "array", "items": _ref(name)} if many else _ref(name))}


def _document_responses(kind: str) -> Mapping[int, Schema]:
    return {200: _content(kind, {"type": "object"}), 304: {"description": "The document has not changed."}}


def _list_of_schemas() -> Mapping[int, Schema]:
    one: Schema = {"type": "object", "required": ["name", "url"], "properties": {"name": _TEXT, "url": _TEXT}}
    return {**_document_responses(JSON), 200: _content(JSON, {"type": "array", "items": one})}


def _content(kind: str, schema: Schema) -> Schema:
    return {"description": "The answer.", "content": {kind: {"schema": schema}}}


def _texts(*kinds: str) -> Schema:
    return {"description": "The answer.", "content": {kind: {"schema": _TEXT} for kind in kinds}}


def _ref(name: str) -> Schema:
    return {"$ref": f"{_REF}{name}"}


def _schemas(feeds: Sequence[str]) -> Schema:
    """The schemas of all types; those of ``config`` and ``filters`` come from the configuration."""
    _, own = msgspec.json.schema_components(_TYPES, ref_template=f"{_REF}{{name}}")
    tables = _moved(config_schema()["$defs"])
    subscription = tables["SubscriptionSettings"]["properties"]
    wanted = own["SubscriptionRequest"]["properties"]
    wanted["config"] = {
        "type": "object",
        "description": "Keys of a [[subscriptions]] table of the configuration.",
        "properties": {name: subscription[name] for name in CONFIG},
        "additionalProperties": False,
    }
    wanted |= {name: subscription[name] for name in ("sink", "filters")}
    wanted |= {name: {"anyOf": [subscription[name], {"type": "null"}]} for name in ("id", "types")}
    credentials = [_ref(kind.__name__) for kind in _CREDENTIALS]
    wanted["sinkcredential"] = {"anyOf": [*credentials, _ref("SinkCredential"), {"type": "null"}]}
    wanted["config"]["properties"]["feeds"] = {
        **subscription["feeds"],
        "items": {"enum": list(feeds)} if len(feeds) <= _NAMED else _TEXT,
    }
    own["SubscriptionObject"]["properties"]["filters"] = {"type": "array", "items": _ref("FilterSettings")}
    own["AccessTokenCredential"]["properties"]["accesstokentype"]["enum"] = ["Bearer"]  # other cases are accepted, too
    own |= {
        name: tables[name]
        for name in ("BatchSettings", "RetrySettings", "FilterSettings", "WhenSettings", "FieldsSettings")
    }
    readable = {name: _readable(schema) for name, schema in own.items()}
    return {name: schema | _words(name) for name, schema in readable.items()}


_DESCRIPTIONS: Final = {
    "FeedStatus": "How a feed does.",
    "ProblemDetails": "The error of a request: problem details, RFC 9457.",
    "ReadinessReport": "Whether the process is ready, with the reasons if not.",
    "SubscriptionObject": "A subscription.",
    "SubscriptionStatus": "The status of a subscription.",
    "SubscriptionRequest": "The wanted state of a subscription.",
}
"""Descriptions for types whose docstring is written for programmers."""


def _words(name: str) -> Schema:
    return {"description": _DESCRIPTIONS[name]} if name in _DESCRIPTIONS else {}


def _readable(schema: Schema) -> Schema:
    """A type's schema with descriptions from its docstring, those of attributes at their properties."""
    said, _, attributes = inspect.cleandoc(schema.get("description", "")).partition("Attributes:")
    described = dict(schema) | ({"description": _plain(said)} if said.strip() else {})
    properties = dict(schema.get("properties", {}))
    for name, text in re.findall(r"^ *(\w+): (.*(?:\n {8,}.*)*)", attributes, re.MULTILINE):
        if name in properties:
            properties[name] = {"description": _plain(text), **properties[name]}
    return described | ({"properties": properties} if properties else {})


def _plain(text: str) -> str:
    """The text of a docstring without markup and line breaks."""
    text = re.sub(r"[;,(]? ?see :\w+:`[^`]*`\)?", "", text)
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?([^`]*)`|``([^`]*)``", lambda found: found[1] or found[2], text)
    text = re.sub(r"\bNone\b", "null", " ".join(text.split())).rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def _moved(schema: Any) -> Any:
    """The schema with references to the tables of this document."""
    if isinstance(schema, list):
        return [_moved(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: value.replace("#/$defs/", _REF) if key == "$ref" else _moved(value) for key, value in schema.items()}


# ``/asyncapi.json``, ``/openapi.json``, ``/schemas/``: the output of ``poller schema``, each with an ``ETag``.

_SCHEMA: Final = "application/schema+json"
_OPENAPI: Final = "application/vnd.oai.openapi+json;version=3.1"
_KEPT: Final = "public, max-age=300"


class SchemaEntry(msgspec.Struct, frozen=True):
    """One schema of the index.

    Attributes:
        name: ``events`` (all of them), ``config``, or an event's type.
        url: of the schema.
    """

    name: str
    url: str


def document_routes(settings: Settings) -> list[Route]:
    """The routes."""

    @cache
    def schemas() -> Mapping[str, Any]:
        events = schemas_of(settings)
        single = {name: {"$schema": DIALECT} | schema for name, schema in events.items()}
        return {"events": events_document(events), "config": config_schema()} | single

    @cache
    def written(name: str) -> bytes:
        return _json(schemas()[name])

    async def schema(request: Request) -> Response:
        """GET: one schema."""
        name = str(request.path_params["name"])
        if name not in schemas():
            raise RequestRefused(404, "unknown schema; /schemas/ lists all")
        return _kept(request, written(name), _SCHEMA)

    def index() -> list[SchemaEntry]:
        return [SchemaEntry(name, f"/schemas/{name}.json") for name in schemas()]

    return [
        at("/asyncapi.json", GET=_document(lambda: asyncapi(settings), JSON)),
        at(
            "/openapi.json",
            GET=_document(lambda: openapi(settings.feed_ids, url=settings.http.public_url), _OPENAPI),
        ),
        *(at(path, GET=_document(index, JSON)) for path in ("/schemas", "/schemas/")),
        at("/schemas/{name}.json", GET=schema),
    ]


def _document(make: Callable[[], Any], kind: str) -> Endpoint:
    @cache
    def written() -> bytes:
        return _json(make())

    async def document(request: Request) -> Response:
        return _kept(request, written(), kind)

    return document


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def _kept(request: Request, content: bytes, kind: str) -> Response:
    """The document; 304: the client has it."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": _KEPT}
    asked = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
    if tag in asked or "*" in asked:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=kind)
