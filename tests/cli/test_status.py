"""``poller status``: its lines, and ``--watch`` on a pipe and on a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from rich.cells import cell_len

from poller.cli.output import Line
from poller.cli.status import detail_lines, feed_lines, list_lines, subscription_lines
from poller.store.keys import SubscriptionKeys
from poller.store.registry import Registry
from poller.store.stats import Backlog
from tests.cli.commands import environment, ran
from tests.cli.conftest import Poller, Site, started
from tests.control.statuses import NAMES, NOW, feed, subscription
from tests.harness.processes import takes_sigterm
from tests.harness.waiting import patience, until
from tests.proxy import proxied

if TYPE_CHECKING:
    from pathlib import Path


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
        *subscription_lines(subscriptions, NOW, width, {}),
        *list_lines(subscriptions, NOW, width, {}),
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


def test_the_table_names_a_problem_once_and_the_details_say_more() -> None:
    """A problem is shown below the table once; the number of all older versions is a detail of the feed."""
    assert "".join(texts(list(feed_lines([feed(confirming=True)], [], 200)))).count("being confirmed") == 1
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
        " ".join(texts(list(subscription_lines([subscription("a", error="status 503")], NOW, 80, {})))).split()
    )
    assert "a: failing for 1 h; last error: status 503" in shown


def test_a_subscription_that_matches_nothing_is_shown() -> None:
    """A subscription to an unknown feed or type is reported below the table, and in the list."""
    one, text = subscription("a", state="active"), 'feeds has "acme/jobs", which is no feed of this configuration'
    for lines in (subscription_lines, list_lines):
        shown = " ".join(texts(list(lines([one], NOW, 200, {"a": [text], "gone": ["x"]}))))
        assert shown.endswith(f"a: {text}")


async def test_status_names_a_stored_subscription_that_matches_nothing(tmp_path: Path, store_url: str) -> None:
    """A stored subscription to an unknown feed and an unknown type is reported, with one line for each."""
    stored = {"id": "a", "sink": "https://sink.example.org", "feeds": ["default/jobs"], "types": ["creatd"]}
    client = Redis.from_url(store_url)
    await Registry(client, SubscriptionKeys.of("poller")).add("a", json.dumps(stored).encode(), (), NOW)
    await client.aclose()
    for command in (("status",), ("subscriptions", "list"), ("subscriptions", "show", "a")):
        ended = await ran(command, cwd=tmp_path, extra={"REDIS_URL": store_url, **SOURCE})
        shown = " ".join(ended.out.split())
        assert (ended.code, ended.err) == (0, "")
        assert 'feeds has "default/jobs", which is no feed of this configuration' in shown
        assert 'types has "creatd", which no feed of it publishes' in shown


@pytest.mark.parametrize("key", ["subscriptions}:registry", "members}:roles", "operations}:feeds"])
async def test_a_part_that_cannot_be_read_is_named_and_the_rest_is_shown(
    tmp_path: Path, store_url: str, key: str
) -> None:
    """While a key of all subscriptions, processes or feeds has another type, the rest is shown; the exit code is 1."""
    client = Redis.from_url(store_url)
    await client.set(f"poller:{{{key}", "x")
    await client.aclose()
    for form in ((), ("--json",)):
        ended = await ran(("status", *form), cwd=tmp_path, extra={"REDIS_URL": store_url, **SOURCE})
        assert ended.code == 1
        assert "default/contractTypes" in ended.out
        assert f"poller:{{{key} is a string" in " ".join((ended.err if form else ended.out).split())


TOKEN = {"API_TOKEN": "x"}
SOURCE = {"POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"}


async def test_the_socket_of_an_embedded_server_is_shown(poller: Poller, site: Site) -> None:
    """Where the store is embedded, both forms name its socket, at which other programs reach it."""
    config = ("-c", str(site.file))
    socket = f"unix://{site.file.parent}/data/valkey.sock"
    plain, lines = [await poller("status", *form, *config, **TOKEN) for form in ((), ("--json",))]
    assert (plain.code, lines.code) == (0, 0), (plain.err, lines.err)
    assert f"store{socket}" in "".join(plain.out.split())  # a long path is wrapped
    assert json.loads(lines.out.splitlines()[-1])["store"]["url"].startswith(socket)


async def test_watch_on_a_pipe(tmp_path: Path, store_url: str) -> None:
    """On a pipe one status follows another; an unavailable store is reported; Ctrl-C ends with exit code 0."""
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


async def test_watch_that_is_interrupted_early_ends_well(tmp_path: Path) -> None:
    """Ctrl-C ends ``--watch`` with 0 from its first moment: here, while its configuration is read."""
    os.mkfifo(tmp_path / "config")
    async with started("status", "--watch", "-c", "config", cwd=tmp_path) as watching, patience("the end"):
        await until(lambda: takes_sigterm(watching.pid), "the process to handle signals")
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
