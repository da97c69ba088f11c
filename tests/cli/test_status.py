"""``poller status``: its lines, and ``--watch`` on a pipe and on a terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from rich.cells import cell_len

from poller.changes.plan import RoundCounts
from poller.cli.output import Line
from poller.cli.status import detail_lines, feed_lines, list_lines, subscription_lines
from poller.control.problems import confirmation_text, feed_problems, progress_text
from poller.control.status import FeedStatus, SubscriptionStatus
from poller.source.feed import Progress
from poller.store.stats import Backlog
from tests.cli.commands import environment
from tests.cli.conftest import started
from tests.harness.waiting import patience
from tests.proxy import proxied

if TYPE_CHECKING:
    from pathlib import Path


NOW = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
NAMES = (
    "acme/contractTypes",
    "a-source-of-thirty-two-characters/" + "employmentUnavailabilities" * 3,
    "acme/" + "介" * 60,
)


def feed(name: str = NAMES[0], **differing: Any) -> FeedStatus:
    usual: dict[str, Any] = {
        "feed": name,
        "state": "ok",
        "mode": "reconcile",
        "error": None,
        "good_at": "2026-03-02T08:15:00.000Z",
        "good_age_seconds": 3540.0,
        "round": RoundCounts(1200, 123_456_789, 123_456, 123_456, 123_456),
        "records": 123_456_789,
        "events": 123_456_789,
        "stream_length": 123_456_789,
        "quarantined": 7,
        "delta_token": True,
        "paging": "an empty page",
        "delta_token_on": "the first page",
        "refused": ("limit (taken: 250)",),
        "listings": 0,
        "oldest_seconds": None,
        "lost": None,
        "lost_at": None,
        "lost_age_seconds": None,
        "lease": "held",
        "lease_seconds": 3.0,
        "stream_bytes": 123_456_789,
        "next_at": "2026-03-02T09:15:00.000Z",
        "next_seconds": 3540.0,
    }
    return FeedStatus(**(usual | differing))


def subscription(name: str, **differing: Any) -> SubscriptionStatus:
    usual: dict[str, Any] = {
        "subscription": name,
        "origin": "file",
        "sink": "https://" + "rostering." * 12 + "example.org/介介介介",
        "state": "failing",
        "paused_by": None,
        "reason": None,
        "since": "2026-03-02T07:15:00Z",
        "until": None,
        "handshake": None,
        "delivered": 1,
        "failed": 2,
        "lag_entries": 123_456_789,
        "lag_seconds": 3540.0,
        "parked": 1000,
        "dead_letters": 123_456,
        "lost": 0,
        "all_feeds": False,
        "feeds": tuple(Backlog(one, 7, 3540.0, 1, 2) for one in NAMES),
        "error": "status 503 after 0.1 s: " + "x" * 200 + "\x1b[31m",
    }
    return SubscriptionStatus(**(usual | differing))


def texts(lines: list[Line]) -> list[str]:
    return ["".join(part for part, _ in line) for line in lines]


@pytest.mark.parametrize("width", [80, 40, 24])
def test_it_fits_the_terminal(width: int) -> None:
    """No line is wider than the terminal, in cells; foreign text cannot control the terminal."""
    failing = {"state": "failing", "error": "GET /x: the API answered 503: " + "介\x1b[31m" * 90}
    feeds = [feed(name, **failing) for name in NAMES]
    subscriptions = [subscription("a" * 64), subscription("b")]
    shown = [
        *feed_lines(feeds, subscriptions, width),
        *detail_lines(feeds[2], width),
        *subscription_lines(subscriptions, NOW, width),
        *list_lines(subscriptions, NOW, width),
    ]
    assert max(map(cell_len, texts(shown))) <= width
    assert "\x1b" not in "".join(texts(shown))


def test_80_columns_show_everything() -> None:
    """On 80 columns no column is left out, and the lag is the longest of all subscriptions."""
    behind = [subscription("a"), subscription("b", feeds=(Backlog(NAMES[0], 1, 7200.0, 0, 0),))]
    shown = texts(list(feed_lines([feed()], behind, 80)))
    assert shown[0].split() == ["feed", "state", "mode", "age", "next", "records", "lag"]
    assert shown[1].split() == [NAMES[0], "ok", "reconcile", "59", "min", "59", "min", "123.5", "M", "2", "h"]
    assert shown[3].split() == ["stored", "of", "last", "round", "events", "in", "stream", "size"]


def test_a_problem_is_shown_with_its_remedy() -> None:
    """A pause is shown with who and why, a failure with its remedy."""
    paused = feed(state="paused", paused_by="anna", paused_reason="moving", paused_age_seconds=7200.0)
    assert list(feed_problems(paused)) == [f"paused by anna for 2 h: moving; poller resume {NAMES[0]}"]
    denied = feed(state="failing", error="GET /x: the API answered 401")
    assert list(feed_problems(denied)) == [
        "GET /x: the API answered 401 (is the credential in auth right, and not expired?)"
    ]
    assert list(feed_problems(feed(state="failing", error="odd"))) == ["odd"]


def test_a_long_round_and_a_confirmation_are_shown() -> None:
    """A long round and a confirmation are stated in words below the table."""
    one = feed(progress=Progress("baseline", 40, 4000, 75.0), confirming=True)
    assert list(feed_problems(one)) == [progress_text(one), confirmation_text(one)]
    assert "".join(texts(list(feed_lines([one], [], 200)))).count("being confirmed") == 1


@pytest.mark.parametrize("state", ["held", "paused"])
def test_held_removals_are_shown_until_released(state: str) -> None:
    """Held removals are shown with number, age and remedy, once, even after a good delta or with a pause."""
    reason = f"12 of 60 records are missing: let it through with: poller release {NAMES[0]}"
    held = feed(state=state, held_reason=reason, held_age_seconds=7200.0)
    assert f"held for 2 h: {reason}" in list(feed_problems(held))
    at_once = msgspec.structs.replace(held, state="held", error=reason)
    assert list(feed_problems(at_once)) == [f"held for 2 h: {reason}"]
    later = msgspec.structs.replace(at_once, error="odd")
    assert list(feed_problems(later)) == [f"held for 2 h: {reason}", "odd"]
    of_before = msgspec.structs.replace(at_once, held_age_seconds=None)
    assert list(feed_problems(of_before)) == [f"held: {reason}"]


@pytest.mark.parametrize(("number", "what"), [(1, "a record whose"), (3, "3 records whose")])
def test_records_without_an_id_are_shown_with_the_consequence(number: int, what: str) -> None:
    """Records without an id are shown with their number, the consequence and where to look."""
    [told] = feed_problems(feed(unidentified=number))
    assert f"held {what} id cannot be read, so no record was removed" in told
    assert f"poller dead-letters list {NAMES[0]}" in told


def test_versions_that_are_held_back_are_shown() -> None:
    """Versions that are held back are a problem; the number of all older versions is a detail of the feed."""
    [told] = feed_problems(feed(held_versions=3, backwards=81))
    assert told.startswith("3 versions older than the known ones are held back")
    assert list(feed_problems(feed(backwards=81))) == []
    shown = " ".join(" ".join(texts(list(detail_lines(feed(backwards=81), 80)))).split())
    assert "going back 81 versions were older than the known ones" in shown


@pytest.mark.parametrize(("seconds", "shown"), [(12.0, "12 s"), (-3.0, "now"), (None, "-")])
def test_the_next_round_is_shown(seconds: float | None, shown: str) -> None:
    """The next round is shown as a time span, as due, or as ``-`` if no process polls."""
    [_, row, *_] = texts(list(feed_lines([feed(next_seconds=seconds, records=5)], [], 80)))
    assert f"  {shown}" in row


def test_a_failing_subscription_shows_its_last_error() -> None:
    """A failing subscription shows since when, and the last error."""
    shown = " ".join(
        " ".join(texts(list(subscription_lines([subscription("a", error="status 503")], NOW, 80)))).split()
    )
    assert "a: failing for 1 h; last error: status 503" in shown


SOURCE = {"POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"}


async def test_watch_on_a_pipe(tmp_path: Path, store_url: str) -> None:
    """On a pipe one status follows another; a store that goes away is reported; Ctrl-C ends it with exit code 0."""
    async with (
        proxied(store_url) as proxy,
        started("status", "--watch", "0.1", cwd=tmp_path, REDIS_URL=proxy.url, **SOURCE) as watching,
    ):
        out = watching.stdout
        assert out is not None
        for sign in (b"no problems\n", b"no problems\n"):
            await _until(out, sign)
        proxy.reset(to=b"INFO", times=2)
        await _until(out, b"store unavailable, retrying")
        await _until(out, b"no problems\n")
        watching.send_signal(signal.SIGINT)
        assert await watching.wait() == 0


async def test_watch_on_a_terminal(tmp_path: Path, store_url: str) -> None:
    """On a terminal a status replaces the one before it."""
    ours, theirs = os.openpty()
    environ = environment({"REDIS_URL": store_url, "TERM": "xterm", "COLUMNS": "80", "LINES": "40", **SOURCE})
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "poller", "status", "--watch", "0.1"),
        cwd=tmp_path,
        env=environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        async with patience("three tables"):
            written = b""
            while written.count(b"default/contractTypes") < 5:
                written += await asyncio.to_thread(os.read, ours, 65536)
        assert b"\x1b[1A" in written  # a line up
        process.send_signal(signal.SIGINT)
        draining = asyncio.create_task(asyncio.to_thread(_drained, ours))
        assert await process.wait() == 0
        await draining
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)


def _drained(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:  # Linux says so where the other side is closed
        pass


async def _until(out: asyncio.StreamReader, sign: bytes) -> None:
    async with patience(f"{sign!r}"):
        while sign not in await out.readline():
            pass
