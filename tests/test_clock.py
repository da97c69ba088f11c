"""The clock of a process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
