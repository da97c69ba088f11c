"""Leases are kept while their owner lives, however many there are."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from fakeredis import FakeAsyncRedis, FakeRedis, FakeServer

from poller.errors import StoreRefused, StoreUnavailable
from poller.lifecycle import ended
from poller.store.lease import Held, held_leases, keep_renewed, release_all
from tests.harness.clock import StubClock
from tests.harness.waiting import patience, turns, until

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

    keeping = asyncio.create_task(keep_renewed(leases, ttl=_TTL, clock=StubClock(sleep=sleep)))
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


class _Answering:
    """A lease whose store answers as the test says."""

    def __init__(self, said: list[str], name: str, fails: Exception | None = None, *, held: bool = True) -> None:
        self.held = held
        self._said = said
        self._name = name
        self._fails = fails

    async def renew(self) -> bool:
        return self._answer()

    async def release(self) -> None:
        self._answer()

    def _answer(self) -> bool:
        self._said.append(self._name)
        if self._fails:
            raise self._fails
        return True


async def _renewed_once(leases: list[_Answering]) -> None:
    pauses = 0

    async def sleep(_: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses > 1:
            await asyncio.Event().wait()

    keeping = asyncio.create_task(keep_renewed(leases, ttl=_TTL, clock=StubClock(sleep=sleep)))
    await until(lambda: pauses > 1, "one turn of renewals")
    await ended(keeping)


async def test_a_part_of_the_store_that_is_away_costs_no_lease_of_the_others() -> None:
    """Law: where one server of a cluster does not answer, the leases on the others are renewed, however many."""
    said: list[str] = []
    away = StoreUnavailable("one server of the cluster is away")
    await _renewed_once([_Answering(said, str(one), away if one == 0 else None) for one in range(250)])
    assert said == [str(one) for one in range(250)]


async def test_a_store_that_answers_nothing_is_not_asked_for_the_rest() -> None:
    """Law: where a hundred renewals are not answered, the others would only wait for the same store."""
    said: list[str] = []
    await _renewed_once([_Answering(said, str(one), StoreUnavailable("away")) for one in range(250)])
    assert said == [str(one) for one in range(100)]


async def test_at_the_end_everything_is_let_go_of() -> None:
    """Law: a lease that the store refuses to end keeps no other; a store that is away ends it."""
    said: list[str] = []
    refusing, away = StoreRefused("no"), StoreUnavailable("away")
    await release_all(
        [
            _Answering(said, "lost", held=False),
            _Answering(said, "first", refusing),
            _Answering(said, "second"),
            _Answering(said, "third", away),
            _Answering(said, "never"),
        ]
    )
    assert said == ["first", "second", "third"]


async def test_a_store_that_does_not_answer_holds_up_no_end() -> None:
    """Law: letting go takes no longer than it may; the leases run out by themselves."""
    store = _Store(together=2)  # waits for a second one that never asks

    class Silent(_Lease):
        async def release(self) -> None:
            await self.renew()

    async with patience("the end"):
        await release_all([Silent(store)], within=0.01)
    assert store.renewed == 0


# Laws of :mod:`poller.store.lease`.

LEASE = "poller:{acme/a}:lease"


class Ending(FakeAsyncRedis):
    """A store in which the lease ends between the questions for its owner and for its time."""

    pipelines = 0

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Any:
        self.pipelines += 1
        if self.pipelines > 1:
            FakeRedis(server=SERVER).delete(LEASE)
        return super().pipeline(transaction, shard_hint)


SERVER = FakeServer()


async def test_a_lease_that_ends_while_it_is_looked_at_is_free() -> None:
    """Law: it is free, not a stranger's without an end, which would be left alone for long."""
    async with Ending(server=SERVER) as client:
        await client.set(LEASE, "once-1-ab/nonce", px=60_000)
        assert await held_leases(client, [LEASE], known=()) == [Held(None)]
        assert client.pipelines == 2
