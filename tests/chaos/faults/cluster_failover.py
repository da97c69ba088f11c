"""A shard's primary fails and its replica takes over without the latest writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting
from tests.harness.scene import RESOURCES, stream

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage
    from tests.harness.cluster import Cluster

_FORGOTTEN_SECONDS = 0.6


async def strike(stage: Stage, rng: Random) -> None:
    """The primary dies with unreplicated writes, is suspended and replaced, or is replaced in agreement."""
    cluster, key = stage.cluster, stream(rng.choice(RESOURCES))
    how = rng.choice((_killed, _killed, _woken, _agreed))
    await how(stage, cluster, key, rng.random())
    await asyncio.to_thread(cluster.settled)


async def _killed(stage: Stage, cluster: Cluster, key: str, share: float) -> None:
    """The primary accepts writes without its replica for some time; then it dies, and returns as a replica."""
    primary, replica = await asyncio.to_thread(lambda: (cluster.primary_of(key), cluster.replica_of(key)))
    replica.stop()
    primary.ask("CLIENT", "KILL", "TYPE", "replica")
    await stage.rest(share * _FORGOTTEN_SECONDS)
    primary.kill()
    replica.go_on()
    await asyncio.to_thread(cluster.fail_over, key, "TAKEOVER")
    primary.start()


async def _woken(stage: Stage, cluster: Cluster, key: str, share: float) -> None:
    """A primary that was replaced while suspended believes for a moment that it still is one."""
    primary, replica = await asyncio.to_thread(lambda: (cluster.primary_of(key), cluster.replica_of(key)))
    primary.stop()
    replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
    await stage.rest(share)
    primary.go_on()


async def _agreed(_stage: Stage, cluster: Cluster, key: str, _share: float) -> None:
    await asyncio.to_thread(cluster.fail_over, key)


FAULT = Fault(
    "cluster-failover",
    "failover of a cluster under load, writes lost",
    "no gaps; token, snapshots and stream agree; what comes again has the same id; one process writes",
    strike,
    Setting(store="cluster"),
    most=10,
    replaces=True,
    loses_writes=True,
)
