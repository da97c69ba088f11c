"""Laws of :mod:`tests.harness.forks`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.forks import Forked, forks_for
from tests.harness.waiting import blocking_until, patience
from tests.programs import for_the_block

ROOT = Path(__file__).parents[2]
KILLED = """
import asyncio, os, pathlib, signal
from tests.harness.forks import forking, forks_for

async def main():
    forks = forks_for({})
    nothing = os.open(os.devnull, os.O_WRONLY)
    forked = forks.start_with((nothing, nothing), ["sandbox", "--port=0"], cwd=pathlib.Path(), environ=os.environ)
    print(forked.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

with forking():
    asyncio.run(main())
"""


async def forked(*arguments: str, **environ: str) -> Forked:
    forks = forks_for({})
    assert forks is not None
    return await forks.start(arguments, cwd=ROOT, environ=os.environ | environ, piped=(1, 2))


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "said"),
    [
        (("--version",), {}, 0, (b"poller ", b"")),
        (("nonsense",), {}, 2, (b"", b"No such command")),
        (("check",), {"POLLER_BASE_URL": "nonsense"}, 2, (b"", b"nonsense")),
    ],
)
async def test_it_is_as_if_it_had_been_started(
    arguments: tuple[str, ...], environ: dict[str, str], code: int, said: tuple[bytes, bytes]
) -> None:
    """A forked process has its own arguments, environment, output and exit code."""
    async with for_the_block(await forked(*arguments, **environ)) as process, patience("its end"):
        out, err = await process.communicate()
    assert process.returncode == code
    for expected, found in zip(said, (out, err), strict=True):
        assert expected in found
        assert bool(expected) == bool(found)


async def test_it_dies_of_a_signal() -> None:
    """A signal ends the forked process; a later signal reaches no other process."""
    async with for_the_block(await forked("sandbox", "--port=0")) as process, patience("its end"):
        assert process.stdout is not None
        assert await process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
        assert process.returncode == -signal.SIGKILL
        process.send_signal(signal.SIGKILL)


def test_nothing_survives_the_tests() -> None:
    """When the test process is killed, its forked processes end soon after."""
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    place = Path(f"/proc/{done.stdout.split()[0]}")
    blocking_until(lambda: not place.exists(), "the process to end")
