"""Documents that describe this service and its events to other programs, each with an ``ETag``.

``/asyncapi.json``, ``/openapi.json``, ``/schemas/`` and what it lists: the same as ``poller schema`` prints.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from poller.changes.schemas import DIALECT, events_document
from poller.config.schema import config_schema
from poller.config.settings import Settings
from poller.service.asyncapi import asyncapi, schemas_of
from poller.service.web.openapi import openapi
from poller.service.web.problems import Refused
from poller.service.web.routing import JSON, Endpoint, at

_SCHEMA: Final = "application/schema+json"
_OPENAPI: Final = "application/vnd.oai.openapi+json;version=3.1"
_KEPT: Final = "public, max-age=300"


class Listed(msgspec.Struct, frozen=True):
    """One schema of the index.

    Attributes:
        name: ``events`` (all of them), ``config``, or an event's type.
        url: where it is.
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
            raise Refused(404, "there is no such schema; /schemas/ lists them")
        return _kept(request, written(name), _SCHEMA)

    def index() -> list[Listed]:
        return [Listed(name, f"/schemas/{name}.json") for name in schemas()]

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
    """The content; 304 where whoever asks has it."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": _KEPT}
    asked = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
    if tag in asked or "*" in asked:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=kind)
