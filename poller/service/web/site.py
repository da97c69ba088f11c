"""All that is served, joined: each resource comes from the module that knows it.

Invariant: what shows records, events, feeds or subscriptions is read by those who may; probes, metrics and documents
show none of these and are open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.routing import BaseRoute, Route

from poller.service.readiness import Readiness
from poller.service.web.admission import Admission
from poller.service.web.application import application
from poller.service.web.backing import Backing
from poller.service.web.callback import callback_routes
from poller.service.web.counting import Counting
from poller.service.web.documents import document_routes
from poller.service.web.events import event_routes
from poller.service.web.feeds import feed_routes
from poller.service.web.hosts import names_of
from poller.service.web.pages import page_routes
from poller.service.web.probes import probe_routes
from poller.service.web.subscriptions import subscription_routes
from poller.store.subscriptions import Registry


def routes_of(
    backing: Backing, readiness: Readiness, registry: Callable[[], Registry | None], *, clock: Callable[[], float]
) -> list[Route]:
    """One route for each path.

    Args:
        backing: what they stand on.
        readiness: of this process.
        registry: for sinks that call back; None while the store has not answered yet.
        clock: seconds that only go forward.
    """
    admission = Admission(backing.settings.http, backing.environ, clock=clock)
    shown = [
        *page_routes(backing, readiness, clock=clock),
        *feed_routes(backing, admission),
        *subscription_routes(backing, admission),
        *event_routes(backing, clock=clock),
    ]
    unrestricted = [
        *probe_routes(readiness, admission.may_read),
        *document_routes(backing.settings),
        *callback_routes(registry),
    ]
    return [*map(admission.readable, shown), *unrestricted]


def site(backing: Backing, readiness: Readiness, registry: Callable[[], Registry | None], *more: BaseRoute) -> Any:
    """The application; what it answers is counted.

    Args:
        backing: what it stands on.
        readiness: of this process.
        registry: as for :func:`routes_of`.
        more: further routes, which anybody may read.
    """
    routes = [*routes_of(backing, readiness, registry, clock=asyncio.get_running_loop().time), *more]
    return Counting(application(*routes, names=names_of(backing.settings.http)), routes)
