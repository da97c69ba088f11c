"""All metrics of this process as text, when somebody asks.

Law: whoever asks while one text is made gets the next one, together with all others who wait; it is made beside the
loop, which goes on meanwhile. A store that is away takes away what it would have said, and nothing else.

Refuses to know: HTTP, and what is counted where.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics

from poller.service.readiness import Readiness
from poller.service.stored_figures import StoredReadings
from poller.service.watching import StoreWatch
from poller.store.checks import Finding
from poller.telemetry.catalogue import REGISTRY, labelled
from poller.telemetry.commits import STORE_FINDING, STORE_UP
from poller.telemetry.process import READY
from poller.telemetry.rounds import ROUNDS
from poller.telemetry.stored import StoredFigures, blocks

Form = Literal["text", "openmetrics"]

_STORE: Final = "store"
_END: Final = "# EOF\n"  # of OpenMetrics


class Moment(msgspec.Struct, frozen=True):
    """What is known when somebody asks; ``stored`` is None where the store does not say."""

    ready: bool
    up: bool
    findings: Sequence[Finding]
    stored: StoredFigures | None


class Exposition:
    """The metrics of one process. Used within one event loop."""

    def __init__(self, readiness: Readiness, watch: StoreWatch, readings: StoredReadings) -> None:
        """Take who knows."""
        self._readiness = readiness
        self._watch = watch
        self._readings = readings
        self._one = asyncio.Lock()
        self._next: dict[Form, asyncio.Task[bytes]] = {}

    async def text(self, form: Form) -> bytes:
        """All of them."""
        making = self._next.get(form)
        if making is None:
            making = self._next[form] = asyncio.create_task(self._made(form), name="metrics")
        await asyncio.wait({making})  # one who leaves takes it from nobody else
        return making.result()

    async def _made(self, form: Form) -> bytes:
        async with self._one:
            del self._next[form]  # whoever comes from now on may want to see what happens from now on
            report = await self._readiness.report()
            up = all(one.name != _STORE for one in (*report.reasons, *self._watch.reasons()))
            stored = await self._readings.latest() if up else None
            moment = Moment(report.ready, up, self._watch.findings, stored)
            return await asyncio.to_thread(written, moment, form)


def written(moment: Moment, form: Form) -> bytes:
    """What this process has counted and what is so at this moment, in Prometheus' text or as OpenMetrics."""
    other = form == "openmetrics"
    counted: bytes = openmetrics(REGISTRY) if other else generate_latest(REGISTRY)  # type: ignore[no-untyped-call]  # as it is
    amiss = [one for one in moment.findings if one.severity != "ok"]
    findings = [(labelled(name=one.name, severity=one.severity), 1.0) for one in amiss]
    parts = [
        counted.decode().removesuffix(_END),
        READY.block([("", float(moment.ready))], openmetrics=other),
        STORE_UP.block([("", float(moment.up))], openmetrics=other),
        STORE_FINDING.block(findings, openmetrics=other),
        *ROUNDS.blocks(openmetrics=other),
        *(blocks(moment.stored, openmetrics=other) if moment.stored else ()),
        _END if other else "",
    ]
    return "".join(parts).encode()
