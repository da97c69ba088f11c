"""The source or the store is unavailable, at the start or later: rounds fail with a reason and then recover."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from tests.harness.gate import gated
from tests.harness.processes import daemon
from tests.harness.scene import RESOURCES, scene
from tests.servers import running

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.harness.processes import Daemon
    from tests.servers import Server


async def test_a_source_that_is_away_is_waited_for(tmp_path: Path, store: str) -> None:
    """While the source is unavailable each round names the failed request; afterwards every change is published."""
    async with scene(tmp_path, store=store) as played, gated(played.source) as gate:
        gate.shut()
        async with daemon(played.config(source=gate.url)) as waiting:
            await _says(waiting, "GET /", since=0)
            gate.open()
            await waiting.polled(RESOURCES, since=len(waiting.lines))
            gate.shut()
            await _says(waiting, "GET /", since=len(waiting.lines))
            gate.open()
            verdict = await played.caught_up()
    assert verdict.clean, verdict


async def test_a_source_that_leaves_between_pages_is_read_again(tmp_path: Path, store: str) -> None:
    """A source that fails after a page is read again with the same token, so that no record is skipped."""
    async with scene(tmp_path, store=store, changes_per_second=0) as played, gated(played.source) as gate:
        gate.shut_at(b"pageToken")
        async with daemon(played.config(source=gate.url, limit="10")) as waiting:
            for _ in range(2):
                await _says(waiting, "GET /employmentUnavailabilities", since=len(waiting.lines))
                assert await played.published()
                gate.open()
                await waiting.polled(RESOURCES, since=len(waiting.lines))
                gate.shut_at(b"pageToken")
                await played.change(60)
            gate.open()
            verdict = await played.caught_up()
    assert verdict.clean, verdict


@pytest.mark.thorough
async def test_a_store_killed_and_restarted_is_waited_for(tmp_path: Path) -> None:
    """A daemon survives two kills of its store, and logs each outage and its end."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(_server(tmp_path))
        played = await stack.enter_async_context(scene(tmp_path, store=server.url))
        waiting = await stack.enter_async_context(daemon(played.config()))
        await played.growth(60, unless=waiting.gone)
        for _ in range(2):
            since = len(waiting.lines)
            server.process.kill()
            server.process.wait()
            await waiting.until(lambda line: line.get("event") == "redis unavailable", "the outage", since=since)
            server = stack.enter_context(_server(tmp_path))
            await waiting.until(lambda line: line.get("event") == "redis available again", "its end", since=since)
            await waiting.polled(RESOURCES, since=len(waiting.lines))
        verdict = await played.caught_up()
    assert verdict.clean, verdict


def _server(directory: Path) -> AbstractContextManager[Server]:
    return running("valkey", directory / "v", appendfsync="always")


async def _says(waiting: Daemon, what: str, *, since: int) -> None:
    """Wait for a failed round; its error is one line that names what was tried."""
    line = await waiting.until(
        lambda line: line.get("ok") is False and what in line["error"], f"a round that failed at {what}", since=since
    )
    assert "\n" not in line["error"]
