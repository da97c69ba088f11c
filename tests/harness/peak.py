"""Runs ``poller once`` in a process of its own and measures its peak memory.

A small intermediate process starts it, because a child is charged with the size of its parent at the start.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.harness.waiting import patience

if TYPE_CHECKING:
    from pathlib import Path

_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
_BETWEEN = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=False)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


class Round(NamedTuple):
    """A round as printed, the whole output, and the peak resident memory of the process in bytes."""

    result: dict[str, Any]
    said: str
    peak: int


async def once(config: Path, **environ: str) -> Round:
    """One round of a configuration with one feed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _BETWEEN, sys.executable, "-m", "poller", "-c", str(config), "once", "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environ,
    )
    try:
        async with patience("a round"):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    printed, peak = out.decode().splitlines()
    return Round(json.loads(printed), out.decode(), int(peak) * _UNIT)
