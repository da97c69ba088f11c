"""Laws of :mod:`poller.sandbox.program`, as a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.harness.waiting import strain

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = """
import asyncio, functools
from poller.sandbox.program import run_sandbox
asyncio.run(run_sandbox(port=0, records=50, changes_per_second={rate}, seed=5, token="t",
    say=functools.partial(print, flush=True)))
print("stopped")
"""


@contextmanager
def sandbox(rate: float = 0) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    command = [sys.executable, "-W", "error", "-c", PROGRAM.format(rate=rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            told = re.fullmatch(r"sandbox API on (http://127\.0\.0\.1:\d+) \(token: t\); .*/_sandbox/log\n", line)
            assert told is not None, line
            headers = {"authorization": "Bearer t"}
            with httpx.Client(base_url=told[1], headers=headers, trust_env=False) as client:
                yield process, client
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(number: signal.Signals) -> None:
    """Its first line names the address, it serves there, and a signal ends it with 0 and silently, in mid-work too."""
    with sandbox(rate=50) as (process, client):
        assert len(client.get("/employmentUnavailabilities").json()["results"]) > 20
        process.send_signal(number)
        out, err = process.communicate(timeout=10 * strain())
    assert (process.returncode, out, err) == (0, "stopped\n", "")


def test_the_same_seed_at_every_start() -> None:
    """Two starts with one seed serve the same bytes."""
    logs = []
    for _ in range(2):
        with sandbox() as (_, client):
            logs.append(client.get("/_sandbox/log").content)
    assert logs[0] == logs[1]
    assert logs[0].count(b"\n") == 52
