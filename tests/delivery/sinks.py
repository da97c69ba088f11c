"""Sinks for tests, which may be on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from poller.clock import Clock
from poller.delivery.sinks.base import (
    Outcome,
    OutcomeKind,
    Permission,
    PermissionRequest,
    Preview,
    Sink,
    SinkEvent,
    always,
)
from poller.delivery.sinks.webhook import WebhookSink
from poller.http.ssrf import AddressPolicy

TYPE: Final = ("Content-Type", "application/cloudevents+json")


async def loopback(_: str) -> list[str]:
    """A look-up that resolves every name to this machine."""
    return ["127.0.0.1"]


class PythonSink(Sink):
    """A sink of plain Python: :meth:`post` decides the outcome of a batch, given as one body."""

    async def post(self, body: bytes) -> Outcome:  # noqa: ARG002 -- for those that override it
        """Accept the body; a test overrides this or :meth:`send`."""
        return Outcome(OutcomeKind.DELIVERED)

    async def send(self, batch: Sequence[SinkEvent], *, allowed: Callable[[], bool] = always) -> Outcome:  # noqa: ARG002 -- it connects to nothing
        return await self.post(
            batch[0].data if len(batch) == 1 else b"[" + b",".join([one.data for one in batch]) + b"]"
        )

    async def verify(self, request: PermissionRequest | None = None) -> Permission:
        return Permission("granted", f"it grants {request}")

    async def try_out(self, batch: Sequence[SinkEvent]) -> tuple[Preview, Outcome]:
        return Preview((), batch[0].data), await self.send(batch)

    async def close(self) -> None: ...


@asynccontextmanager
async def sink_of(url: str, *, seconds: float = 10, **options: Any) -> AsyncIterator[WebhookSink]:
    """An open webhook sink; ``seconds`` is its time limit."""
    given = {"concurrency": 8, "allowed": AddressPolicy(private=True), "clock": Clock(), **options}
    async with WebhookSink(url, timeout=timedelta(seconds=seconds), **given) as sink:
        yield sink


async def posted(url: str, **options: Any) -> Outcome:
    """The outcome of one attempt, checked for what holds of every outcome: a printable error, a status or a failure."""
    async with sink_of(url, **options) as sink:
        outcome = await sink.post((TYPE,), b"{}")
    assert bool(outcome.error) != outcome.is_delivered
    assert outcome.is_delivered or outcome.error.isprintable()
    assert len(outcome.error) < 400
    assert (outcome.status is None) == (outcome.failure is not None)
    return outcome
