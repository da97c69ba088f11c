"""The real daemon with a wall clock that is a month off from its store's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos.faults.clock import faked_by, missing, set_clock
from tests.harness.processes import daemon
from tests.harness.subscribed import Wish, subscribed
from tests.harness.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

FEED = "contractTypes"


async def sizes_asked(client: Redis) -> int:
    """How often the size of a stream was queried, which happens before each trimming."""
    stats: Any = await client.info("commandstats")
    return int(stats.get("cmdstat_memory|usage", stats.get("cmdstat_memory", {"calls": 0}))["calls"])


@pytest.mark.thorough
@pytest.mark.parametrize("offset", ["-30d", "+30d"])
async def test_a_daemon_with_a_wrong_clock_trims_by_the_clock_of_the_store(
    tmp_path: Path, store: str, offset: str
) -> None:
    """Events that are young by the store's clock are kept and delivered, though the daemon's clock is a month off."""
    if reason := missing():
        pytest.skip(reason)
    set_clock(tmp_path / "clock", offset)
    environ = {name: text.format(directory=tmp_path) for name, text in faked_by("clock").items()}
    async with subscribed(
        tmp_path, [Wish("one")], store=store, seed=1, records=60, changes_per_second=0, feeds=(FEED,)
    ) as scene:
        config = scene.config()
        config.write_text(f'[retention]\nage = "1h"\n{config.read_text()}')
        client = scene.played.client
        async with daemon(config, environ=environ) as one:
            await one.polled([FEED])
            assert all(verdict.clean for verdict in (await scene.caught_up()).values())
        published, asked = await scene.entries(FEED), await sizes_asked(client)
        assert published
        async with daemon(config, environ=environ) as one:  # checks the size once it has the lease

            async def looked() -> bool:
                return await sizes_asked(client) > asked

            await until(looked, "the size of the stream to be queried")
            await scene.played.change(40)
            await one.polled([FEED], since=len(one.lines))
            await one.polled([FEED], since=len(one.lines))
        assert (await scene.entries(FEED))[: len(published)] == published
