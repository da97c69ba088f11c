"""Laws of :mod:`poller.web.documents`: the documents are those of the command line, and are cacheable."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types

from poller.changes.events import events_document
from poller.config.settings import config_schema
from poller.control.asyncapi import asyncapi, schemas_of
from poller.daemon.health import Readiness, StoreMonitor
from poller.web.app import declared, routes_of
from poller.web.context import AppContext
from poller.web.documents import openapi
from tests.harness.clock import StubClock
from tests.web.served import FEEDS, NOW, SINK, Served, configured


async def test_the_documents_of_poller_schema(given: Served) -> None:
    """AsyncAPI, events and configuration are those of ``poller schema``; each event type has its own schema."""
    for path, expected in (
        ("/asyncapi.json", asyncapi(given.settings)),
        ("/schemas/events.json", events_document(schemas_of(given.settings))),
        ("/schemas/config.json", config_schema()),
    ):
        assert (await given.ask(path, token=None))[2] == expected
    _, _, index = await given.ask("/schemas/")
    assert {one["name"] for one in index} == {"events", "config", *schemas_of(given.settings)}
    for one in index:
        status, headers, found = await given.ask(one["url"])
        assert (status, headers["content-type"]) == (200, "application/schema+json")
        assert found["$schema"].startswith("https://json-schema.org/")
    assert (await given.ask("/schemas/none.json"))[0] == 404


KEPT: Final[list[Any]] = ["/asyncapi.json", "/openapi.json", "/schemas/", "/schemas/events.json"]


async def test_whoever_has_it_is_not_sent_it_again(given: Served) -> None:
    """A matching entity tag, alone or among others, gets 304 without a body; another tag gets the document."""
    for path in KEPT:
        status, headers, _ = await given.ask(path)
        tag = headers["etag"]
        assert (status, headers["cache-control"]) == (200, "public, max-age=300")
        for asked in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            status, headers, body = await given.ask(path, headers={"if-none-match": asked})
            assert (status, body, headers["etag"]) == (304, "", tag)
        assert (await given.ask(path, headers={"if-none-match": '"x"'}))[0] == 200


# Laws of the OpenAPI document: it has every route and no other, and the answers match its schemas.

OPEN: Final = {
    "/livez",
    "/readyz",
    "/metrics",
    "/asyncapi.json",
    "/openapi.json",
    "/schemas",
    "/schemas/{name}.json",
    "/webhooks/callback",
}


async def test_it_tells_of_every_route(tmp_path: Path) -> None:
    """The OpenAPI document has exactly the paths and methods of the routes."""
    settings = configured(tmp_path, "redis://127.0.0.1:1")
    clock = asyncio.get_running_loop().time
    backing = AppContext(settings, clock=StubClock(now=lambda: NOW))
    readiness = Readiness(StoreMonitor("warn", clock=StubClock(now=lambda: NOW, monotonic=clock)))
    served = {
        (declared(route), method.lower())
        for route in routes_of(backing, readiness, lambda: None)
        for method in (route.methods or set()) - {"HEAD", "OPTIONS"}
    }
    told = {(path, method) for path, operations in openapi(FEEDS)["paths"].items() for method in operations}
    same = {("/schemas/", "get")}  # as /schemas; a linter does not like the slash
    assert told == (served - same) | {("/metrics", "get")}  # which the daemon adds


def test_every_reference_leads_somewhere() -> None:
    """Every reference resolves, and each closed operation names its tokens and the answers without one."""
    document = openapi(FEEDS)
    names = set(document["components"]["schemas"])
    assert set(_references(document)) <= {f"#/components/schemas/{name}" for name in names}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            changes = method != "get" and path != "/webhooks/callback"
            opened = path in OPEN
            expected: list[Any] = [] if opened else [{"admin": []}] if changes else [{"read": []}, {"admin": []}, {}]
            assert operation["security"] == expected, path
            assert opened or {"401", "403", "429"} <= set(operation["responses"])


def test_what_generators_need() -> None:
    """The document has unique operation ids, typed arrays, enums without variants, plain descriptions, a server."""
    document = openapi(FEEDS, url="https://poller.example.org/x")
    assert [one["url"] for one in document["servers"]] == ["https://poller.example.org/x"]
    assert openapi(FEEDS)["servers"][0]["url"] == "/"
    names = [one["operationId"] for operations in document["paths"].values() for one in operations.values()]
    assert len(set(names)) == len(names)
    assert {"listSubscriptions", "addSubscription", "pauseFeed", "followEvents"} <= set(names)
    schemas = document["components"]["schemas"]
    assert schemas["SubscriptionObject"]["properties"]["filters"]["items"] == _FILTER
    assert schemas["AccessTokenCredential"]["properties"]["accesstokentype"]["enum"] == ["Bearer"]
    assert schemas["GapNotice"]["properties"]["feed"]["description"] == "SOURCE/NAME."
    for schema in _inner(document):
        assert schema.get("type") != "array" or "items" in schema, schema
        words = schema.get("description", "")
        assert not words or not re.search(r"``|:\w+:`|Attributes:|\bNone\b|\n|(?<![.])$", words), words
        spelt = [str(value).lower() for value in schema.get("enum", ())]
        assert len(set(spelt)) == len(spelt), schema


def test_redocly_finds_no_error(tmp_path: Path) -> None:
    """The Redocly linter finds no error under its recommended rules."""
    program = next(
        (str(path) for path in _programs("@redocly/cli/bin/cli.js") if shutil.which("node") and path.is_file()), None
    )
    if program is None:
        pytest.skip("the npm package @redocly/cli is not in NODE_PATH")
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(openapi(FEEDS)), "utf-8")
    quiet = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}
    done = subprocess.run(
        ("node", program, "lint", str(file)),
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | quiet,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_openapi_python_client_makes_a_client(tmp_path: Path) -> None:
    """openapi-python-client generates a function for each operation without a warning."""
    program = shutil.which("openapi-python-client")
    if program is None:
        pytest.skip("needs openapi-python-client on the PATH")
    file, made = tmp_path / "openapi.json", tmp_path / "client"
    document = openapi(FEEDS)
    file.write_text(json.dumps(document), "utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # it formats what it makes with ruff
    done = subprocess.run(
        (program, "generate", "--path", str(file), "--output-path", str(made), "--meta", "none"),
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path},
    )
    assert (done.returncode, "arning" in done.stdout + done.stderr) == (0, False), done.stdout + done.stderr
    functions = {path.stem.replace("_", "") for path in (made / "api").rglob("*.py")}
    operations = [one for paths in document["paths"].values() for one in paths.values()]
    assert {one["operationId"].lower() for one in operations} <= functions


_FILTER: Final = {"$ref": "#/components/schemas/FilterSettings"}


def _programs(path: str) -> list[Path]:
    return [Path(place) / path for place in os.environ.get("NODE_PATH", "").split(os.pathsep) if place]


def _inner(value: Any) -> Iterator[dict[str, Any]]:
    """Each object of a document that may be a schema."""
    if isinstance(value, dict):
        yield value if isinstance(value.get("description", ""), str) else {}
        for one in value.values():
            yield from _inner(one)
    elif isinstance(value, list):
        for one in value:
            yield from _inner(one)


SENT: Final[list[Any]] = [
    ("/feeds", "FeedStatus"),
    (f"/feeds/{FEEDS[0]}", "FeedStatus"),
    ("/subscriptions", "SubscriptionObject"),
    ("/subscriptions/filed", "SubscriptionObject"),
    ("/subscriptions/none", "ProblemDetails"),
    ("/readyz", "ReadinessReport"),
]


async def test_what_is_sent_has_the_shape(given: Served) -> None:
    """Real answers are valid under the schemas, which allow no undescribed members."""
    for path, answered in SENT:
        _, _, document = await given.ask("/openapi.json")
        reference = {"$ref": f"#/components/schemas/{answered}"}
        _, _, told = await given.ask(path)
        many = {"type": "array", "items": reference, "minItems": 1}
        Draft202012Validator(document | (many if isinstance(told, list) else reference)).validate(told)


def test_what_may_be_asked_for_is_described() -> None:
    """A subscription with known configuration keys is valid; one with an unknown key is not."""
    document = openapi(FEEDS)
    wanted = Draft202012Validator({**document, "$ref": "#/components/schemas/SubscriptionRequest"})
    good: dict[str, Any] = {"sink": SINK, "config": {"feeds": [FEEDS[0]], "retry": {"schedule": ["5s"]}}}
    assert wanted.is_valid(good)
    configs = ({"config": {"rats": 1}}, {"config": {"feeds": ["x/y"]}}, {"config": {"rate": None}})
    for wrong in (*configs, {"protocol": "MQTT"}, {"sink": 1}, {"more": 1}):
        assert not wanted.is_valid(good | wrong)


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [one for inner in value for one in _references(inner)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [one for inner in value.values() for one in _references(inner)]
