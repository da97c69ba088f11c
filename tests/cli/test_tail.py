"""``poller tail`` with its choices, and operational events; the real program on a real store."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

import pytest

from poller.cli.tail import start_of
from poller.delivery.operational_events import OperationalEvent, OperationType, announcement_bytes
from poller.errors import ConfigurationError
from poller.store.keys import FeedKeys, operations_key
from tests.cli.conftest import Called, started
from tests.harness.waiting import patience, until
from tests.stores import looking

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis

FEED = "default/contractTypes"
AT = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)


def event(kind: str, subject: str, *changed: str) -> bytes:
    return json.dumps(
        {
            "id": "1",
            "type": f"org.example.api.contractType.{kind}.v1",
            "subject": subject,
            "time": "2026-03-02T08:15:00.000Z",
            "recordedtime": "2026-03-02T08:15:00.000Z",
            "data": {"revision": 1, "cause": "delta", "changed": changed, "record": {"reason": "x"}},
        }
    ).encode()


async def test_it_shows_the_chosen_events(tmp_path: Path, store_url: str) -> None:
    """Only the chosen events of the feed and of the daemon are shown, each on a line.

    An event of another day shows its date.
    """
    environ = {"REDIS_URL": store_url, "POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"}
    with looking(store_url) as client:
        for one in (event("created", "a"), event("modified", "b", "/name"), event("modified", "c", "/reason")):
            client.xadd(FeedKeys.of("poller", FEED).events, {"data": one})
        paused = announcement_bytes(
            OperationalEvent(OperationType.FEED_PAUSED, FEED, AT, "moving \x1b[31m house", {"by": "anna"})
        )
        client.xadd(operations_key("poller"), {"data": paused})
    wanted = ("--changed", "/reason", "--from", "earliest")
    assert await _lines(tmp_path, environ, "contractTypes", *wanted, count=1) == [
        f'2026-03-02 08:15:00.000  {FEED}  modified  c         r1  reason: … → "x"'
    ]
    all_of = await _lines(tmp_path, environ, "--operations", "--from", "earliest", count=1)
    assert all_of == [f"2026-03-02 08:15:00.000  operations  feed.paused  {FEED}  moving [31m house"]
    both = ("contractTypes", "--operations", "--type", "created", "--type", "poller.feed.*", "--json")
    shown = await _lines(tmp_path, environ, *both, "--from", "earliest", count=2)
    assert {json.loads(line)["subject"] for line in shown} == {"a", FEED}


def test_the_start() -> None:
    """A moment or a duration includes the events at it; an id means the entries after it."""
    for same in ("now", "earliest", "5-7", "5"):
        assert start_of(same, AT) == same
    since = f"1772439299999-{2**64 - 1}"
    assert start_of("0s", AT) == start_of("2026-03-02T08:15:00Z", AT) == since
    assert start_of("2h", AT + timedelta(hours=2)) == since
    with pytest.raises(ConfigurationError, match='--from is "soon"'):
        start_of("soon", AT)


REFUSED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--type", "creatd"), 'did you mean "created"?'),
    (("contractTypes", "--type", "*.achievement.*"), '--type "*.achievement.*": expected a type that a feed publishes'),
    (("--type", "poller.feed.held.v1"), "expected a type"),
    (("--operations", "--type", "created"), "expected a type"),
    (("--changed", "/reason", "--type", "created"), "--changed chooses among the modified events"),
    (("--changed", "/reason", "--operations"), "--changed chooses among the modified events of feeds: leave out"),
)


def test_an_impossible_choice_is_refused(called: Called) -> None:
    """A choice that no event can match is refused with a suggestion, before the store is read."""
    for arguments, says in REFUSED:
        ended = called("tail", *arguments, POLLER_BASE_URL="https://api.example.org")
        assert (ended.code, ended.out) == (2, ""), arguments
        assert says in ended.err, arguments


async def test_it_reports_what_it_waits_for(tmp_path: Path, store_url: str) -> None:
    """Standard error says that no process polls, and which events it waits for."""
    environ = {"REDIS_URL": store_url, "POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"}
    wanted = ("contractTypes", "--type", "removed", "--subject", "7d9f3a52")
    async with started("tail", *wanted, cwd=tmp_path, **environ) as tail, patience("lines of poller tail"):
        assert tail.stderr is not None
        assert "no process polls" in (await tail.stderr.readline()).decode()
        told = (await tail.stderr.readline()).decode()
        assert "waiting for events of default/contractTypes of type removed of record 7d9f3a52" in told
        with looking(store_url) as client:
            client.xadd(FeedKeys.of("poller", FEED).events, {"data": event("removed", "7d9f3a52-1")})
        assert tail.stdout is not None
        assert b"removed" in await tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        assert await tail.wait() == 0
        assert await tail.stderr.read() == b""


async def test_it_reports_once_what_it_waits_for(tmp_path: Path, store_url: str) -> None:
    """Standard error says once, not again and again, that nothing has come."""
    environ = {"REDIS_URL": store_url, "POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"}
    with looking(store_url) as client:
        async with started("tail", "contractTypes", cwd=tmp_path, **environ) as tail, patience("poller tail to wait"):
            assert tail.stderr is not None
            await tail.stderr.readline()
            assert b"waiting for events" in await tail.stderr.readline()
            waits = _waits(client)
            await until(lambda: _waits(client) >= waits + 2, "the command to wait again")
            tail.send_signal(signal.SIGINT)
            assert (await tail.wait(), await tail.stderr.read()) == (0, b"")


def _waits(client: Redis) -> int:
    stats = cast("dict[str, dict[str, int]]", client.info("commandstats"))
    return stats.get("cmdstat_xread", {}).get("calls", 0)


async def _lines(cwd: Path, environ: dict[str, str], *arguments: str, count: int) -> list[str]:
    """The first lines of ``poller tail``; it exits with 0 and has written no other line."""
    async with started("tail", *arguments, cwd=cwd, **environ) as tail, patience("lines of poller tail"):
        assert tail.stdout is not None
        found = [(await tail.stdout.readline()).decode().rstrip("\n") for _ in range(count)]
        tail.send_signal(signal.SIGINT)
        rest, _ = await asyncio.gather(tail.stdout.read(), tail.wait())
        assert (tail.returncode, rest) == (0, b"")
    return found
