"""The store executes a command and its reply is lost: the client cannot know, and nothing may be doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.processes import daemon
from tests.harness.scene import RESOURCES, scene
from tests.harness.waiting import lasting, patience
from tests.proxy import proxied

if TYPE_CHECKING:
    from pathlib import Path

_COMMIT = b"}:rejected"  # of the scripts, the commit alone names these digests


@pytest.mark.thorough
async def test_a_lost_reply_to_a_commit_doubles_nothing(tmp_path: Path, store: str) -> None:
    """Each change is published once, though replies to commits are lost or cut and a commit never arrives."""
    async with scene(tmp_path, store=store, records=300) as played, proxied(store) as proxy:
        faults = [
            proxy.lose_reply(to=_COMMIT, skip=1),
            proxy.lose_reply(to=_COMMIT, skip=4, times=2),
            proxy.cut_reply(to=_COMMIT, skip=9, after=2),
            proxy.reset(to=_COMMIT, skip=14),
            proxy.lose_reply(to=_COMMIT, skip=22, times=3),
        ]
        async with daemon(played.config(store=proxy.url, ttl=lasting(2), limit="20")) as harmed:
            async with patience("all faults to strike"):
                for fault in faults:
                    await fault.struck.wait()
            since = len(harmed.lines)
            await harmed.polled(RESOURCES, since=since)
            verdict = await played.caught_up()
        assert not any(fault.times for fault in faults)
    assert verdict.clean, verdict
    assert [line["error"] for line in harmed.rounds() if not line["ok"]] == []
