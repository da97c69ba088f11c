"""Laws of :mod:`poller.service.sharing` and :mod:`poller.service.membership`, on a real store: several in one loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis

from poller.service.membership import Membership
from poller.service.sharing import Sharing
from poller.service.watching import StoreWatch
from poller.stopping import ended
from poller.store.connection import commands
from poller.store.feed import HeldElsewhere
from poller.store.keys import FeedKeys, MemberKeys
from poller.store.lease import keep_renewed
from poller.store.members import Members
from poller.store.owners import nonce_of
from poller.store.scripts import Scripts
from tests.harness.waiting import patience, until
from tests.telemetry.series import grown

LONG, SHORT = timedelta(seconds=30), timedelta(milliseconds=600)
NAMES = tuple(f"s/{letter}" for letter in "abcdefg")


def now() -> datetime:
    return datetime.now(UTC)


class Lot:
    """A lease under which nothing is done but that it is written down."""

    def __init__(self, name: str, client: Redis, member: str, ttl: timedelta, changed: Callable[[], None]) -> None:
        self.name = name
        self.lease = FeedKeys.of("poller", name).lease
        self._nonce = nonce_of(member)
        self.nonce = self._nonce.encode()
        self.held = False
        self.busy = False
        self.begun = 0
        self.working = False
        self._scripts = Scripts(client)
        self._ttl = int(ttl.total_seconds() * 1000)
        self._changed = changed

    async def take(self) -> HeldElsewhere | None:
        left = await self._scripts.take([self.lease], [self._nonce, self._ttl])
        self.held = left is None
        return None if left is None else HeldElsewhere(timedelta(milliseconds=int(left)))

    async def renew(self) -> bool:
        self.held = bool(await self._scripts.renew([self.lease], [self._nonce, self._ttl]))
        return self.held

    def begin(self) -> None:
        assert self.held
        assert not self.working, "what was done under a lease that was lost has to end first"
        self.working = True
        self.begun += 1
        self._changed()

    def lost(self) -> None:
        self.working = False
        self._changed()

    async def end(self) -> None:
        assert not self.busy
        self.lost()
        self.held = False
        await self._scripts.renew([self.lease], [self._nonce, 0])

    async def release(self) -> None:
        await self.end()


@dataclass
class World:
    """Some processes that share some leases."""

    client: Redis
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lots: dict[str, list[Lot]] = field(default_factory=dict)

    @asynccontextmanager
    async def process(
        self, name: str, ttl: timedelta = LONG, *, names: Sequence[str] = NAMES, crash: asyncio.Event | None = None
    ) -> AsyncIterator[list[Lot]]:
        """A process for the time of the block; it leaves in order, unless it has crashed before."""
        clock = asyncio.get_running_loop().time
        watch = StoreWatch("warn", now=now, clock=clock)
        members = Members(self.client, MemberKeys.of("poller"), name=name, ttl=ttl)
        membership = Membership(members, ttl=ttl, watch=watch, clock=clock, look_seconds=0.02)
        sharing = Sharing("poll", membership, self.client, ttl=ttl, watch=watch, clock=clock)
        lots = [Lot(one, self.client, name, ttl, self.changed.set) for one in names]
        for lot in lots:
            sharing.add(lot)
        self.lots[name] = lots
        membership.join("poll")
        renewing = asyncio.create_task(keep_renewed(lots, ttl=ttl, sleep=asyncio.sleep))
        taking = asyncio.create_task(sharing.run())
        present = membership.running()
        await present.__aenter__()
        try:
            yield lots
        finally:
            await ended(taking, renewing)
            if crash is not None and crash.is_set():
                membership._members.leave = _silent  # type: ignore[assignment,method-assign] # a dead one says nothing
            else:
                for lot in lots:
                    if lot.held:
                        await lot.end()
            del self.lots[name]
            await present.__aexit__(None, None, None)

    def counts(self) -> list[int]:
        """How many each has."""
        return sorted((sum(lot.working for lot in lots) for lots in self.lots.values()), reverse=True)

    def owners(self, name: str) -> list[str]:
        return [process for process, lots in self.lots.items() for lot in lots if lot.name == name and lot.working]

    async def until(self, *counts: int) -> None:
        """Wait until each has so many; nothing has two owners on the way."""
        async with patience(f"{counts}, not {self.counts()}"):
            while self.counts() != list(counts):
                self.changed.clear()
                await self.changed.wait()
                assert all(len(self.owners(name)) <= 1 for name in NAMES)


async def there(client: Redis, name: str) -> bool:
    return bool(await client.hexists(MemberKeys.of("poller").roles, name))


async def _silent(*_: object, **__: object) -> None: ...


@pytest.fixture
async def world(store_url: str) -> AsyncIterator[World]:
    client = commands(store_url)
    yield World(client)
    await client.aclose()


async def test_all_share_evenly_as_they_come_and_go(world: World) -> None:
    """Law: alone one has all; with each that comes or leaves in order shares are even, and nothing has two owners."""
    async with world.process("a"):
        await world.until(7)
        async with world.process("b"):
            await world.until(4, 3)
            async with world.process("c"):
                await world.until(3, 2, 2)
            await world.until(4, 3)
        await world.until(7)


async def test_what_is_busy_stays_until_it_is_not(world: World) -> None:
    """Law: nothing is handed back in the middle of a round; at its end it is."""
    async with world.process("a") as lots:
        await world.until(7)
        for lot in lots:
            lot.busy = True
        async with world.process("b") as others:
            await until(lambda: there(world.client, "b"), "the other to look")
            for lot in lots[:3]:
                lot.busy = False
            released = grown("poller_lease_changes_total", kind="feed", change="released")
            await world.until(4, 3)
            assert grown("poller_lease_changes_total", kind="feed", change="released") == released + 3
            assert {lot.name for lot in others if lot.working} == {lot.name for lot in lots[:3]}
            for lot in lots:
                lot.busy = False


async def test_of_one_that_dies_the_leases_are_taken_when_they_end(world: World) -> None:
    """Law: within the lifetime of its leases, and evenly; what it had is begun anew elsewhere."""
    crash, clock = asyncio.Event(), asyncio.get_running_loop().time
    async with world.process("a", SHORT), world.process("b", SHORT):
        async with world.process("c", SHORT, crash=crash):
            await world.until(3, 2, 2)
            crash.set()
        at = clock()
        await world.until(4, 3)
        assert clock() - at < 2 * SHORT.total_seconds() + 2  # a busy machine may need a while


async def test_a_lease_that_is_lost_is_taken_again(world: World) -> None:
    """Law: whoever loses one learns of it, ends what it did, and takes it like everybody else."""
    async with world.process("a", SHORT) as lots:
        await world.until(7)
        lost, taken = (grown("poller_lease_changes_total", kind="feed", change=one) for one in ("lost", "taken"))
        for lot in lots[:2]:
            await world.client.delete(lot.lease)
        async with patience("them to be begun anew"):
            while [lot.begun for lot in lots[:2]] != [2, 2]:
                world.changed.clear()
                await world.changed.wait()
        await world.until(7)
        assert grown("poller_lease_changes_total", kind="feed", change="lost") == lost + 2
        assert grown("poller_lease_changes_total", kind="feed", change="taken") == taken + 2
        await until(lambda: grown("poller_leases_held", kind="feed") == 7, "all to be counted")


async def test_what_others_do_not_know_is_taken_all_the_same(world: World) -> None:
    """Law: a lease that nobody else takes is taken beyond the share, after its lifetime."""
    async with world.process("a", SHORT), world.process("b", SHORT, names=NAMES[:2]):
        async with patience("all to be taken"):
            while sum(world.counts()) != len(NAMES):
                world.changed.clear()
                await world.changed.wait()
        assert all(len(world.owners(name)) == 1 for name in NAMES)


async def test_a_stranger_is_waited_for(world: World) -> None:
    """Law: a lease that no process of the list has, as that of a single round, is taken when it ends."""
    lease = FeedKeys.of("poller", NAMES[0]).lease
    await world.client.set(lease, nonce_of("once-1-ab"), px=300)
    async with world.process("a") as lots:
        await world.until(7)
        assert lots[0].begun == 1


async def test_one_that_has_joined_is_seen(world: World) -> None:
    """Whoever waits until it has joined is in everybody's list; before it is, the wait goes on."""
    clock = asyncio.get_running_loop().time
    watch = StoreWatch("warn", now=now, clock=clock)
    members = Members(world.client, MemberKeys.of("poller"), name="one", ttl=LONG)
    membership = Membership(members, ttl=LONG, watch=watch, clock=clock)
    membership.join("poll")
    waiting = asyncio.create_task(membership.joined("poll"))
    assert not await there(world.client, "one")
    assert not waiting.done()
    async with membership.running(), patience("it to have joined"):
        await waiting
        assert await there(world.client, "one")
