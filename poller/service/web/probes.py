"""``/livez`` and ``/readyz``: for whoever watches over this process, a supervisor or a load balancer.

Refuses to know what makes a process ready; see :mod:`poller.service.readiness`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from poller.service.readiness import Readiness

_JSON: Final = "application/json"
_HIDDEN: Final = "the reason is shown with a token that reads, and by poller status"


def probe_routes(readiness: Readiness, may_read: Callable[[Request], bool] = lambda _: True) -> list[Route]:
    """The routes.

    Args:
        readiness: of this process.
        may_read: who may read what APIs and sinks have answered, in which a record may be repeated.
    """

    async def livez(_: Request) -> Response:
        """200 while the loop runs. A process that does not answer is to be started again; nothing else is a reason."""
        return Response(b'{"live":true}\n', media_type=_JSON)

    async def readyz(request: Request) -> Response:
        """200 or 503, with a :class:`poller.service.readiness.Report`."""
        report = await readiness.report()
        if not may_read(request):
            hidden = {"failing": report.failing, "subscriptions": report.subscriptions}
            report = msgspec.structs.replace(report, **{key: dict.fromkeys(of, _HIDDEN) for key, of in hidden.items()})
        return Response(msgspec.json.encode(report) + b"\n", 200 if report.ready else 503, media_type=_JSON)

    return [Route("/livez", livez, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]
