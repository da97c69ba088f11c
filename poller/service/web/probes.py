"""``/livez`` and ``/readyz``: for whoever watches over this process, a supervisor or a load balancer.

Refuses to know what makes a process ready; see :mod:`poller.service.readiness`.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from poller.service.readiness import Readiness

_JSON = "application/json"


def probe_routes(readiness: Readiness) -> list[Route]:
    """The routes.

    Args:
        readiness: of this process.
    """

    async def livez(_: Request) -> Response:
        """200 while the loop runs. A process that does not answer is to be started again; nothing else is a reason."""
        return Response(b'{"live":true}\n', media_type=_JSON)

    async def readyz(_: Request) -> Response:
        """200 or 503, with a :class:`poller.service.readiness.Report`."""
        report = await readiness.report()
        return Response(msgspec.json.encode(report) + b"\n", 200 if report.ready else 503, media_type=_JSON)

    return [Route("/livez", livez, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]
