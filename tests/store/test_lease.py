"""Leases are renewed while their owner lives, however many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from fakeredis import FakeAsyncRedis, FakeRedis, FakeServer
from redis.exceptions import ConnectionError as Broken

from poller.clock import Clock
from poller.errors import StoreError, StoreRefused, StoreUnavailable
from poller.lifecycle import ended
from poller.redis.client import commands
from poller.store.lease import Held, Lease, LeaseScripts, held_leases, keep_renewed, release_all
from poller.store.scripts import ScriptBatch, ScriptCall
from tests.harness.clock import StubClock
from tests.harness.waiting import patience, turns, until
from tests.stores import Stores

_TTL = timedelta(seconds=90)


_LONG_MS = 600_000  # longer than a renewal sets, to see which leases are renewed
_NONCE = "me/nonce"
_KEYS = [f"poller:{{acme/{one}}}:lease" for one in range(600)]


class _Store(FakeAsyncRedis):
    """Counts the requests with scripts, and breaks the first ones.

    Attributes:
        requests: the number of requests with scripts.
        breaks: how many of the next requests get no answer.
    """

    requests = 0
    breaks = 0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if str(args[0]).startswith("EVAL"):
            self.requests += 1
            if self.breaks:
                self.breaks -= 1
                raise Broken("away")
        return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py's


class _Batch(ScriptBatch):
    """Answers each key as the test says, as the servers of a store may; notes the keys.

    Attributes:
        is_scattered: whether each key is on a server of its own.
    """

    is_scattered = False

    def __init__(self, client: FakeAsyncRedis, fails: Mapping[str, StoreError]) -> None:
        super().__init__(client)
        self.sent: list[str] = []
        self._fails = fails

    async def run(self, call: ScriptCall) -> list[int]:
        self.sent += call.keys
        for key in call.keys:
            if key in self._fails:
                raise self._fails[key]
        return [1] * len(call.keys)

    async def send(self, calls: Sequence[ScriptCall], *, one_tag: bool = False) -> list[Any]:  # noqa: ARG002 -- as there
        return [self._fails.get(call.keys[0], 1) for call in calls]


class _Cluster(_Batch):
    is_scattered = True


def _leases(client: FakeAsyncRedis, keys: Sequence[str], batch: ScriptBatch | None = None) -> list[Lease]:
    """Leases of one process for these keys."""
    scripts = LeaseScripts(client)
    scripts.batch = batch or scripts.batch
    return [Lease(client, scripts, key, token=_NONCE, ttl=_TTL, clock=Clock()) for key in keys]


async def _turns(leases: Sequence[Lease], times: int) -> list[float]:
    """Renew the leases this number of times; the seconds before each, and before the next."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await turns()
        if len(pauses) > times:
            await asyncio.Event().wait()

    keeping = asyncio.create_task(keep_renewed(leases, ttl=_TTL, clock=StubClock(sleep=sleep)))
    await until(lambda: len(pauses) > times, "the renewals")
    await ended(keeping)
    return pauses


async def test_leases_are_renewed_together() -> None:
    """Law: leases are renewed in batches, so that none expires while it waits for another's renewal."""
    async with _Store(server=FakeServer()) as client:
        leases = _leases(client, _KEYS)
        for lease in leases:
            assert await lease.acquire() is None
            await client.pexpire(lease.key, _LONG_MS)
        lost = leases[7]
        await client.set(lost.key, "other/nonce")
        client.requests = 0
        assert await _turns(leases, 1) == [30, 30]
        left = [await client.pttl(lease.key) for lease in leases if lease is not lost]
    assert client.requests <= 3 + 2  # 250 each; a script is loaded when it is sent first
    assert max(left) <= 90_000
    assert [lease for lease in leases if not lease.held] == [lost]


async def test_a_store_that_fails_ends_nothing() -> None:
    """Law: after a failed renewal all held leases are renewed again, soon; a lease that is not held is not touched."""
    async with _Store(server=FakeServer()) as client:
        leases = _leases(client, _KEYS[:4])
        for lease in leases[:3]:
            assert await lease.acquire() is None
            await client.pexpire(lease.key, _LONG_MS)
        client.breaks = 1
        assert await _turns(leases, 2) == [30, 0.5, 30]
        assert client.breaks == 0
        assert [await client.pttl(lease.key) <= 90_000 for lease in leases[:3]] == [True, True, True]
        assert not await client.exists(leases[3].key)
        assert [lease.held for lease in leases] == [True, True, True, False]


def _held(batch: _Batch, client: FakeAsyncRedis) -> list[Lease]:
    leases = _leases(client, _KEYS, batch)
    for lease in leases:
        lease.grant(lease.claim())
    return leases


async def test_a_part_of_the_store_that_is_away_costs_no_lease_of_the_others() -> None:
    """Law: if one server of a cluster does not answer, the leases on the others are renewed."""
    client = FakeAsyncRedis(server=FakeServer())
    away = _Cluster(client, {_KEYS[0]: StoreUnavailable("one server is away"), _KEYS[1]: StoreRefused("no")})
    leases = _held(away, client)
    await _turns(leases, 1)
    assert away.sent == _KEYS
    assert all(lease.held for lease in leases)


async def test_a_server_of_a_cluster_that_hangs_costs_no_lease_of_the_others() -> None:
    """Law: while one server of a cluster answers nothing, the leases on the others are renewed at each turn."""
    client = FakeAsyncRedis(server=FakeServer())
    hanging = _Hanging(client, _KEYS[0])
    leases = _held(hanging, client)
    await _turns(leases, 3)
    assert {key: hanging.sent.count(key) for key in _KEYS} == {_KEYS[0]: 1} | dict.fromkeys(_KEYS[1:], 3)


