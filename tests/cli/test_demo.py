"""The demo as a whole: what it shows, what it accounts for, how it ends and what it leaves behind."""

from __future__ import annotations

import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil  # type: ignore[import-untyped]  # ships no types
import pytest

from tests.cli.conftest import Poller, started
from tests.harness.waiting import limited, strain

MARK = "by webhook, signature ok"


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the demo makes its directory; the path is short enough for the store's socket. Empty in the end."""
    with TemporaryDirectory(prefix="pd-") as short:
        yield Path(short)
        assert not list(Path(short).iterdir())


async def test_demo(poller: Poller, place: Path) -> None:
    """Events of several resources come by stream and by webhook, every change is accounted for, nothing is left."""
    ended = await poller("demo", "--seconds", "3", TMPDIR=str(place))
    assert ended.code == 0, ended.err
    lines = [line for line in ended.out.splitlines() if line[:2].isdigit()]
    streamed, posted = ([line for line in lines if (MARK in line) is by] for by in (False, True))
    assert len({line.split()[1] for line in streamed}) >= 3
    assert {"created", "modified"} <= {line.split()[2] for line in streamed}
    assert sorted(line.split()[2:5] for line in streamed) == sorted(line.split()[5:8] for line in posted)
    assert f"by webhook: {120 + len(posted)} events, all verified, median" in ended.out
    assert "after the stream, nothing lost, order kept" in ended.out
    assert "nothing lost: " in ended.out


def _interrupt(demo: Process) -> None:
    demo.send_signal(signal.SIGINT)


def _kill_receiver(demo: Process) -> None:
    children = psutil.Process(demo.pid).children(recursive=True)
    next(child for child in children if "receiver.py" in " ".join(child.cmdline())).kill()


@pytest.mark.parametrize(
    ("act", "code", "out", "err"),
    [(_interrupt, 0, "nothing lost: ", ""), (_kill_receiver, 1, "", "the webhook receiver ended by itself")],
)
async def test_the_end(act: Callable[[Process], None], code: int, out: str, err: str, place: Path) -> None:
    """Ctrl-C ends it with the summary, a receiver that dies with a sentence; no process and no file outlives either."""
    async with started("demo", cwd=place, TMPDIR=str(place)) as demo, limited(25):
        assert demo.stdout is not None
        while MARK.encode() not in (line := await demo.stdout.readline()):
            assert line, "it ended too early"
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) == 2
        act(demo)
        told, complained = await demo.communicate()
        assert demo.returncode == code
        assert out in told.decode()
        assert err in complained.decode()
        assert not psutil.wait_procs(children, timeout=5 * strain())[1]
