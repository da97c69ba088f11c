"""Leases are kept while their owner lives, however many there are."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from poller.errors import StoreRefused, StoreUnavailable
from poller.stopping import ended
from poller.store.lease import keep_renewed
from tests.harness.waiting import patience, turns

_TTL = timedelta(seconds=9)


class _Store:
    """Answers a renewal only when so many are asked for at the same time."""

    def __init__(self, together: int) -> None:
        self.renewed = 0
        self.changed = asyncio.Condition()
        self.gate = asyncio.Barrier(together)


class _Lease:
    def __init__(self, store: _Store, fails: Exception | None = None, *, held: bool = True) -> None:
        self.held = held
        self._store = store
        self._fails = fails

    async def renew(self) -> bool:
        await self._store.gate.wait()
        async with self._store.changed:
            self._store.renewed += 1
            self._store.changed.notify_all()
        if self._fails:
            raise self._fails
        return True

    async def release(self) -> None:
        raise AssertionError


async def _kept(store: _Store, leases: list[_Lease], renewals: int) -> None:
    async def sleep(seconds: float) -> None:
        assert seconds == 3
        await turns()

    keeping = asyncio.create_task(keep_renewed(leases, ttl=_TTL, sleep=sleep))
    try:
        async with patience(f"{renewals} renewals"), store.changed:
            await store.changed.wait_for(lambda: store.renewed >= renewals)
        assert not keeping.done()
    finally:
        await ended(keeping)


async def test_leases_are_renewed_side_by_side() -> None:
    """Law: no lease waits for the answer to another's renewal, so that in a busy process none runs out in the queue."""
    store = _Store(together=100)
    await _kept(store, [_Lease(store) for _ in range(100)], renewals=300)


async def test_a_store_that_fails_ends_nothing() -> None:
    """Law: whatever the store says to one renewal, all are tried again; what is not held is left alone."""
    store = _Store(together=3)
    failing = [_Lease(store, StoreUnavailable("away")), _Lease(store, StoreRefused("no")), _Lease(store)]
    await _kept(store, [*failing, _Lease(store, held=False)], renewals=9)
