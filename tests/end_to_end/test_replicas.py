"""Several daemons on one store share the leases evenly, and a leaving one hands over without a visible gap."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.processes import Daemon, daemon, ran
from tests.harness.scene import RESOURCES, lease, scene
from tests.harness.subscribed import FEEDS, Wish, subscribed
from tests.harness.waiting import patience, strain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_LONG = "10s"  # long, so that waiting for a lease to expire would show
_SOON = timedelta(seconds=4)  # a second on a machine that is not busy


@pytest.mark.thorough
async def test_feeds_are_spread_evenly_and_handed_over(tmp_path: Path, store: str) -> None:
    """Four feeds are shared 2 and 2, then 2, 1 and 1; the feeds of a stopped process are soon polled by another."""
    async with scene(tmp_path, store=store) as played:
        config = played.config(ttl=_LONG)
        async with AsyncExitStack() as stack:
            daemons = [await stack.enter_async_context(daemon(config)) for _ in range(2)]
            await played.shared(2, 2)
            daemons.append(await stack.enter_async_context(daemon(config)))
            owners = await played.shared(2, 1, 1)
            names = {await one.started(): one for one in daemons}
            assert set(owners.values()) == set(names)
            feeds, members = await _status(config)
            assert feeds == {f"acme/{resource}": owners[lease(resource)] for resource in RESOURCES}
            assert {one["member"]: one["feeds"] for one in members} == {
                name: list(owners.values()).count(name) for name in names
            }
            assert {tuple(one["roles"]) for one in members} == {("poll", "deliver")}
            leaver = owners[lease(RESOURCES[0])]
            theirs = [resource for resource in RESOURCES if owners[lease(resource)] == leaver]
            others = [one for name, one in names.items() if name != leaver]
            await _leaves(names[leaver], others, theirs)
            await played.shared(2, 2)
            verdict = await played.caught_up()
    assert verdict.clean, verdict


async def _leaves(leaver: Daemon, others: Sequence[Daemon], feeds: Sequence[str]) -> None:
    """A daemon that gets SIGTERM exits with 0, and each of its feeds is soon polled by another daemon."""
    since = [len(one.lines) for one in others]
    leaver.send(signal.SIGTERM)
    assert await leaver.left() == 0, leaver
    stopped = datetime.fromisoformat(next(line["at"] for line in leaver.lines if line.get("event") == "stopping"))
    for feed in feeds:
        polled = [
            asyncio.create_task(one.polled([feed], since=first)) for one, first in zip(others, since, strict=True)
        ]
        async with patience(f"a round of {feed}"):
            await asyncio.wait(polled, return_when=asyncio.FIRST_COMPLETED)
        for task in polled:
            task.cancel()
        await asyncio.gather(*polled, return_exceptions=True)
        rounds = [
            line
            for one, first in zip(others, since, strict=True)
            for line in one.rounds(since=first)
            if line["feed"] == f"acme/{feed}"
        ]
        first_round = min(datetime.fromisoformat(line["at"]) for line in rounds)
        assert first_round - stopped < _SOON * strain(), rounds


@pytest.mark.thorough
async def test_a_rolling_restart_loses_and_doubles_nothing(tmp_path: Path, store: str) -> None:
    """While three daemons are replaced in turn under changes each sink gets every event once and in order."""
    # A short timeout would cause repeats on a busy machine, which are no fault of a restart.
    wishes = [Wish(name, lines='timeout = "10s"') for name in ("one", "two")]
    async with subscribed(tmp_path, wishes, store=store, changes_per_second=30) as played:
        config = played.config(ttl=_LONG)
        pairs = [f"poller:{{acme/{feed}}}:sub:{wish.sink}:lease" for feed in FEEDS for wish in wishes]
        async with AsyncExitStack() as stack:
            running = [await stack.enter_async_context(daemon(config)) for _ in range(3)]
            await played.played.shared(2, 1, 1, leases=pairs)
            for wish in wishes:
                await played.more(wish.sink, 10)
            for old in tuple(running):
                fresh = await stack.enter_async_context(daemon(config))
                await fresh.started()
                old.send(signal.SIGTERM)
                assert await old.left() == 0, old
                await played.more("one", 10)
                running = [*running[1:], fresh]
            await played.played.shared(2, 1, 1, leases=pairs)
            verdicts = await played.caught_up()
            said = [line for one in running for line in one.lines if line.get("level") in ("warning", "error")]
    for found in verdicts.values():
        assert found.clean, found
        assert not found.repeats, found
    assert not said


async def _status(config: Path) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The owner of each feed, and the processes, from ``poller status --json``."""
    _, out = await ran("--config", str(config), "status", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    (members,) = (line["members"] for line in lines if "members" in line)
    return {line["feed"]: line["owner"] for line in lines if "feed" in line}, members
