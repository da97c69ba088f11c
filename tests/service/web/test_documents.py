"""Laws of :mod:`poller.service.web.documents`: those of the command line, sent once to whoever keeps them."""

from __future__ import annotations

from typing import Any, Final

from poller.changes.schemas import events_document
from poller.config.schema import config_schema
from poller.service.asyncapi import asyncapi, schemas_of
from tests.service.web.served import Served


async def test_the_documents_of_poller_schema(given: Served) -> None:
    """AsyncAPI, the events and the configuration, as ``poller schema`` prints them; and each event type's own."""
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
    """304 without a body for the tag that it has, alone or among others; whole for another one."""
    for path in KEPT:
        status, headers, _ = await given.ask(path)
        tag = headers["etag"]
        assert (status, headers["cache-control"]) == (200, "public, max-age=300")
        for asked in (tag, f"W/{tag}", f'"x", {tag}', "*"):
            status, headers, body = await given.ask(path, headers={"if-none-match": asked})
            assert (status, body, headers["etag"]) == (304, "", tag)
        assert (await given.ask(path, headers={"if-none-match": '"x"'}))[0] == 200
