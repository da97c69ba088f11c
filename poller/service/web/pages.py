"""The page's route."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from poller.service.readiness import Readiness
from poller.service.web.backing import Backing
from poller.service.web.glance import Glances
from poller.service.web.page import POLICY, page
from poller.service.web.routing import at


def page_routes(backing: Backing, readiness: Readiness, *, clock: Callable[[], float]) -> list[Route]:
    """The route.

    Args:
        backing: what it stands on.
        readiness: of this process.
        clock: seconds that only go forward.
    """
    glances = Glances(backing, readiness, clock=clock)

    async def shown(_: Request) -> Response:
        """GET: the page."""
        return HTMLResponse(page(await glances.latest()), headers={"content-security-policy": POLICY})

    return [at("/", GET=shown)]
