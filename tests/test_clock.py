"""The clock of a process."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from poller.clock import Clock

SHOWN = "import time; from poller.clock import Clock; print(Clock().monotonic() - time.monotonic())"


def test_its_seconds_go_on_while_the_machine_sleeps() -> None:
    """Law: what a machine has slept counts; a lease ends meanwhile, and its old owner sends nothing more.

    In a time namespace CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC, as it is after a sleep.
    """
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    slept = ["unshare", "--time", "--boottime", "1000", sys.executable, "-c", SHOWN]
    done = subprocess.run(slept, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip("may not make a time namespace here")
    assert float(done.stdout) == pytest.approx(1000, abs=1), done.stderr


async def test_periodic_work_wakes_the_process_together() -> None:
    """Law: a second or more ends with a second of this process, less with a quarter of one, and short times stay.

    None ends noticeably later than was asked for.
    """
    clock, loop = Clock(), asyncio.get_running_loop()
    for unit, several in ((1.0, (1.0, 1.4, 1.6, 3.3, 60.0)), (0.25, (0.25, 0.5, 0.9))):
        ends = []
        for seconds in several:
            aligned = clock.aligned(seconds)
            assert seconds - unit <= aligned <= seconds + unit / 50
            ends.append((loop.time() + aligned) % unit)
        assert max(ends) - min(ends) < 0.02 or max(ends) - min(ends) > unit - 0.02
    assert clock.aligned(0.2) == 0.2


async def test_periodic_work_comes_at_the_moment_of_a_round() -> None:
    """Law: regular work ends where a round has begun, and whole seconds later.

    A round at another moment changes that no sooner than a minute later.
    """
    clock, loop = Clock(), asyncio.get_running_loop()
    began = loop.time() - 0.3

    def apart(moment: float) -> float:
        ends = loop.time() + clock.aligned(2.0) - moment
        return abs(ends - round(ends))

    clock.align(loop.time() - began)
    assert apart(began) < 0.02
    clock.align(loop.time() - began - 0.5)
    clock.align(loop.time() - began - 59.5)
    assert apart(began) < 0.02
    clock.align(loop.time() - began - 60.5)
    assert apart(began + 0.5) < 0.02
