"""A daemon polls and delivers while its store fails over or moves slots, and the stream still matches the source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.harness.processes import daemon
from tests.harness.scene import RESOURCES, scene, stream

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stores import Store, Stores


def _happenings(kind: Store, stores: Stores) -> list[Callable[[], object]]:
    if kind == "sentinel":
        return [stores.sentinels.fail_over]
    if kind == "cluster":
        first, second = map(stream, RESOURCES[:2])
        cluster = stores.cluster
        return [lambda: cluster.fail_over(first), lambda: cluster.move_slot(second), lambda: cluster.fail_over(second)]
    pytest.skip("a single server does not fail over")


@pytest.mark.thorough  # tests/store/test_failover.py has the same failovers without a daemon
async def test_through_failovers_the_stream_is_the_source(several_kind: Store, tmp_path: Path, stores: Stores) -> None:
    """A failover may lose acknowledged writes; the daemon writes them again, and nothing is lost or doubled."""
    url = stores.emptied(several_kind)
    happenings = _happenings(several_kind, stores)
    async with scene(tmp_path, store=url, changes_per_second=60) as played, daemon(played.config()) as running:
        await played.growth(60, unless=running.gone)
        for happens in happenings:
            await asyncio.to_thread(happens)
            await played.growth(20, unless=running.gone)
        verdict = await played.caught_up()
        assert running.code is None, running
    assert verdict.clean, verdict
