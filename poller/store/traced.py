"""What a commit tells of itself to whoever traces: how much it writes, and what the store made of it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from poller.changes.commit import Commit
from poller.telemetry import tracing
from poller.telemetry.tracing import Kind, Value

_PARTS: Final = ("events", "snapshots", "rejected", "listings", "marks")
_REFUSALS: Final = frozenset({b"FENCED", b"STALE"})


async def told(commit: Commit, written: Awaitable[Any]) -> Any:
    """What the commit's script answers, once it does."""
    if not tracing.on():
        return await written
    words: dict[str, Value] = {"db.system.name": "redis"}
    words |= {f"poller.commit.{part}": len(getattr(commit, part)) for part in _PARTS}
    with tracing.child("commit", kind=Kind.CLIENT, attributes=words) as span:
        answer = await written
        span.tell({"poller.commit.result": answer.decode().lower()})
        if answer in _REFUSALS:
            span.fail(answer.decode().lower())
        return answer
