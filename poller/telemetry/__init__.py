"""Metrics, traces and logs: what is declared once and recorded everywhere.

Start at :mod:`poller.telemetry.metrics`.
"""

from __future__ import annotations

import sys
from typing import Final

_OPENTELEMETRY: Final = ("opentelemetry.metrics", "opentelemetry.sdk.metrics")


def block_opentelemetry() -> None:
    """Make the imports of OpenTelemetry fail that redis-py tries; a program calls this before other imports.

    Where OpenTelemetry is installed, redis-py imports it for metrics of its own: 75 ms at the start of every command.
    """
    for name in _OPENTELEMETRY:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None makes the import fail


def unblock_opentelemetry() -> None:
    """Allow these imports again, for traces."""
    for name in _OPENTELEMETRY:
        if name in sys.modules and sys.modules[name] is None:
            del sys.modules[name]
