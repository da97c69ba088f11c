"""``poller demo``: its output, its end, and what it leaves behind."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import msgspec
import psutil  # type: ignore[import-untyped]  # ships no types
import pytest

from poller.cli.demo import stream_line, webhook_line
from poller.cli.event_lines import EventData, EventView
from tests.cli.conftest import Called, Poller, started
from tests.documents import ROOT
from tests.harness.processes import takes_sigterm
from tests.harness.waiting import limited, strain, until
from tests.servers import free_port
from tests.test_documents import OTHER, answer_to, program

MARK = "by webhook, signature ok"


@pytest.fixture
def place() -> Iterator[Path]:
    """The directory for the demo, with a path short enough for the store's socket; empty at the end."""
    with TemporaryDirectory(prefix="pd-") as short:
        yield Path(short)
        assert not list(Path(short).iterdir())


def _changes(said: str) -> tuple[list[list[str]], list[list[str]]]:
    """The words of each line about a change: those by stream, and those by webhook."""
    lines = [line for line in said.splitlines() if line[:2].isdigit()]
    streamed, posted = ([line.split() for line in lines if (MARK in line) is by] for by in (False, True))
    return streamed, posted


def _are_of_all_kinds(said: str) -> bool:
    streamed, _ = _changes(said)
    return len({words[1] for words in streamed}) >= 3 and {"created", "modified"} <= {words[2] for words in streamed}


async def test_demo(place: Path) -> None:
    """Events of several resources arrive by stream and by webhook until Ctrl-C; the last line counts them.

    It serves the page at the address it prints. No file and no process is left.
    """
    async with started("demo", cwd=place, TMPDIR=str(place)) as demo, limited(40):
        assert demo.stdout is not None
        said = ""
        while not _are_of_all_kinds(said):
            line = await demo.stdout.readline()
            assert line, "the demo ended too early"
            said += line.decode()
        (page,) = re.findall(r"^The page is on (http://127\.0\.0\.1:\d+/)$", said, re.MULTILINE)
        async with aiohttp.ClientSession() as session, session.get(page) as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")
            assert "contractTypes" in await answer.text()
        children = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(signal.SIGINT)
        rest, complained = await demo.communicate()
        assert demo.returncode == 0, complained.decode()
    streamed, posted = _changes(said := said + rest.decode())
    assert sorted(words[2:5] for words in streamed) == sorted(words[5:8] for words in posted)
    assert f"The demo ended: {len(streamed)} changes by stream, {len(posted)} by webhook." in said
    assert not psutil.wait_procs(children, timeout=5 * strain())[1]


async def test_it_ends_by_itself(poller: Poller, place: Path) -> None:
    """With ``--seconds`` the demo ends by itself with exit code 0, and no file is left."""
    ended = await poller("demo", "--seconds", "0.5", TMPDIR=str(place))
    assert (ended.code, "\nThe demo ended: " in ended.out) == (0, True), ended


async def test_it_can_be_interrupted_early(place: Path) -> None:
    """Ctrl-C ends the demo with 0 from its first moment, and no file is left."""
    async with started("demo", cwd=place, TMPDIR=str(place)) as demo, limited(40):
        await until(lambda: takes_sigterm(demo.pid), "the process to handle signals")
        demo.send_signal(signal.SIGINT)
        assert await demo.wait() == 0


def test_what_it_keeps_is_new(called: Called, tmp_path: Path) -> None:
    """``--keep`` follows no link that another user may have left in the directory, even to a file that is not there."""
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "receiver.py").symlink_to(tmp_path / "elsewhere")
    refused = called("demo", "--seconds", "0", "--keep", str(tmp_path / "trial"))
    assert (refused.code, "File exists" in refused.err) == (2, True)
    assert not (tmp_path / "elsewhere").exists()


async def test_the_receiver_that_it_keeps(poller: Poller, place: Path, tmp_path: Path) -> None:
    """The receiver that ``--keep`` leaves verifies by the secret beside it, and prints an event."""
    kept, port = tmp_path / "trial", str(free_port())
    assert (await poller("demo", "--seconds", "0", "--keep", str(kept), TMPDIR=str(place))).code == 0
    file = kept / "receiver.py"
    file.write_text(file.read_text("utf-8").replace("8000", port), "utf-8")
    secret = (kept / "secret").read_text("utf-8")
    with program(sys.executable, str(file), PYTHONPATH=str(ROOT)) as receiver:
        url = f"http://127.0.0.1:{port}/"
        assert (await answer_to(url, OTHER)).status == 401
        assert (await answer_to(url, OTHER, secret)).status == 204
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "org.example.api.contractType.created.v1 K 1\n"


async def test_a_webhook_that_is_refused_ends_it(place: Path) -> None:
    """A request with another signature ends the demo with an error that says why, and no process is left."""
    async with started("demo", cwd=place, TMPDIR=str(place)) as demo, limited(25):
        assert demo.stdout is not None
        said = ""
        while MARK not in said:
            line = await demo.stdout.readline()
            assert line, "the demo ended too early"
            said += line.decode()
        children = psutil.Process(demo.pid).children(recursive=True)
        (receiver,) = re.findall(r"to a receiver on (http://127\.0\.0\.1:\d+),", said)
        assert (await answer_to(receiver, OTHER)).status == 401
        _, complained = await demo.communicate()
        assert (demo.returncode, "a webhook was refused: no signature matches" in complained.decode()) == (1, True)
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
