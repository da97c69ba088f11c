"""Laws of :mod:`poller.telemetry.commits`: each commit is counted by how it ended, once. On a real store."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from poller.changes.commit import Commit
from poller.errors import Fenced, Stale, StoreRefused
from poller.store.connection import commands
from poller.store.feed import FeedStore
from poller.store.keys import FeedKeys
from poller.store.scripts import Scripts
from poller.store.state import FeedState
from poller.telemetry.costs import counted
from tests.telemetry.series import grown

KEYS = FeedKeys.of("poller", "acme/contractTypes")
RESULTS = ("written", "repeated", "fenced", "stale", "failed")


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Redis]:
    async with commands(store_url) as one:
        yield one


def opened(client: Redis, nonce: str, *, lease: timedelta = timedelta(seconds=60)) -> FeedStore:
    return FeedStore(
        client, Scripts(client), KEYS, nonce=nonce, lease=lease, draw=lambda: "generation", now_ms=lambda: 1_000
    )


def ended() -> dict[str, float]:
    return {result: grown("poller_commits_total", result=result) for result in RESULTS}


async def begun(store: FeedStore) -> FeedState:
    state = await store.begin()
    assert isinstance(state, FeedState)
    return state


def planned(state: FeedState, text: str = "x") -> Commit:
    event = json.dumps({"sequence": f"{state.sequence + 1:020}", "text": text}).encode()
    return Commit(state.generation, state.sequence, events=(event,), digest=text)


@pytest.fixture
def count() -> Callable[[], dict[str, float]]:
    """How many ended in each way since the test began, of those that any did."""
    before = ended()
    return lambda: {result: n - before[result] for result, n in ended().items() if n != before[result]}


async def test_each_end_has_its_series(client: Redis, count: Callable[[], dict[str, float]]) -> None:
    """Written, the same once more, planned on what was before, refused, and another's lease."""
    seconds = grown("poller_commit_duration_seconds_count")
    store = opened(client, "me")
    state = await begun(store)
    with counted() as costs:
        await store.commit(planned(state))
        await store.commit(planned(state))
    assert count() == {"written": 1, "repeated": 1}
    assert (costs.commits, costs.commit_seconds > 0) == (2, True)
    with pytest.raises(Stale):
        await store.commit(planned(state, "another"))
    state = await begun(store)
    await client.delete(KEYS.lease)
    await begun(opened(client, "another"))
    with pytest.raises(Fenced):
        await store.commit(planned(state))
    await client.delete(KEYS.lease)
    state = await begun(store)
    await client.delete(KEYS.events)
    await client.set(KEYS.events, "no stream")
    with pytest.raises(StoreRefused):
        await store.commit(planned(state))
    assert count() == {"written": 1, "repeated": 1, "stale": 1, "fenced": 1, "failed": 1}
    assert grown("poller_commit_duration_seconds_count") == seconds + 5