class _Hanging(_Cluster):
    """A cluster in which one key gets no answer."""

    def __init__(self, client: FakeAsyncRedis, silent: str) -> None:
        super().__init__(client, {})
        self._silent = silent

    async def run(self, call: ScriptCall) -> list[int]:
        found = await super().run(call)
        if call.keys[0] == self._silent:
            await asyncio.Event().wait()
        return found


async def test_a_store_that_answers_nothing_is_not_asked_for_the_rest() -> None:
    """Law: if the first renewals get no answer, the other leases are not sent to that store."""
    client = FakeAsyncRedis(server=FakeServer())
    away = _Batch(client, dict.fromkeys(_KEYS, StoreUnavailable("away")))
    await _turns(_held(away, client), 1)
    assert away.sent == _KEYS[:250]


async def test_a_lease_that_the_store_refuses_costs_no_other_one() -> None:
    """Law: if a server refuses one of many, each is renewed by itself."""
    client = FakeAsyncRedis(server=FakeServer())
    leases = _held(_Batch(client, {_KEYS[1]: StoreRefused("no")}), client)
    until_before = [lease.renewal().until for lease in leases]
    await _turns(leases, 1)
    assert all(lease.held for lease in leases)
    assert [lease.renewal().until for lease in leases] > until_before


async def test_what_was_settled_is_told_with_each_renewal(stores: Stores) -> None:
    """Law: of leases with a witness each answer has what was settled last; a lease of another owner is lost."""
    client = commands(stores.emptied("valkey"))
    scripts = LeaseScripts(client)
    leases = [
        Lease(client, scripts, f"{{x}}:{one}", token=_NONCE, ttl=_TTL, witness=f"{{x}}:{one}:state", clock=Clock())
        for one in range(4)
    ]
    for lease in leases:
        assert await lease.acquire() is None
        await client.pexpire(lease.key, _LONG_MS)
    await client.set(leases[1].key, "other/nonce")
    await client.hset("{x}:2:state", "settled", f"{_NONCE} 7")
    leases[2].answered, leases[3].answered = 7, 5
    await _turns(leases, 1)
    left = [await client.pttl(lease.key) <= 90_000 for lease in leases]
    await client.aclose()
    assert [lease.held for lease in leases] == [True, False, True, False]  # the last one's settlement is gone
    assert left == [True, True, True, True]


class _Answering:
    """A lease whose release has the outcome that the test sets."""

    def __init__(self, said: list[str], name: str, fails: Exception | None = None, *, held: bool = True) -> None:
        self.held = held
        self._said = said
        self._name = name
        self._fails = fails

    async def release(self) -> None:
        self._said.append(self._name)
        if self._fails:
            raise self._fails


async def test_at_the_end_everything_is_let_go_of() -> None:
    """Law: a refused release does not stop the others; an unavailable store ends the releases."""
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
    """Law: releasing leases stops at its time limit; unreleased leases expire by themselves."""
    released: list[str] = []

    class Silent(_Answering):
        async def release(self) -> None:
            await asyncio.Event().wait()
            await super().release()

    async with patience("release_all to return"):
        await release_all([Silent(released, "one")], within=0.01)
    assert released == []


# Laws of :mod:`poller.store.lease`.

LEASE = "poller:{acme/a}:lease"


class Ending(FakeAsyncRedis):
    """A store in which the lease ends between the reads of its owner and of its time."""

    pipelines = 0

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Any:
        self.pipelines += 1
        if self.pipelines > 1:
            FakeRedis(server=SERVER).delete(LEASE)
        return super().pipeline(transaction, shard_hint)


SERVER = FakeServer()


async def test_a_lease_that_ends_while_it_is_looked_at_is_free() -> None:
    """Law: a lease that ends while it is read is free, not another's lease without an expiry."""
    async with Ending(server=SERVER) as client:
        await client.set(LEASE, "once-1-ab/nonce", px=60_000)
        assert await held_leases(client, [LEASE], known=()) == [Held(None)]
        assert client.pipelines == 2


async def test_a_lease_without_an_end_may_be_taken(stores: Stores) -> None:
    """Law: a lease whose key has lost its time to live may be taken, as one that lasts for days."""
    async with commands(stores.emptied("valkey")) as client:
        for lease, milliseconds in ((LEASE, None), ("poller:{acme/b}:lease", 5_000)):
            await client.set(lease, "once-1-ab/nonce", px=milliseconds)
        endless, other = await held_leases(client, [LEASE, "poller:{acme/b}:lease"], known=())
    assert isinstance(endless, Held)
    assert isinstance(other, Held)
    assert (endless.is_overlong, other.is_overlong) == (True, False)


async def test_leases_on_other_servers_are_read_while_one_is_away(stores: Stores) -> None:
    """Law: if one server of a cluster is away, the leases on the others are read, and the error stands for its own."""
    url, cluster = stores.emptied("cluster"), stores.cluster
    leases = [f"poller:{{acme/{one}}}:lease" for one in range(30)]
    away = cluster.primary_of(leases[0])
    there = [lease for lease in leases if cluster.primary_of(lease) is not away]
    async with commands(url) as client:
        for lease in leases:
            await client.set(lease, "once-1-ab/nonce", px=60_000)
        await asyncio.to_thread(away.kill)
        try:
            found = dict(zip(leases, await held_leases(client, leases, known=()), strict=True))
        finally:
            await asyncio.to_thread(cluster.empty)
    read = {lease for lease, one in found.items() if isinstance(one, Held) and one.owner == "once-1-ab"}
    assert read == set(there)
    assert {type(found[lease]) for lease in set(leases) - read} == {StoreUnavailable}
