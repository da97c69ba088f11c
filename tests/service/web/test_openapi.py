"""Laws of :mod:`poller.service.web.openapi`: every route is in it, nothing else is, and the shapes are those sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types
from starlette.routing import Route

from poller.service.readiness import Readiness
from poller.service.watching import StoreWatch
from poller.service.web.backing import Backing
from poller.service.web.openapi import openapi
from poller.service.web.site import routes_of
from tests.service.web.served import FEEDS, NOW, SINK, Served, configured


async def test_it_tells_of_every_route(tmp_path: Path) -> None:
    """Path for path and method for method."""
    settings = configured(tmp_path, "redis://127.0.0.1:1")
    clock = asyncio.get_running_loop().time
    backing = Backing(settings, now=lambda: NOW)
    readiness = Readiness(StoreWatch("warn", now=lambda: NOW, clock=clock))
    served = {
        (route.path, method.lower())
        for route in routes_of(backing, readiness, lambda: None, clock=clock)
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    told = {(path, method) for path, operations in openapi(FEEDS)["paths"].items() for method in operations}
    assert told == served | {("/metrics", "get")}  # which the daemon adds


def test_every_reference_leads_somewhere() -> None:
    """And whatever needs the admin token says so, with the answers that then come."""
    document = openapi(FEEDS)
    names = set(document["components"]["schemas"])
    assert set(_references(document)) <= {f"#/components/schemas/{name}" for name in names}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            changes = method != "get" and path != "/webhooks/callback"
            assert ("security" in operation) is changes
            assert {"401", "403"} <= set(operation["responses"]) or not changes


SENT: Final[list[Any]] = [
    ("/feeds", "FeedStatus"),
    (f"/feeds/{FEEDS[0]}", "FeedStatus"),
    ("/subscriptions", "SubscriptionObject"),
    ("/subscriptions/filed", "SubscriptionObject"),
    ("/subscriptions/none", "Problem"),
    ("/readyz", "Report"),
]


async def test_what_is_sent_has_the_shape(given: Served) -> None:
    """The real answers are valid under the schemas, which allow no more than what is described."""
    for path, answered in SENT:
        _, _, document = await given.ask("/openapi.json")
        reference = {"$ref": f"#/components/schemas/{answered}"}
        _, _, told = await given.ask(path)
        many = {"type": "array", "items": reference, "minItems": 1}
        Draft202012Validator(document | (many if isinstance(told, list) else reference)).validate(told)


def test_what_may_be_asked_for_is_described() -> None:
    """A subscription with the keys of the configuration is valid, one with an unknown key is not."""
    document = openapi(FEEDS)
    wanted = Draft202012Validator({**document, "$ref": "#/components/schemas/Wanted"})
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
