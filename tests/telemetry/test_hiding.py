"""What redis-py looks for is not found until it is shown."""

from __future__ import annotations

import subprocess
import sys

_LOOK = """
import sys
from poller.telemetry.hiding import hidden, shown
if {hide}:
    hidden()
import redis.asyncio
print(len([name for name, module in sys.modules.items() if name.startswith("opentelemetry") and module]))
shown()
import opentelemetry.sdk.metrics
print("found")
"""


def found(*, hide: bool) -> tuple[int, str]:
    """How many modules of OpenTelemetry redis-py has imported, and what comes of importing it after."""
    said = subprocess.run([sys.executable, "-c", _LOOK.format(hide=hide)], capture_output=True, text=True, check=True)
    count, after = said.stdout.split()
    return int(count), after


def test_redis_py_does_not_find_it_and_others_do() -> None:
    """Law: hidden, nothing of it is imported; left alone, redis-py does; once shown, it is there for whoever asks."""
    assert found(hide=True) == (0, "found")
    assert found(hide=False)[0] > 0
