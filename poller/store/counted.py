"""Commits counted by what the store made of them, and how long that took."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Any, Final

from poller.telemetry import costs
from poller.telemetry.commits import CommitResult, committed

_RESULTS: Final[dict[bytes, CommitResult]] = {
    b"OK": "written",
    b"ALREADY": "repeated",
    b"FENCED": "fenced",
    b"STALE": "stale",
}


async def counted(written: Awaitable[Any]) -> Any:
    """What the commit's script answers, once it does; whatever it is, or raises, is counted."""
    begun, result = time.perf_counter(), b""
    try:
        result = await written
        return result
    finally:
        seconds = time.perf_counter() - begun
        committed(_RESULTS.get(result, "failed"), seconds)
        costs.commit_timed(seconds)
