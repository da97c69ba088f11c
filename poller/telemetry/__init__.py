"""Telemetry: metrics, traces and logs.

Start at :mod:`poller.telemetry.metrics`.
"""

from __future__ import annotations

import sys
from typing import Final

_OPENTELEMETRY: Final = ("opentelemetry.metrics", "opentelemetry.sdk.metrics")


def block_opentelemetry() -> None:
    """Make redis-py's imports of OpenTelemetry fail; call it before other imports.

    If OpenTelemetry is installed, redis-py imports it for its own metrics: 75 ms at the start of every command.
    """
    for name in _OPENTELEMETRY:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None makes the import fail


def unblock_opentelemetry() -> None:
    """Permit these imports again, for traces."""
    for name in _OPENTELEMETRY:
        if name in sys.modules and sys.modules[name] is None:
            del sys.modules[name]
