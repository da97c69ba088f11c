"""One of two daemons dies without warning, or wakes up after its lease has expired."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from poller.redis.client import REPLY_TIMEOUT
from poller.store.keys import FeedKeys
from tests.harness.processes import daemon
from tests.harness.scene import RESOURCES, lease, scene
from tests.harness.waiting import lasting, patience, strain
from tests.proxy import proxied

if TYPE_CHECKING:
    from pathlib import Path

_SLACK = timedelta(seconds=3)  # for the rounds themselves, on a busy machine


async def test_the_other_takes_over_within_the_lease(tmp_path: Path, store: str) -> None:
    """When one of two daemons is killed, the other polls all feeds as soon as the leases expire."""
    async with scene(tmp_path, store=store) as played:
        ttl = timedelta(seconds=strain())
        config = played.config(ttl=f"{ttl / timedelta(milliseconds=1):.0f}ms")
        async with daemon(config) as killed, daemon(config) as other:
            gone = await killed.started()
            owners = await played.shared(2, 2)
            theirs = [resource for resource in RESOURCES if owners[lease(resource)] == gone]
            await killed.polled(theirs)
            since = len(other.lines)
            await killed.kill()
            at = datetime.now(UTC)
            await other.polled(theirs, since=since)
            firsts = _firsts(other.rounds(since=since), theirs)
            assert max(datetime.fromisoformat(line["at"]) for line in firsts) - at < ttl + _SLACK * strain()
            verdict = await played.caught_up()
    assert verdict.clean, verdict


@pytest.mark.thorough
async def test_who_slept_through_its_lease_is_refused(tmp_path: Path, store: str) -> None:
    """A daemon suspended past its lease after planning has its commit rejected, and nothing is doubled."""
    async with (
        scene(tmp_path, store=store) as played,
        proxied(store) as proxy,
        daemon(played.config("sleeper", store=proxy.url, ttl=lasting(2))) as sleeper,
    ):
        await sleeper.polled(RESOURCES)
        snapshots = FeedKeys.of("poller", "acme/employmentUnavailabilities").snapshots
        planning = proxy.hold_reply(to=f"HMGET\r\n${len(snapshots)}\r\n{snapshots}\r\n".encode())
        async with patience("a plan to be made"):
            await planning.struck.wait()
        sleeper.send(signal.SIGSTOP)
        asleep = time.monotonic()
        planning.freed.set()
        async with daemon(played.config("other", ttl=lasting(10))) as other:  # loses no lease of its own meanwhile
            name = await other.started()
            await other.polled(RESOURCES)
            await played.caught_up()
            since = len(sleeper.lines)
            sleeper.send(signal.SIGCONT)
            # On a busy machine the daemon sleeps longer than the reply timeout and drops the plan without a commit.
            if time.monotonic() - asleep < REPLY_TIMEOUT.total_seconds() - 1:
                told = await sleeper.until(
                    lambda line: "commit rejected, nothing written" in (line.get("error") or ""),
                    "its commit to be refused",
                    since=since,
                )
                assert f" to {name}; " in told["error"]
            await played.shared(2, 2)
            verdict = await played.caught_up()
    assert verdict.clean, verdict
    assert [line["error"] for line in other.rounds() if not line["ok"]] == []


def _firsts(rounds: list[dict[str, str]], resources: list[str]) -> list[dict[str, str]]:
    """The first round of each of these feeds."""
    feeds = {f"acme/{resource}" for resource in resources}
    return list({line["feed"]: line for line in reversed(rounds) if line["feed"] in feeds}.values())
