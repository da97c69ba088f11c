"""Control: the scenes catch a naive daemon, with the same faults and the same checker."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.harness.processes import daemon
from tests.harness.scene import RESOURCES, scene
from tests.proxy import proxied

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.checker import Verdict

pytestmark = pytest.mark.usefixtures("one_server")  # naive daemons know no other store


@pytest.mark.thorough
async def test_unharmed_even_naive_commits_are_right(tmp_path: Path, store: str) -> None:
    """Without a fault the checker finds nothing, even in naive commits."""
    verdict = await _played(tmp_path, store, "events")
    assert verdict.clean, verdict
    assert verdict.events


async def test_dying_between_events_and_snapshots_doubles(tmp_path: Path, store: str) -> None:
    """A death after the events and before the snapshots publishes them again under used sequence numbers."""
    verdict = await _played(tmp_path, store, "events", failpoint="commit.sent:3")
    assert verdict.doubled
    assert verdict.misclassified
    assert verdict.gaps


@pytest.mark.thorough
async def test_dying_between_snapshots_and_events_loses(tmp_path: Path, store: str) -> None:
    """A death after the snapshots and before the events loses changes."""
    verdict = await _played(tmp_path, store, "snapshots", failpoint="commit.sent:3")
    assert verdict.lost


@pytest.mark.thorough
async def test_a_lost_reply_doubles(tmp_path: Path, store: str) -> None:
    """A client that repeats an unanswered write by itself publishes the event twice."""
    async with proxied(store) as proxy:
        proxy.lose_reply(to=b"XADD", skip=5)
        verdict = await _played(tmp_path, store, "events", through=proxy.url)
    assert len(verdict.doubled) == 2  # the id, and the content


async def _played(directory: Path, store: str, order: str, *, failpoint: str = "", through: str = "") -> Verdict:
    """The verdict on a naive daemon that reads an unchanging source, and dies once if ``failpoint`` is set."""
    naive = ("tests.harness.naive", order)
    async with scene(directory, store=store, changes_per_second=0) as played:
        config = played.config(store=through or store)
        if failpoint:
            async with daemon(config, failpoint=failpoint, command=naive) as dying:
                assert await dying.left() == -signal.SIGKILL, dying
        async with daemon(config, command=naive) as recovering:
            await recovering.polled(RESOURCES)
        return await played.verdict()
