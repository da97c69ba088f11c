"""The AsyncAPI 3.0 document: the streams and the events in them.

A stream's key contains braces, which keep a feed's keys together on a cluster, and AsyncAPI reads braces in an address
as a parameter. So each address has the parameter ``feed``, whose only value is the braces with their content. The whole
key is in ``x-redis-key``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from poller import __version__
from poller.changes.diff import ChangeKind
from poller.changes.events import Schema, event_schemas
from poller.config.settings import Settings
from poller.control.factories import feed_of, keys_of
from poller.delivery import operational_events as announcements
from poller.delivery.operational_events import schema_of
from poller.redis.client import shown
from poller.source.feed import Feed
from poller.store.keys import operations_key

CONTENT_TYPE: Final = "application/cloudevents+json"
EXAMPLE: Final = {"POLLER_BASE_URL": "https://api.example.org/v1"}
"""The environment of a default source, if none is configured."""

_PROSE: Final = (
    "Each entry of a stream has one field, data: a CloudEvent in structured JSON. "
    "Read with XREAD or consumer groups; group names beginning with sub: are taken. "
    "Webhook subscriptions get the same events, signed according to Standard Webhooks."
)


_OPERATIONS: Final = "operations"
_BRACED: Final = f"{{{_OPERATIONS}}}"
_TOLD: Final = "Publishes events about feeds and subscriptions."


class _Stream(msgspec.Struct, frozen=True):
    """The stream of a feed, as the document shows it."""

    feed: Feed
    key: str
    address: str

    @property
    def name(self) -> str:
        return self.feed.id.replace("/", ".")

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(f"{stem_of(self.feed)}.{kind}.v1" for kind in ChangeKind)


def stem_of(feed: Feed) -> str:
    """The type of the feed's events, without the kind of change."""
    return f"{feed.type_prefix}.{feed.resource.type_name}"


def schemas_of(settings: Settings) -> dict[str, Schema]:
    """The schemas of all events that these feeds publish, by type."""
    return event_schemas((stem_of(feed), feed.id_field) for feed in _feeds(settings))


def asyncapi(settings: Settings) -> dict[str, Any]:
    """The document for these feeds."""
    streams = [_stream(settings, feed) for feed in _feeds(settings)]
    operational = {str(kind): schema_of(kind) for kind in announcements.OperationType}
    schemas = schemas_of(settings) | operational
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "poller", "version": __version__, "description": _PROSE},
        "defaultContentType": CONTENT_TYPE,
        **_servers(settings.redis.url),
        "channels": {stream.name: _channel(stream) for stream in streams}
        | {_OPERATIONS: _about(settings, operational)},
        "operations": {f"publish.{stream.name}": _operation(stream) for stream in streams}
        | {f"publish.{_OPERATIONS}": _sent(_OPERATIONS, _TOLD, operational)},
        "components": {
            "messages": {name: _message(name, schema) for name, schema in schemas.items()},
            "schemas": schemas,
        },
    }


def _feeds(settings: Settings) -> Iterator[Feed]:
    for source in settings.sources:
        for feed in source.feeds:
            yield feed_of(source, feed)


def _stream(settings: Settings, feed: Feed) -> _Stream:
    return _Stream(feed, keys_of(settings, feed.id).events, f"{settings.redis.prefix}:{{feed}}:events")


def _servers(url: str | None) -> Mapping[str, Any]:
    """The server of the streams; empty for an embedded server, whose socket other hosts cannot reach."""
    parts = urlsplit(shown(url or ""))
    if parts.scheme not in ("redis", "rediss") or not parts.netloc:
        return {}
    server = {"host": parts.netloc, "protocol": parts.scheme, "pathname": parts.path or "/0"}
    return {"servers": {"redis": server}}


def _channel(stream: _Stream) -> dict[str, Any]:
    braced = f"{{{stream.feed.id}}}"
    return {
        "address": stream.address,
        "title": stream.feed.id,
        "description": f"The changes of {stream.feed.resource.name}: the Redis stream {stream.key}.",
        "parameters": {"feed": {"enum": [braced], "default": braced, "description": "The feed, braces included."}},
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in stream.types},
        "x-redis-key": stream.key,
    }


def _about(settings: Settings, types: Iterable[str]) -> dict[str, Any]:
    """The channel of operational events."""
    key = operations_key(settings.redis.prefix)
    return {
        "address": f"{settings.redis.prefix}:{{feed}}:events",
        "title": _OPERATIONS,
        "description": f"Events about feeds and subscriptions, for operators: the Redis stream {key}.",
        "parameters": {"feed": {"enum": [_BRACED], "default": _BRACED, "description": "This stream's own name."}},
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in types},
        "x-redis-key": key,
    }


def _operation(stream: _Stream) -> dict[str, Any]:
    return _sent(stream.name, f"Publishes each change of {stream.feed.id} once, in order.", stream.types)


def _sent(channel: str, summary: str, types: Iterable[str]) -> dict[str, Any]:
    reference = f"#/channels/{channel}"
    return {
        "action": "send",
        "channel": {"$ref": reference},
        "summary": summary,
        "messages": [{"$ref": f"{reference}/messages/{name}"} for name in types],
    }


def _message(name: str, schema: Schema) -> dict[str, Any]:
    return {
        "name": name,
        "title": name,
        "summary": schema["description"],
        "contentType": CONTENT_TYPE,
        "payload": {"$ref": f"#/components/schemas/{name}"},
    }
