"""``/feeds``: how each feed does, and what an operator asks of one.

An order is left in the store and carried out by the feed's next round, in whichever process that runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from poller.service.assembly import keys_of
from poller.service.feed_status import FeedStatus, feed_statuses
from poller.service.web.admission import Admission
from poller.service.web.backing import Backing
from poller.service.web.problems import Refused
from poller.service.web.routing import as_json, at, span_of
from poller.store.orders import Order, give

DONE: Final[Mapping[Order, str]] = {
    Order.RELEASE: "its next round lets the held removals through",
    Order.RESYNC: "its next round reads it in full; nothing is published unless something differs",
    Order.ANEW: "its next round forgets what is known of it and publishes all its records as a baseline",
}
_SENSELESS: Final = {
    Order.RELEASE: "nothing of it is held",
    Order.RESYNC: "it was never read, and its first round reads it in full anyway",
    Order.ANEW: "nothing is known of it",
}
_ONE: Final = "/feeds/{source}/{name}"


class Ordered(msgspec.Struct, frozen=True):
    """The answer to an order, key for key.

    Attributes:
        feed: ``SOURCE/NAME``.
        order: its name.
        text: what comes of it.
    """

    feed: str
    order: str
    text: str


def feed_routes(backing: Backing, admission: Admission) -> list[Route]:
    """The routes."""

    async def listed(request: Request) -> Response:
        """GET: the status of every feed, by name."""
        span, names = span_of(request), backing.settings.feed_ids
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
            raise Refused(400, "anew: expected true or false")
        return await _ordered(request, backing, Order.ANEW if anew == "true" else Order.RESYNC)

    async def released(request: Request) -> Response:
        """POST: held removals are let through."""
        return await _ordered(request, backing, Order.RELEASE)

    return [
        at("/feeds", GET=listed),
        at(_ONE, GET=one),
        at(f"{_ONE}/resync", POST=admission.only(resynced)),
        at(f"{_ONE}/release", POST=admission.only(released)),
    ]


def _named(request: Request, backing: Backing) -> str:
    feed = f"{request.path_params['source']}/{request.path_params['name']}"
    if feed not in backing.settings.feed_ids:
        raise Refused(404, f"there is no such feed; there are {', '.join(backing.settings.feed_ids[:20])}")
    return feed


async def _statuses(backing: Backing, feeds: list[str]) -> list[FeedStatus]:
    return await feed_statuses(backing.client, backing.settings, now=backing.now(), feeds=feeds)


async def _ordered(request: Request, backing: Backing, order: Order) -> Response:
    feed = _named(request, backing)
    if not await give(backing.client, keys_of(backing.settings, feed), order):
        raise Refused(409, f"{feed}: {_SENSELESS[order]}")
    return as_json(Ordered(feed, order.name.lower(), DONE[order]), 202)
