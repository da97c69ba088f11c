"""Commits during a failover of the store: each is written once or refused, never twice.

Coordinated failovers of the cluster lose nothing. A failover by Sentinels may lose writes that the new primary had not
received; snapshots, sequence and stream then fall back together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from poller.errors import Fenced, Stale, StoreUnavailable
from poller.redis.client import commands
from tests.harness.waiting import patience, unless, until
from tests.store.records import unavailability
from tests.store.test_feed import KEYS, Open, begun, events, opened_by, write

if TYPE_CHECKING:
    from poller.store.feed import FeedStore
    from tests.stores import Stores

_AFTER = 20  # commits after the last action, so that its effects are seen
_BETWEEN = 0.003  # seconds of pause, so that commits leave CPU for the failover


async def _written_during(client: Redis, *happenings: Callable[[], object]) -> list[int]:
    """Commit hundreds of single records a second while these actions run in turn; returns the acknowledged ones."""
    opened: Open = opened_by(client)
    store = opened("a")
    acknowledged: list[int] = []
    for happening in happenings:
        task = asyncio.create_task(asyncio.to_thread(happening))
        enough = None
        async with patience(f"commits during {happening}", 60):
            while enough is None or len(acknowledged) < enough:
                await _one_more(store, acknowledged)
                await unless(asyncio.Event(), _BETWEEN)
                if task.done() and enough is None:
                    task.result()
                    enough = len(acknowledged) + _AFTER
    return acknowledged


async def _one_more(store: FeedStore, acknowledged: list[int]) -> None:
    number = len(acknowledged)

    async def written() -> bool:
        await write(store, [unavailability(number)])  # planned anew on what the store holds
        return True

    await until(written, "a commit", seconds=60, every=0.01, despite=(StoreUnavailable, Stale, Fenced))
    acknowledged.append(number)


async def _published(client: Redis) -> list[str]:
    """The published records' ids, after a check that stream and state agree and each record came once."""
    published = await events(client)
    subjects = [str(event["subject"]) for event in published]
    assert [int(str(event["sequence"])) for event in published] == list(range(1, len(published) + 1))
    assert len(set(subjects)) == len(subjects)
    assert (await begun(opened_by(client)("a"))).sequence == len(published)
    assert await client.hlen(KEYS.snapshots) == len(published)
    return subjects


async def test_failovers_of_a_cluster(stores: Stores) -> None:
    """Law: coordinated failovers lose nothing: each acknowledged commit is there once, in order."""
    url, cluster = stores.emptied("cluster"), stores.cluster
    async with commands(url) as client:
        acknowledged = await _written_during(
            client, lambda: cluster.fail_over(KEYS.state), lambda: cluster.fail_over(KEYS.state)
        )
        assert len(await _published(client)) == len(acknowledged)


@pytest.mark.thorough
async def test_a_primary_of_a_cluster_that_is_killed(stores: Stores) -> None:
    """Law: after a primary is killed no event is duplicated, and stream, snapshots and sequence agree."""
    url, cluster = stores.emptied("cluster"), stores.cluster

    def killed() -> None:
        cluster.primary_of(KEYS.state).kill()
        cluster.fail_over(KEYS.state, "TAKEOVER")

    async with commands(url) as client:
        acknowledged = await _written_during(client, killed)
        assert len(await _published(client)) <= len(acknowledged)
    await asyncio.to_thread(cluster.empty)


async def test_a_slot_that_moves(stores: Stores) -> None:
    """Law: while a slot moves key by key (ASK, TRYAGAIN, MOVED), each commit is written once."""
    url, cluster = stores.emptied("cluster"), stores.cluster

    def slowly() -> None:
        to = next(one for one in cluster.primaries if one is not cluster.primary_of(KEYS.state))
        cluster.begin_move(KEYS.state, to)
        while cluster.move_keys(KEYS.state, to, most=1):
            pass
        cluster.move_slot(KEYS.state, to)

    async with commands(url) as client:
        acknowledged = await _written_during(client, slowly, lambda: cluster.move_slot(KEYS.state), slowly)
        assert len(await _published(client)) == len(acknowledged)


async def test_a_failover_by_sentinels(stores: Stores) -> None:
    """Law: after a failover by Sentinels no event is duplicated, and stream, snapshots and sequence agree."""
    url, sentinels = stores.emptied("sentinel"), stores.sentinels
    async with commands(url) as client:
        acknowledged = await _written_during(client, sentinels.fail_over)
        assert len(await _published(client)) <= len(acknowledged)
