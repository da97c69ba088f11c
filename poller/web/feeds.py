"""``/feeds``: the status of each feed, and the commands to one.

A command is left in the store, the process that polls the feed is informed, and replies when it has carried the command
out or has started to. Without a reply the command holds all the same.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from poller.control.commands import CommandKind, run_command
from poller.control.status import FeedStatus, feed_statuses
from poller.web.auth import Authorizer
from poller.web.context import AppContext
from poller.web.http import RequestRefused, as_json, at, body_of, reason_of, span_of

_ONE: Final = "/feeds/{source}/{name}"
_BY: Final = "an operator, by HTTP"
_PATIENCE: Final = timedelta(seconds=2)  # for a daemon to answer; it looks four times a second


def feed_routes(backing: AppContext, admission: Authorizer) -> list[Route]:
    """The routes."""

    async def listed(request: Request) -> Response:
        """GET: the status of every feed, by name."""
        span, names = span_of(request), backing.settings.feed_ids
        async with backing.listing:
            found = await _statuses(backing, span.of(names))
        return as_json(found, headers=span.links("/feeds", names))

    async def one(request: Request) -> Response:
        """GET: the status of one."""
        (found,) = await _statuses(backing, [_named(request, backing)])
        return as_json(found)

    async def resynced(request: Request) -> Response:
        """POST: it is read in full, or with ``?anew=true`` from the beginning."""
        anew = request.query_params.get("anew", "false")
        if anew not in {"true", "false"}:
            raise RequestRefused(400, "anew: expected true or false")
        return await _ordered(request, backing, CommandKind.ANEW if anew == "true" else CommandKind.RESYNC)

    async def released(request: Request) -> Response:
        """POST: held removals are let through."""
        return await _ordered(request, backing, CommandKind.RELEASE)

    async def paused(request: Request) -> Response:
        """POST: no round of it begins any more."""
        return await _ordered(request, backing, CommandKind.PAUSE, await reason_of(request))

    async def resumed(request: Request) -> Response:
        """POST: poll it again, now."""
        return await _ordered(request, backing, CommandKind.RESUME)

    return [
        at("/feeds", GET=listed),
        at(_ONE, GET=one),
        at(f"{_ONE}/pause", POST=admission.only(paused)),
        at(f"{_ONE}/resume", POST=admission.only(resumed)),
        at(f"{_ONE}/resync", POST=admission.only(resynced)),
        at(f"{_ONE}/release", POST=admission.only(released)),
    ]


def _named(request: Request, backing: AppContext) -> str:
    feed = f"{request.path_params['source']}/{request.path_params['name']}"
    if feed not in backing.settings.feed_ids:
        raise RequestRefused(404, f"there is no such feed; there are {', '.join(backing.settings.feed_ids[:20])}")
    return feed


async def _statuses(backing: AppContext, feeds: list[str]) -> list[FeedStatus]:
    return await feed_statuses(backing.client, backing.settings, now=backing.clock.now(), feeds=feeds)


async def _ordered(request: Request, backing: AppContext, order: CommandKind, reason: str = "") -> Response:
    """200: carried out; 202: it will be; 409: it would change nothing. To pause or resume twice is no mistake."""
    if order is not CommandKind.PAUSE and await body_of(request):
        raise RequestRefused(400, "expected no body; use the query parameter ?anew=true")
    answer = await run_command(
        backing.client,
        backing.settings,
        _named(request, backing),
        order,
        clock=backing.clock,
        by=_BY,
        reason=reason,
        patience=_PATIENCE,
    )
    if answer.outcome == "senseless" and order not in {CommandKind.PAUSE, CommandKind.RESUME}:
        raise RequestRefused(409, f"{answer.feed}: {answer.text}")
    return as_json(answer, 200 if answer.outcome in {"done", "senseless"} else 202)
