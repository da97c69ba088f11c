"""OpenTelemetry kept out of a process that has not been asked for traces.

Where it is installed redis-py imports its metrics, with every start of every command, for figures that nobody has asked
it for: 75 ms and some megabytes. So what redis-py looks for is not to be found, until :func:`shown`.
"""

from __future__ import annotations

import sys
from typing import Final

_LOOKED_FOR: Final = ("opentelemetry.metrics", "opentelemetry.sdk.metrics")


def block_opentelemetry() -> None:
    """Have imports fail of what is looked for. For a program to call, before it imports anything else."""
    for name in _LOOKED_FOR:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type] # None is how Python spells "not to be found"


def shown() -> None:
    """Let it be found again."""
    for name in _LOOKED_FOR:
        if name in sys.modules and sys.modules[name] is None:
            del sys.modules[name]
