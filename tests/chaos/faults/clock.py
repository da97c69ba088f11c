"""The wall clock of all processes jumps an hour forward or back; monotonic time is unaffected."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage
    from tests.harness.processes import Daemon

_PLACES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib64/faketime/libfaketimeMT.so.1")
_HOURS = (-1, 1)
_A_SECOND_OF_LOG = 60
"""More log lines a second than this are a storm: there are four feeds, five rounds a second, and two sinks."""


def faked_by(name: str) -> dict[str, str]:
    """The environment of a process whose wall clock is set by a file of the chapter."""
    return {
        "LD_PRELOAD": library() or "",
        "FAKETIME_TIMESTAMP_FILE": f"{{directory}}/{name}",
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def missing() -> str | None:
    """Why no clock can be faked on this machine; None if it can."""
    return None if library() else "libfaketime is not installed (apt-get install faketime)"


def library() -> str | None:
    """The path of libfaketime, if it is installed."""
    found = (str(path) for place in _PLACES for path in Path("/").glob(place[1:]))
    return next(found, None)


async def strike(stage: Stage, rng: Random) -> None:
    """Set the clock that all processes share, as on one machine."""
    before = {id(one): _told(one) for one in stage.replicas.running}
    hours = rng.choice(_HOURS)
    set_clock(stage.directory / "clock", f"{hours:+d}h")
    began = time.monotonic()
    await stage.rest(0.5 + rng.random())
    seconds = time.monotonic() - began
    for one in stage.replicas.running:
        lines = _told(one) - before[id(one)]
        if lines > _A_SECOND_OF_LOG * (seconds + 1):
            stage.remarks.append(f"{lines} lines of log within {seconds:.1f} s of a jump by {hours} h: {one}")
    set_clock(stage.directory / "clock", "+0")


def set_clock(clock: Path, offset: str) -> None:
    """Set the clock atomically: libfaketime ends a process that finds the file empty at its first read."""
    written = clock.with_suffix(".new")
    written.write_text(f"{offset}\n")
    written.replace(clock)


def _told(one: Daemon) -> int:
    """How many lines its log has, without debug lines."""
    return sum(line.get("level") != "debug" for line in one.lines)


FAULT = Fault(
    "clock",
    "wall clock jumps an hour either way",
    "no storm of rounds, no early or endless retry",
    strike,
    Setting(environ=faked_by("clock")),
    most=10,
    missing=missing,
)
