"""Two delivering processes: one holds the leases, the other waits; one that wakes up late sends nothing new."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.harness.processes import daemon
from tests.harness.subscribed import Wish, subscribed

if TYPE_CHECKING:
    from pathlib import Path

_POLL = ("poller", "run", "--only", "poll")
_DELIVER = ("poller", "run", "--only", "deliver")
_CONCURRENCY = 8
_WISH = Wish("one")
_FEED = "employmentUnavailabilities"
_ONE_BY_ONE = Wish("one", lambda event: _FEED in event["source"], f'feeds = ["acme/{_FEED}"]\nconcurrency = 1')


@pytest.mark.thorough
async def test_who_was_stopped_in_the_middle_of_sending_is_replaced(tmp_path: Path, store: str) -> None:
    """When a process is suspended past its leases and resumed, all events arrive, in order except those it was sending.

    The resumed process may finish requests it had begun, so their events may be repeated beside or after the other
    process's. Nothing else is allowed, and no event arrives for the first time that way.
    """
    async with subscribed(tmp_path, [_WISH], store=store) as scene:
        config = scene.config()
        scene.sinks.mood("one", "ok=1 slow=3")
        async with daemon(config, command=_POLL), daemon(config, command=_DELIVER) as sleeper:
            await scene.more("one", 100)
            sleeper.send(signal.SIGSTOP)
            async with daemon(config, command=_DELIVER) as other:
                await other.started()
                await scene.more("one", 100)
                sleeper.send(signal.SIGCONT)
                await scene.more("one", 200)
                found = (await scene.caught_up())["one"]
    assert found.kept_in_takeover(_CONCURRENCY), found


@pytest.mark.thorough
async def test_who_was_stopped_at_rest_takes_nothing_from_the_other(tmp_path: Path, store: str) -> None:
    """When an idle process is suspended past its leases and resumed, the other one delivers everything."""
    async with subscribed(tmp_path, [_WISH], store=store, changes_per_second=0) as scene:
        config = scene.config()
        async with daemon(config, command=_POLL), daemon(config, command=_DELIVER) as sleeper:
            await scene.caught_up()
            await scene.settled("one")
            sleeper.send(signal.SIGSTOP)
            async with daemon(config, command=_DELIVER) as other:
                await other.started()
                await scene.played.change(30)
                await scene.caught_up()
                sleeper.send(signal.SIGCONT)
                for _ in range(5):
                    await scene.played.change(30)
                    await scene.caught_up()
                found = await scene.verdict(_WISH)
    assert found.clean, found
    assert not found.repeats, found


@pytest.mark.thorough
async def test_a_pause_outlives_the_process_that_was_asked_for_it(tmp_path: Path, store: str) -> None:
    """When a sink asks for a pause of three seconds and its process is killed, the next process keeps the pause.

    One request is in flight at a time: of several answers the last might be lost with the process.
    """
    async with subscribed(tmp_path, [_ONE_BY_ONE], store=store, changes_per_second=20) as scene:
        config = scene.config()
        async with daemon(config, command=_POLL), daemon(config, command=_DELIVER) as first:
            await scene.more("one", 20)
            async with daemon(config, command=_DELIVER) as second:
                await second.started()
                scene.sinks.mood("one", "429/3")
                await first.until(lambda line: line.get("status") == 429, "the sink to ask for a pause")
                scene.sinks.mood("one", "ok")
                await scene.noted_until("one")
                await first.kill()
                found = (await scene.caught_up())["one"]
    assert found.clean, found
