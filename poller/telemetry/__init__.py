"""Telemetry: metrics, traces and logs.

Start at :mod:`poller.telemetry.metrics`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OPENTELEMETRY: Final = ("opentelemetry.metrics", "opentelemetry.sdk.metrics")


def block_opentelemetry() -> None:
    """Make redis-py's imports of OpenTelemetry fail; call it before other imports.

    If OpenTelemetry is installed, redis-py imports it for its own metrics: 75 ms at the start of every command.
    """
    for name in _OPENTELEMETRY:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None makes the import fail


@contextmanager
def absent(name: str) -> Iterator[None]:
    """Make first imports of this module fail while the block runs, for libraries that can do without it.

    structlog and httpx import what decorates terminals if it is installed: 50 ms at the start of every command, for
    nothing that is used here.
    """
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # None makes the import fail
    try:
        yield
    finally:
        del sys.modules[name]


def unblock_opentelemetry() -> None:
    """Permit these imports again, for traces."""
    for name in _OPENTELEMETRY:
        if name in sys.modules and sys.modules[name] is None:
            del sys.modules[name]
