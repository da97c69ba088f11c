"""A sink for tests of one, allowed to be on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from poller.clock import Clock
from poller.delivery.sinks.base import Outcome, OutcomeKind, Permission, PermissionRequest, Preview, Sink, SinkEvent
from poller.delivery.sinks.webhook import WebhookSink
from poller.http.ssrf import AddressPolicy

TYPE: Final = ("Content-Type", "application/cloudevents+json")


async def loopback(_: str) -> list[str]:
    """A look-up to which every name is this machine."""
    return ["127.0.0.1"]


class PythonSink(Sink):
    """A sink of plain Python: :meth:`post` says what becomes of a batch, as one body."""

    async def post(self, body: bytes) -> Outcome:  # noqa: ARG002 -- for those that override it
        """Take it; a test's sink says otherwise, here or in :meth:`send`."""
        return Outcome(OutcomeKind.DELIVERED)

    async def send(self, batch: Sequence[SinkEvent]) -> Outcome:
        return await self.post(
            batch[0].data if len(batch) == 1 else b"[" + b",".join([one.data for one in batch]) + b"]"
        )

    async def verify(self, request: PermissionRequest | None = None) -> Permission:
        return Permission("granted", f"it grants {request}")

    def preview(self, batch: Sequence[SinkEvent]) -> Preview:
        return Preview((), batch[0].data)

    async def close(self) -> None: ...


@asynccontextmanager
async def sink_of(url: str, *, seconds: float = 10, **options: Any) -> AsyncIterator[WebhookSink]:
    """An open sink; ``seconds`` is its time limit."""
    given = {"concurrency": 8, "allowed": AddressPolicy(private=True), "clock": Clock(), **options}
    async with WebhookSink(url, timeout=timedelta(seconds=seconds), **given) as sink:
        yield sink


async def posted(url: str, **options: Any) -> Outcome:
    """How one attempt at a sink ends, with what holds for each: one printable line, and an answer or a failure."""
    async with sink_of(url, **options) as sink:
        outcome = await sink.post((TYPE,), b"{}")
    assert bool(outcome.error) != outcome.is_delivered
    assert outcome.is_delivered or outcome.error.isprintable()
    assert len(outcome.error) < 400
    assert (outcome.status is None) == (outcome.failure is not None)
    return outcome
