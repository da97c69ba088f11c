"""A sink for tests of one, allowed to be on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

from poller.delivery.outcome import Outcome
from poller.delivery.sinks.webhook import Sink
from poller.http.ssrf import AddressPolicy

TYPE: Final = ("Content-Type", "application/cloudevents+json")


async def loopback(_: str) -> list[str]:
    """A look-up to which every name is this machine."""
    return ["127.0.0.1"]


@asynccontextmanager
async def sink_of(url: str, *, seconds: float = 10, **options: Any) -> AsyncIterator[Sink]:
    """An open sink; ``seconds`` is its time limit."""
    given = {"concurrency": 8, "allowed": AddressPolicy(private=True), **options}
    async with Sink(url, timeout=timedelta(seconds=seconds), **given) as sink:
        yield sink


async def posted(url: str, **options: Any) -> Outcome:
    """How one attempt at a sink ends, with what holds for each: one printable line, and an answer or a failure."""
    async with sink_of(url, **options) as sink:
        outcome = await sink.post((TYPE,), b"{}")
    assert outcome.text
    assert outcome.text.isprintable()
    assert len(outcome.text) < 400
    assert (outcome.status is None) == (outcome.failure is not None)
    return outcome
