"""``poller demo``: its output, its end, and what it leaves behind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import psutil  # type: ignore[import-untyped]  # ships no types
import pytest

from poller.cli.demo import stream_line, webhook_line
from poller.cli.event_lines import EventData, EventView
from tests.cli.conftest import Poller, started
from tests.harness.waiting import limited, strain
from tests.programs import Running

MARK = "by webhook, signature ok"


@pytest.fixture
def place() -> Iterator[Path]:
    """The directory for the demo, with a path short enough for the store's socket; empty at the end."""
    with TemporaryDirectory(prefix="pd-") as short:
        yield Path(short)
        assert not list(Path(short).iterdir())


async def test_demo(poller: Poller, place: Path) -> None:
    """Events of several resources arrive by stream and by webhook; the last line counts them; no file is left."""
    ended = await poller("demo", "--seconds", "3", TMPDIR=str(place))
    assert ended.code == 0, ended.err
    lines = [line for line in ended.out.splitlines() if line[:2].isdigit()]
    streamed, posted = ([line for line in lines if (MARK in line) is by] for by in (False, True))
    assert len({line.split()[1] for line in streamed}) >= 3
    assert {"created", "modified"} <= {line.split()[2] for line in streamed}
    assert sorted(line.split()[2:5] for line in streamed) == sorted(line.split()[5:8] for line in posted)
    assert f"The demo ended: {len(streamed)} changes by stream, {len(posted)} by webhook." in ended.out


def _interrupt(demo: Running) -> None:
    demo.send_signal(signal.SIGINT)


def _kill_receiver(demo: Running) -> None:
    children = psutil.Process(demo.pid).children(recursive=True)
    next(child for child in children if "receiver.py" in " ".join(child.cmdline())).kill()


@pytest.mark.parametrize(
    ("act", "code", "out", "err"),
    [(_interrupt, 0, "The demo ended: ", ""), (_kill_receiver, 1, "", "the webhook receiver ended by itself")],
)
async def test_the_end(act: Callable[[Running], None], code: int, out: str, err: str, place: Path) -> None:
    """Ctrl-C ends the demo with exit code 0, a receiver that dies with an error; no process is left."""
    async with started("demo", cwd=place, TMPDIR=str(place)) as demo, limited(25):
        assert demo.stdout is not None
        while MARK.encode() not in (line := await demo.stdout.readline()):
            assert line, "the demo ended too early"
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) == 2
        act(demo)
        told, complained = await demo.communicate()
        assert demo.returncode == code
        assert out in told.decode()
        assert err in complained.decode()
        assert not psutil.wait_procs(children, timeout=5 * strain())[1]


NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)


def test_the_two_lines_of_an_event() -> None:
    """Kind, record and revision are in the same columns of both lines; change and delay follow."""
    content = EventData(2, "delta", msgspec.Raw(b'{"id":"abc","name":"x"}'))
    event = EventView(
        "1", "p.contractType.modified.v1", "abcdef", NOON.isoformat(), "2025-03-01T12:00:01.000Z", content
    )
    at = NOON + timedelta(seconds=1, milliseconds=250)
    lines = [
        stream_line(event, "contractTypes", at),
        webhook_line(event, at - timedelta(milliseconds=7), at),
        webhook_line(event, None, at),
    ]
    texts = ["".join(text for text, _ in line) for line in lines]
    assert texts == [
        '12:00:01  contractTypes               modified  abcd  r2  name: "x"',
        "12:00:01  by webhook, signature ok    modified  abcd  r2  1.25 s, 7 ms after the stream",
        "12:00:01  by webhook, signature ok    modified  abcd  r2  1.25 s",
    ]


def test_the_change_is_seen_on_80_columns() -> None:
    """On 80 columns the widest line shows the changed field and the start of its old value."""
    before, after = msgspec.Raw(b'{"reason":"holiday"}'), msgspec.Raw(b'{"reason":"sick leave"}')
    content = EventData(2, "delta", after, before, ("/reason",))
    event = EventView("1", "p.x.modified.v1", "abcdef", NOON.isoformat(), NOON.isoformat(), content)
    text = "".join(text for text, _ in stream_line(event, "employmentUnavailabilities", NOON))
    assert 'reason: "holiday" →' in text[:80]
