"""An event loop that looks up no names."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class _Loop(asyncio.SelectorEventLoop):
    async def getaddrinfo(self, host: Any, *given: Any, **more: Any) -> Any:
        raise AssertionError(f"the event loop is asked for {host}, {given}, {more}")


def without_lookups(main: Coroutine[Any, Any, None]) -> None:
    """Run it in an event loop whose own look-up fails the test."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(main)
