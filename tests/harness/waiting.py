"""Waiting for conditions. Nothing here waits for time alone: whoever waits is woken, or gives up and says for what."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE = 20.0
"""Seconds; nothing in a scene takes as long unless something is wrong."""


@asynccontextmanager
async def patience(what: str, seconds: float = PATIENCE) -> AsyncIterator[None]:
    """Fail with ``what`` if the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise AssertionError(f"waited {seconds:g} s for {what}") from None
