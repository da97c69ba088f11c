"""Probes, and all metrics of this process as text.

**Invariants**

- Requests that come while a text is being made share the next one. It is made in a thread, so the loop is not blocked.
- While the store is unavailable, only the metrics from the store are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from poller.daemon.health import Readiness, StoreMonitor
from poller.daemon.stored_metrics import StoredFigures, StoredReadings, blocks
from poller.redis.health import ServerCheck
from poller.telemetry.metrics import READY, STORE_FINDING, STORE_UP, labelled, process_metrics

Form = Literal["text", "openmetrics"]

_STORE: Final = "store"
_END: Final = "# EOF\n"  # of OpenMetrics


class ScrapeState(msgspec.Struct, frozen=True):
    """The state at the time of a request; ``stored``: None: the store is unavailable."""

    ready: bool
    up: bool
    findings: Sequence[ServerCheck]
    stored: StoredFigures | None


class Exposition:
    """The metrics of one process. Used within one event loop."""

    def __init__(self, readiness: Readiness, watch: StoreMonitor, readings: StoredReadings) -> None:
        """Read the state with this function."""
        self._readiness = readiness
        self._watch = watch
        self._readings = readings
        self._one = asyncio.Lock()
        self._next: dict[Form, asyncio.Task[bytes]] = {}

    async def text(self, form: Form) -> bytes:
        """The text with all metrics."""
        making = self._next.get(form)
        if making is None:
            making = self._next[form] = asyncio.create_task(self._made(form), name="metrics")
        await asyncio.wait({making})  # a cancelled request does not cancel it for the others
        return making.result()

    async def _made(self, form: Form) -> bytes:
        async with self._one:
            del self._next[form]  # a later request must see what happens from now on
            report = await self._readiness.report()
            up = all(one.name != _STORE for one in (*report.reasons, *self._watch.reasons()))
            stored = await self._readings.latest() if up else None
            moment = ScrapeState(report.ready and up, up, self._watch.findings, stored)
            return await asyncio.to_thread(written, moment, form)


def written(moment: ScrapeState, form: Form) -> bytes:
    """All metrics of this process, in the Prometheus text format or as OpenMetrics."""
    other, metrics = form == "openmetrics", process_metrics()
    write = openmetrics if other else generate_latest
    counted: bytes = write(metrics.registry)
    problems = [one for one in moment.findings if one.severity != "ok"]
    findings = [(labelled(name=one.name, severity=one.severity), 1.0) for one in problems]
    parts = [
        counted.decode().removesuffix(_END),
        READY.block([("", float(moment.ready))], openmetrics=other),
        STORE_UP.block([("", float(moment.up))], openmetrics=other),
        STORE_FINDING.block(findings, openmetrics=other),
        *metrics.blocks(openmetrics=other),
        *(blocks(moment.stored, openmetrics=other) if moment.stored else ()),
        _END if other else "",
    ]
    return "".join(parts).encode()


# ``/metrics``: for Prometheus, in its text format or as OpenMetrics.

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
        """200 with all metrics, also while the store is unavailable."""
        form: Form = "openmetrics" if _OPENMETRICS in request.headers.get("accept", "") else "text"
        return Response(await exposition.text(form), headers={"content-type": _TYPES[form]})

    return [Route("/metrics", metrics, methods=["GET"])]


_OPENMETRICS: Final = "application/openmetrics-text"


# ``/livez`` and ``/readyz``: for supervisors and load balancers.

_JSON: Final = "application/json"
_HIDDEN: Final = "the reason is shown with a token that reads, and by poller status"


def probe_routes(readiness: Readiness, may_read: Callable[[Request], bool] = lambda _: True) -> list[Route]:
    """The routes.

    Args:
        readiness: of this process.
        may_read: whether a request may read answers of APIs and sinks, which may repeat a record.
    """

    async def livez(_: Request) -> Response:
        """200 while the event loop runs. Restart a process only if it does not answer."""
        return Response(b'{"live":true}\n', media_type=_JSON)

    async def readyz(request: Request) -> Response:
        """200 or 503, with a :class:`poller.daemon.health.ReadinessReport`."""
        report = await readiness.report()
        if not may_read(request):
            hidden = {"failing": report.failing, "subscriptions": report.subscriptions}
            report = msgspec.structs.replace(report, **{key: dict.fromkeys(of, _HIDDEN) for key, of in hidden.items()})
        return Response(msgspec.json.encode(report) + b"\n", 200 if report.ready else 503, media_type=_JSON)

    return [Route("/livez", livez, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]
