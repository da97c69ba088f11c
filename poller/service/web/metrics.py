"""``/metrics``: for Prometheus, in its text format, or as OpenMetrics where that is asked for.

Refuses to know what is counted; see :mod:`poller.telemetry` and :mod:`poller.service.web.exposition`.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from poller.service.web.exposition import Exposition, Form

_TYPES: Final[dict[Form, str]] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}


def metrics_routes(exposition: Exposition) -> list[Route]:
    """The route.

    Args:
        exposition: of this process.
    """

    async def metrics(request: Request) -> Response:
        """200 with all metrics, also while the store is away."""
        form: Form = "openmetrics" if _OPENMETRICS in request.headers.get("accept", "") else "text"
        return Response(await exposition.text(form), headers={"content-type": _TYPES[form]})

    return [Route("/metrics", metrics, methods=["GET"])]


_OPENMETRICS: Final = "application/openmetrics-text"
