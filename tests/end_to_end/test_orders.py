"""Commands to feeds that real daemons poll are carried out and answered, by the next owner if the first one dies."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

from poller.cli.options import utc_now
from poller.config.load import load
from poller.control.commands import CommandKind, CommandResult, run_command
from poller.store.commands import CommandQueue
from tests.cli.commands import Program
from tests.harness.clock import StubClock
from tests.harness.processes import daemon
from tests.harness.scene import RESOURCES, lease, scene
from tests.harness.waiting import lasting, patience, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.scene import Scene

FEED = "acme/contractTypes"


async def test_a_feed_is_paused_and_polled_again(tmp_path: Path, store: str) -> None:
    """Each command prints the daemon's answer and the round's outcome; no process reads a paused feed."""
    poller = Program()
    async with scene(tmp_path, store=store, changes_per_second=0) as played:
        config = played.config(ttl=lasting(2), interval="1h")
        async with daemon(config) as running:
            member = await running.started()
            await running.polled(RESOURCES)
            done = await poller.run("resync", FEED, "--wait", "-c", str(config))
            assert (done.code, done.err) == (0, "")
            assert done.out.splitlines()[2].startswith(f"{FEED}: resync, ")
            paused = await poller.run("pause", FEED, "--reason", "moving house", "-c", str(config))
            assert (paused.code, paused.err) == (0, "")
            assert paused.out.splitlines()[1] == f"{member}: no round was under way"
            refused = await poller.run("resync", FEED, "--wait", "-c", str(config))
            assert refused.code == 1
            assert "it is carried out when the feed is resumed" in refused.err
        once = await poller.run("once", "--json", "-c", str(config))
        modes = {line["feed"]: line for line in map(json.loads, once.out.splitlines())}
        assert (once.code, modes[FEED]["mode"], modes[FEED]["ok"]) == (0, "skipped", True)
        assert modes[FEED]["error"].endswith(" UTC: moving house")
        async with daemon(config) as running:
            await running.polled([name for name in RESOURCES if name not in FEED])
            assert not [line for line in running.rounds() if line["feed"] == FEED]
            since = len(running.lines)
            assert (await poller.run("resume", FEED, "-c", str(config))).code == 0
            await running.polled(["contractTypes"], since=since)
            assert running.rounds(since=since)[0]["mode"] == "resync"  # the resync requested while it was paused
        verdict = await played.caught_up()
    assert verdict.clean, verdict


async def test_the_next_owner_answers_for_one_that_died(tmp_path: Path, store: str) -> None:
    """If the owner dies before it answers, the next owner carries the command out once and answers."""
    async with scene(tmp_path, store=store, changes_per_second=0) as played:
        config = played.config(ttl=lasting(1), interval="1h")
        async with daemon(config) as one, daemon(config) as two:
            names = {await one.started(): one, await two.started(): two}
            owners = await played.shared(2, 2)
            owner = owners[lease("contractTypes")]
            await names[owner].polled(["contractTypes"])
            [other] = names.keys() - {owner}
            since = len(names[other].lines)
            names[owner].send(signal.SIGSTOP)
            asking = asyncio.create_task(_asked(played, config, CommandKind.RESYNC))
            waiting = CommandQueue(played.client, "poller")
            await until(lambda: _waits(waiting), "the command to be submitted")
            await names[owner].kill()
            async with patience("the other's answer"):
                answer = await asking
            assert (answer.outcome, answer.member) == ("done", other)
            assert await waiting.pending() == []
            mine = [line for line in names[other].rounds(since=since) if line["feed"] == FEED]
            modes = [line["mode"] for line in mine]
            assert (modes[0], modes.count("resync")) == ("resync", 1)
            verdict = await played.caught_up()  # while the other one lives: the first reading of a feed may be its own
    assert verdict.clean, verdict


async def _asked(played: Scene, config: Path, order: CommandKind) -> CommandResult:
    settings = load(config, {})
    return await run_command(
        played.client,
        settings,
        FEED,
        order,
        clock=StubClock(now=utc_now),
        by="a test",
        patience=settings.lease.ttl * 20,
        wait=True,
    )


async def _waits(queue: CommandQueue) -> bool:
    return bool(await queue.pending())
