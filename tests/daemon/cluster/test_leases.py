"""Laws of :mod:`poller.daemon.cluster.leases`: deliveries run while the lease is held, and resume after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis

from poller.clock import Clock
from poller.daemon.cluster.assignment import SurplusLease
from poller.daemon.cluster.leases import LeaseBalancer, LeaseKeeper, LeaseTable
from poller.daemon.cluster.membership import Membership
from poller.daemon.health import StoreMonitor
from poller.errors import Fenced, StoreError, StoreRefused, StoreUnavailable
from poller.lifecycle import ended
from poller.redis.client import commands
from poller.store.keys import ConsumerKeys, FeedKeys, MemberKeys
from poller.store.lease import HeldElsewhere, Lease, LeaseScripts, keep_renewed, nonce_of
from poller.store.members import MemberConfiguration, Members
from tests.harness.clock import StubClock, store_clock
from tests.harness.waiting import patience, strain, turns, until
from tests.telemetry.series import grown


class Watch:
    """Store failures and recoveries that were reported, in order."""

    away = False

    def __init__(self) -> None:
        self.told: list[str] = []

    def failed(self, who: str, text: str) -> None:
        self.told.append(f"{who}: {text}")

    def worked(self, who: str) -> None:
        self.told.append(f"{who} worked")


class Script:
    """A lease and its runs: each run ends as scripted; after the last scripted one a run lasts until it is stopped."""

    feed = "acme/a"
    key = ConsumerKeys.of("p", "acme/a", "s").lease
    token = "me/1"  # noqa: S105 -- of a test

    def __init__(self, *turns: Exception) -> None:
        self.turns = list(turns)
        self.log: list[str] = []
        self.waits: list[float] = []
        self.held = self.claimed = False
        self.takes_lease = False  # whether the lease has run out when a turn fails
        self.watch = Watch()
        self._stopped = False
        self._changed = asyncio.Event()

    async def acquire(self) -> HeldElsewhere | None:
        self.held = self.claimed = True
        return None

    async def renew(self) -> bool:
        return self.held

    async def release(self) -> None:
        self._say("release")
        self.held = self.claimed = False

    def ready(self) -> None:
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._changed.set()

    async def run(self) -> None:
        self._say("run")
        if self.turns:
            turn = self.turns.pop(0)
            self.held = self.held and not (self.takes_lease or isinstance(turn, Fenced))
            raise turn
        await self._until(lambda: self._stopped)
        self._say("end")

    async def pause(self, _: asyncio.Event, seconds: float) -> None:
        self.waits.append(seconds)

    async def said(self, *log: str) -> None:
        async with patience(f"{log}, not {self.log}"):
            await self._until(lambda: self.log == list(log))

    async def _until(self, true: object) -> None:
        while not true():  # type: ignore[operator] # a predicate
            self._changed.clear()
            await self._changed.wait()

    def _say(self, what: str) -> None:
        self.log.append(what)
        self._changed.set()

    def let_go(self) -> None:
        self._say("let go")


@asynccontextmanager
async def owned(script: Script) -> AsyncIterator[LeaseKeeper]:
    one = LeaseKeeper(
        script,
        script,
        subscription="s",
        changed=lambda: None,
        let_go=script.let_go,
        watch=script.watch,
        clock=StubClock(wait=script.pause),
    )
    task = asyncio.create_task(one.run())
    try:
        yield one
        one.stop()
        async with patience("the keeper to end"):
            await task
    finally:
        await ended(task)


async def taken(one: LeaseKeeper) -> None:
    await one.acquire()
    one.start()


@pytest.mark.parametrize(("fault", "wait"), [(StoreUnavailable("away"), 1.0), (RuntimeError("a fault of ours"), 5.0)])
async def test_after_whatever_happened_it_is_taken_up_again(fault: Exception, wait: float) -> None:
    """After a store failure or an internal error the run starts again after a pause, and the lease is kept."""
    script = Script(fault)
    async with owned(script) as one:
        await taken(one)
        await script.said("run", "run")
        assert script.held
    assert script.log == ["run", "run", "end", "release", "let go"]
    assert script.waits == [wait]


async def test_a_fault_of_the_program_is_an_error_meanwhile() -> None:
    """Between the runs, an unexpected error is that of the feed consumer, without its text, which may be a secret."""
    script, seen = Script(RuntimeError("s3cret")), []

    async def pause(_: asyncio.Event, __: float) -> None:
        seen.append(one.error)

    script.pause = pause  # type: ignore[assignment,method-assign]
    async with owned(script) as one:
        await taken(one)
        await script.said("run", "run")
        assert one.error is None
    assert seen == ["a fault of the program, see its log: RuntimeError"]


async def test_a_store_that_is_away_is_told_to_who_tells_it_once_for_all() -> None:
    """The keeper reports store failures under the feed consumer's name, and reports recovery at its end at latest."""
    script = Script(StoreUnavailable("away"))
    async with owned(script) as one:
        await taken(one)
        await script.said("run", "run")
    assert script.watch.told == ["s acme/a worked", "s acme/a: away", "s acme/a worked", "s acme/a worked"]


async def test_a_lease_that_is_lost_is_waited_for() -> None:
    """After a lost lease the keeper pauses, and runs again only when the lease is acquired anew."""
    script = Script(Fenced("lost"))
    async with owned(script) as one:
        await taken(one)
        await script.said("run")
        await until(lambda: not (one.is_active or one.busy), "the keeper's pause to end")
        assert not one.held
        await taken(one)
        await script.said("run", "run")
    assert script.waits == [2.0]


async def test_handed_back_when_what_is_in_flight_has_ended() -> None:
    """A lease is released after its run has ended; acquired again, it gets another run."""
    script = Script()
    async with owned(script) as one:
        await taken(one)
        await script.said("run")
        await one.hand_back()
        assert script.log == ["run", "end", "release"]
        assert not one.is_active
        await taken(one)
        await script.said("run", "end", "release", "run")


async def test_handed_back_before_it_began() -> None:
    """A lease that is handed back right after it was acquired gets no run."""
    script = Script()
    async with owned(script) as one:
        await taken(one)
        await one.hand_back()
        await turns(5)
        assert script.log == ["release"]
    assert script.log == ["release"]


async def test_what_failed_is_forgotten_when_another_process_has_the_lease() -> None:
    """A lease that ran out with its store away is no reason any more not to be ready; nor is one that was refused."""
    for fault in (StoreUnavailable("away"), StoreRefused("refused")):
        script = Script(fault)
        script.takes_lease = True
        async with owned(script) as one:
            await taken(one)
            await script.said("run")
            await until(lambda: script.waits, "the pause")  # noqa: B023 -- waited for within the turn
            await turns()
            assert not one.is_active
            assert one.error is None
            assert script.watch.told[-1] == f"{one.name} worked"


async def test_what_failed_before_the_lease_went_is_forgotten_with_it() -> None:
    """The same for a lease that is found to be another process's while its keeper pauses after a failure."""
    script, go_on = Script(StoreUnavailable("away")), asyncio.Event()

    async def wait(_: asyncio.Event, __: float) -> None:
        await go_on.wait()

    one = LeaseKeeper(
        script,
        script,
        subscription="s",
        watch=script.watch,
        changed=lambda: None,
        let_go=script.let_go,
        clock=StubClock(wait=wait),
    )
    task = asyncio.create_task(one.run())
    await taken(one)
    await until(lambda: script.watch.told[-1:] == [f"{one.name}: away"], "the failure")
    one.lost()
    assert script.watch.told[-1] == f"{one.name} worked"
    go_on.set()
    await ended(task)


async def test_told_to_stop_it_waits_no_longer() -> None:
    """A keeper that never held its lease stops at once and releases nothing."""
    script = Script()
    async with owned(script):
        pass
    assert script.log == []


async def test_cancelled_it_lets_the_lease_go() -> None:
    """A cancelled keeper releases its lease, so that another process can continue at once."""
    script = Script()
    one = LeaseKeeper(
        script, script, subscription="s", watch=script.watch, changed=lambda: None, let_go=script.let_go, clock=Clock()
    )
    task = asyncio.create_task(one.run())
    await taken(one)
    await script.said("run")
    await ended(task)
    assert script.log == ["run", "release", "let go"]


# Laws of :mod:`poller.daemon.cluster.leases` and :mod:`poller.daemon.cluster.membership` on a real store: several
# processes in one event loop.

LONG = timedelta(seconds=30)
NAMES = tuple(f"s/{letter}" for letter in "abcdefg")


def short() -> timedelta:
    """A lifetime that ends within a test, long enough to be renewed in time on the machine as busy as it is now."""
    return timedelta(milliseconds=900) * strain()


def now() -> datetime:
    return datetime.now(UTC)


class Lot:
    """A lease that only records whether work runs under it."""

    def __init__(self, name: str, client: Redis, member: str, ttl: timedelta, changed: Callable[[], None]) -> None:
        self.name = self.feed = name
        self.lease = FeedKeys.of("poller", name).lease
        self.kept = Lease(
            client,
            LeaseScripts(client),
            self.lease,
            token=nonce_of(member, Clock()),
            ttl=ttl,
            certain=False,
            clock=Clock(),
        )
        self.nonce = self.kept.token.encode()
        self.busy = False
        self.begun = 0
        self.working = False
        self.quick = asyncio.Event()  # while it is not set, the lease cannot be acquired
        self.quick.set()
        self._changed = changed

    async def acquire(self) -> HeldElsewhere | None:
        await self.quick.wait()
        return await self.kept.acquire()

    @property
    def held(self) -> bool:
        return self.kept.held

    def start(self) -> None:
        assert self.held
        assert not self.working, "work under a lost lease has to end before it starts again"
        self.working = True
        self.begun += 1
        self._changed()

    def lost(self) -> None:
        self.working = False
        self._changed()

    async def hand_back(self) -> None:
        assert not self.busy
        self.lost()
        await self.kept.release()

    async def release(self) -> None:
        await self.hand_back()


class Restless(Lot):
    """A lease whose next short round begins just after its process has looked whether it is busy."""

    in_round = False
    rounds = 0
    cut_off = 0

    @property
    def busy(self) -> bool:
        if not self.in_round:
            asyncio.get_running_loop().call_soon(self._begin)
        return self.in_round

    @busy.setter
    def busy(self, value: bool) -> None:
        self.in_round = value

    def _begin(self) -> None:
        if self.working:
            self.in_round = True
            self.rounds += 1
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self.in_round = False

    async def hand_back(self) -> None:
        self.cut_off += self.in_round
        self.lost()
        await self.kept.release()


class Awkward(Lot):
    """A lease whose acquisition or release the test can delay or fail."""

    def __init__(self, name: str, client: Redis, member: str, ttl: timedelta, changed: Callable[[], None]) -> None:
        super().__init__(name, client, member, ttl, changed)
        self.takes = 0
        self.answered = 0
        self.ends = 0
        self.ended = False
        self.unanswered: list[StoreError] = []  # raised after the next acquisitions, which the store has made
        self.refused: list[StoreError] = []  # raised before the next acquisitions and releases
        self.taking = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.let_go = asyncio.Event()
        self.let_go.set()

    async def acquire(self) -> HeldElsewhere | None:
        self.takes += 1
        self._fail()
        found = await super().acquire()
        self.taking.set()
        await self.go_on.wait()
        self.answered += 1
        if self.unanswered:
            self.kept.lose()
            raise self.unanswered.pop(0)
        return found

    async def hand_back(self) -> None:
        self.ends += 1
        self._fail()
        await self.let_go.wait()
        await super().hand_back()
        self.ended = True

    def _fail(self) -> None:
        if self.refused:
            raise self.refused.pop(0)


@dataclass
class World:
    """Processes that share leases."""

    client: Redis
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lots: dict[str, list[Lot]] = field(default_factory=dict)

    @asynccontextmanager
    async def awkward(self, name: str, *others: str) -> AsyncIterator[tuple[LeaseBalancer, list[Awkward]]]:
        """A process with :class:`Awkward` leases; it does not release them at its end."""
        clock = asyncio.get_running_loop().time
        watch = StoreMonitor("warn", clock=StubClock(now=now, monotonic=clock))
        members = Members(self.client, MemberKeys.of("poller"), name="a", ttl=LONG, clock=store_clock())
        membership = Membership(members, ttl=LONG, watch=watch, clock=StubClock(monotonic=clock), look_seconds=0.02)
        sharing = LeaseBalancer(
            "poll", membership, self.client, ttl=LONG, watch=watch, clock=StubClock(monotonic=clock)
        )
        lots = [Awkward(one, self.client, "a", LONG, self.changed.set) for one in (name, *others)]
        for lot in lots:
            sharing.add(lot)
        membership.join("poll")
        async with membership.running():
            taking = asyncio.create_task(sharing.run())
            try:
                yield sharing, lots
            finally:
                await ended(taking)

    @asynccontextmanager
    async def process(
        self,
        name: str,
        ttl: timedelta = LONG,
        *,
        names: Sequence[str] = NAMES,
        crash: asyncio.Event | None = None,
        slow: bool = False,
        kind: type[Lot] = Lot,
    ) -> AsyncIterator[list[Lot]]:
        """A process that runs during the block; it leaves in order unless it has crashed.

        Args:
            name: in the member list.
            ttl: how long its leases live.
            names: the leases that it knows.
            crash: if set by the end of the block, the process ends without leaving the member list.
            slow: whether it acquires no lease until the test sets its ``quick``.
            kind: the leases.
        """
        clock = asyncio.get_running_loop().time
        watch = StoreMonitor("warn", clock=StubClock(now=now, monotonic=clock))
        said = MemberConfiguration(tuple(names))
        members = Members(
            self.client, MemberKeys.of("poller"), name=name, ttl=ttl, clock=store_clock(), configuration=said
        )
        membership = Membership(members, ttl=ttl, watch=watch, clock=StubClock(monotonic=clock), look_seconds=0.02)
        sharing = LeaseBalancer("poll", membership, self.client, ttl=ttl, watch=watch, clock=StubClock(monotonic=clock))
        lots = [kind(one, self.client, name, ttl, self.changed.set) for one in names]
        for lot in lots:
            if slow:
                lot.quick.clear()
            sharing.add(lot)
        self.lots[name] = lots
        membership.join("poll")
        renewing = asyncio.create_task(keep_renewed([lot.kept for lot in lots], ttl=ttl, clock=Clock()))
        taking = asyncio.create_task(sharing.run())
        present = membership.running()
        await present.__aenter__()
        try:
            yield lots
        finally:
            await ended(taking, renewing)
            if crash is not None and crash.is_set():
                membership._members.leave = _silent  # type: ignore[assignment,method-assign] # a crashed process does not leave
            else:
                for lot in lots:
                    if lot.held:
                        await lot.hand_back()
            del self.lots[name]
            await present.__aexit__(None, None, None)

    def counts(self) -> list[int]:
        """How many leases each process works under."""
        return sorted((sum(lot.working for lot in lots) for lots in self.lots.values()), reverse=True)

    def owners(self, name: str) -> list[str]:
        return [process for process, lots in self.lots.items() for lot in lots if lot.name == name and lot.working]

    async def until(self, *counts: int) -> None:
        """Wait until the processes hold these numbers of leases; no lease has two owners meanwhile."""
        async with patience(f"{counts}, not {self.counts()}"):
            while self.counts() != list(counts):
                self.changed.clear()
                await self.changed.wait()
                assert all(len(self.owners(name)) <= 1 for name in NAMES)


async def there(client: Redis, name: str) -> bool:
    return bool(await client.hexists(MemberKeys.of("poller").roles, name))


async def there_no_more(client: Redis, name: str) -> bool:
    return not await there(client, name)


async def _silent(*_: object, **__: object) -> None: ...


@pytest.fixture
async def world(store_url: str) -> AsyncIterator[World]:
    client = commands(store_url)
    yield World(client)
    await client.aclose()


async def test_all_share_evenly_as_they_come_and_go(world: World) -> None:
    """A single process holds every lease; as others join and leave, shares are even and no lease has two owners."""
    async with world.process("a"):
        await world.until(7)
        async with world.process("b"):
            await world.until(4, 3)
            async with world.process("c"):
                await world.until(3, 2, 2)
            await world.until(4, 3)
        await world.until(7)


async def test_what_is_busy_stays_until_it_is_not(world: World) -> None:
    """A busy lease is handed back when its round has ended, not during it."""
    async with world.process("a") as lots:
        await world.until(7)
        for lot in lots:
            lot.busy = True
        async with world.process("b") as others:
            await until(lambda: there(world.client, "b"), "the other process to join")
            for lot in lots[:3]:
                lot.busy = False
            released = grown("poller_lease_changes_total", kind="feed", change="released")
            await world.until(4, 3)
            assert grown("poller_lease_changes_total", kind="feed", change="released") == released + 3
            assert {lot.name for lot in others if lot.working} == {lot.name for lot in lots[:3]}
            for lot in lots:
                lot.busy = False


async def test_no_round_begins_between_the_decision_to_hand_back_and_its_start(world: World) -> None:
    """A lease is chosen while it is not busy; a round that is due in the same turn no longer begins."""
    async with world.process("a", kind=Restless) as lots:
        await world.until(7)
        async with world.process("b"):
            await world.until(4, 3)
        restless = [lot for lot in lots if isinstance(lot, Restless)]
        assert sum(lot.rounds for lot in restless) > 0
        assert [lot.cut_off for lot in restless] == [0] * 7


async def test_of_one_that_dies_the_leases_are_taken_when_they_end(world: World) -> None:
    """The leases of a crashed process are shared evenly by the others as soon as they expire."""
    crash, clock, term = asyncio.Event(), asyncio.get_running_loop().time, short()
    async with world.process("a", term), world.process("b", term):
        async with world.process("c", term, crash=crash):
            await world.until(3, 2, 2)
            crash.set()
        at = clock()
        await world.until(4, 3)
        assert clock() - at < 2 * term.total_seconds() + 2 * strain()


@pytest.mark.thorough
async def test_a_process_that_may_crash_again_is_given_no_leases_at_first(world: World) -> None:
    """When a process has crashed soon after its start, those that start are given leases after three lifetimes.

    One that crashes again and again would else take the leases of the others each time, and let them run out.
    """
    crash, clock, term = asyncio.Event(), asyncio.get_running_loop().time, short()
    async with world.process("m", term):
        await world.until(7)
        async with world.process("a", term, crash=crash):
            await world.until(4, 3)
            crash.set()
        await world.until(7)
        await until(lambda: there_no_more(world.client, "a"), "the crashed process to leave the list")
        at = clock()
        async with world.process("b", term):
            await world.until(4, 3)
            assert clock() - at > 3 * term.total_seconds()


async def test_leases_of_those_that_leave_go_to_those_that_wait_for_their_first(world: World) -> None:
    """After a crash, processes that replace all others one by one acquire all leases as those leave."""
    crash, clock, term = asyncio.Event(), asyncio.get_running_loop().time, short()
    async with AsyncExitStack() as first, AsyncExitStack() as second:
        await first.enter_async_context(world.process("m", term))
        await second.enter_async_context(world.process("n", term))
        async with world.process("a", term, crash=crash):
            await world.until(3, 2, 2)
            crash.set()
        await until(lambda: there_no_more(world.client, "a"), "the crashed process to leave the list")
        async with world.process("b", term), world.process("c", term):
            at = clock()
            await first.aclose()
            await until(lambda: sum(world.counts()) == len(NAMES), "all leases to be acquired")
            await second.aclose()
            await world.until(4, 3)
            assert clock() - at < term.total_seconds()


async def test_a_lease_that_is_lost_is_taken_again(world: World) -> None:
    """A process notices a lost lease, ends the work under it, and acquires it again."""
    async with world.process("a", short()) as lots:
        await world.until(7)
        lost, taken = (grown("poller_lease_changes_total", kind="feed", change=one) for one in ("lost", "taken"))
        for lot in lots[:2]:
            await world.client.delete(lot.lease)
        async with patience("work under both to start again"):
            while [lot.begun for lot in lots[:2]] != [2, 2]:
                world.changed.clear()
                await world.changed.wait()
        await world.until(7)
        assert grown("poller_lease_changes_total", kind="feed", change="lost") == lost + 2
        assert grown("poller_lease_changes_total", kind="feed", change="taken") == taken + 2
        await until(lambda: grown("poller_leases_held", kind="feed") == 7, "all leases to be counted")


async def test_what_others_do_not_know_is_taken_all_the_same(world: World) -> None:
    """A lease that no other process acquires is acquired beyond the share after its lifetime."""
    async with world.process("b", short(), names=NAMES[:2]):
        await world.until(2)
        async with world.process("a", short()), patience("all leases to be acquired"):
            while sum(world.counts()) != len(NAMES):
                world.changed.clear()
                await world.changed.wait()
            assert all(len(world.owners(name)) == 1 for name in NAMES)


@pytest.mark.thorough
async def test_shares_are_even_again_after_a_process_was_slow(world: World) -> None:
    """Leases that were acquired beyond the share while another process was slow are offered to it again."""
    async with world.process("a", short()) as lots:
        await world.until(7)
        async with world.process("b", short(), slow=True) as others:
            async with patience("the leases handed back to be acquired again"):
                while sum(lot.begun for lot in lots) < len(NAMES) + 3:
                    world.changed.clear()
                    await world.changed.wait()
            for lot in others:
                lot.quick.set()
            await world.until(4, 3)


async def test_a_stranger_is_waited_for(world: World) -> None:
    """A lease held by a process outside the member list, such as a single round, is acquired when it expires."""
    lease = FeedKeys.of("poller", NAMES[0]).lease
    await world.client.set(lease, nonce_of("once-1-ab", Clock()), px=300)
    async with world.process("a") as lots:
        await world.until(7)
        assert lots[0].begun == 1


async def test_one_that_has_joined_is_seen(world: World) -> None:
    """``joined`` returns once the process is in the member list, not before."""
    clock = asyncio.get_running_loop().time
    watch = StoreMonitor("warn", clock=StubClock(now=now, monotonic=clock))
    members = Members(world.client, MemberKeys.of("poller"), name="one", ttl=LONG, clock=store_clock())
    membership = Membership(members, ttl=LONG, watch=watch, clock=StubClock(monotonic=clock))
    membership.join("poll")
    waiting = asyncio.create_task(membership.joined("poll"))
    assert not await there(world.client, "one")
    assert not waiting.done()
    async with membership.running(), patience("the process to join"):
        await waiting
        assert await there(world.client, "one")


async def test_a_lease_from_before_the_stores_clock_was_set_back_is_taken(world: World) -> None:
    """A lease that a gone process left with a lifetime of a day is acquired after one term."""
    for name in NAMES[:2]:
        await world.client.set(FeedKeys.of("poller", name).lease, nonce_of("gone", Clock()), ex=86_400)
    async with world.process("a", short()):
        await world.until(len(NAMES))


async def test_what_was_taken_beside_one_that_failed_is_begun(world: World) -> None:
    """A store failure for one lease does not delay the work of leases acquired in the same turn."""
    async with world.awkward("s/a", "s/b", "s/c") as (_, (failing, *others)):
        failing.refused = [StoreUnavailable("away")]
        await until(lambda: failing.working, "the failed lease to be acquired later")
        assert [lot.takes for lot in others] == [1, 1]
        assert [lot.begun for lot in others] == [1, 1]


async def test_a_lease_whose_taking_was_not_answered_is_had_at_once(world: World) -> None:
    """Work starts at once under a lease that was granted though the reply was lost, without waiting for its expiry."""
    async with world.awkward("s/a") as (sharing, (lot,)):
        lot.unanswered = [StoreUnavailable("the answer is lost")]
        await lot.taking.wait()
        sharing.announce_release()  # so that all leases are read before this one is retried
        await until(lambda: lot.working, "work under the lease", seconds=10)


async def test_what_is_dropped_while_it_is_taken_is_handed_back(world: World) -> None:
    """A lease that is dropped while it is being acquired is handed back without any work."""
    async with world.awkward("s/a") as (sharing, (lot,)):
        lot.go_on.clear()
        await lot.taking.wait()
        sharing.drop(lot)
        lot.go_on.set()
        await until(lambda: lot.ended, "the release")
        assert (lot.begun, await world.client.exists(lot.lease)) == (0, 0)


async def test_handing_back_goes_on_when_the_store_is_back(world: World) -> None:
    """A release that the store failed is tried again, so that other processes need not wait for the expiry."""
    async with world.awkward("s/a") as (sharing, (lot,)):
        lot.go_on.clear()
        await lot.taking.wait()
        lot.refused = [StoreUnavailable("away")]
        sharing.drop(lot)
        lot.go_on.set()
        await until(lambda: lot.ended, "the release")
        assert lot.ends == 2


async def test_what_is_being_handed_back_at_the_end_is_finished(world: World) -> None:
    """A process that stops finishes the release that it has begun."""
    async with world.awkward("s/a") as (sharing, (lot,)):
        lot.go_on.clear()
        await lot.taking.wait()
        sharing.drop(lot)
        lot.let_go.clear()
        lot.go_on.set()
        await until(lambda: lot.ends, "the start of the release")
        asyncio.get_running_loop().call_later(0.25, lot.let_go.set)  # later than the next cancellation
    assert lot.ended


async def test_what_is_dropped_while_it_is_taken_at_the_end_is_handed_back(world: World) -> None:
    """A lease whose work ended while it was being acquired is handed back also by a process that stops."""
    async with world.awkward("s/a") as (sharing, (lot,)):
        lot.go_on.clear()
        await lot.taking.wait()
        sharing.drop(lot)
        asyncio.get_running_loop().call_later(0.25, lot.go_on.set)
    assert lot.ended
    assert (lot.begun, await world.client.exists(lot.lease)) == (0, 0)


async def test_what_was_taken_beside_another_at_the_end_is_handed_back(world: World) -> None:
    """So is one that was acquired already, while another lease of the same turn is still being acquired."""
    async with world.awkward("s/a", "s/b") as (sharing, (lot, other)):
        other.go_on.clear()
        await other.taking.wait()
        await until(lambda: lot.answered, "the reply for the first lease")
        await turns(20)
        sharing.drop(lot)
        sharing.drop(other)
        asyncio.get_running_loop().call_later(0.25, other.go_on.set)
    assert (lot.begun, lot.ended, other.ended) == (0, True, True)
    assert not await world.client.exists(lot.lease, other.lease)


async def test_what_is_being_taken_at_the_end_is_answered(world: World) -> None:
    """A process that stops waits for the reply to its request for a lease, so that it can release the lease."""
    async with world.awkward("s/a") as (_, (lot,)):
        lot.go_on.clear()
        await lot.taking.wait()
        asyncio.get_running_loop().call_later(0.25, lot.go_on.set)
    assert (lot.takes, lot.answered, lot.begun) == (1, 1, 0)


async def test_a_lease_that_the_store_refuses_is_tried_now_and_then(world: World) -> None:
    """A lease that the store keeps refusing delays no other lease and is not requested at every look."""
    clock = asyncio.get_running_loop().time
    async with world.awkward("s/a", "s/b") as (sharing, (lot, other)):
        lot.refused = [StoreRefused("NOPERM") for _ in range(1000)]
        began = clock()
        await until(lambda: other.working, "the other lease to be acquired")
        for _ in range(20):
            sharing.wake()
            await turns(200)
        assert lot.takes <= 1 + (clock() - began) / 5


async def test_an_unusable_key_of_one_lease_keeps_no_other_from_being_acquired(world: World) -> None:
    """While a lease's key has another type, the other leases are acquired and that one is requested."""
    broken = FeedKeys.of("poller", "s/a").lease
    await world.client.hset(broken, "x", "y")
    async with world.awkward("s/a", "s/b") as (_, (lot, other)):
        await until(lambda: other.working, "the other lease to be acquired", seconds=10)
        await until(lambda: lot.takes, "the unusable one to be requested", seconds=10)
        assert not lot.working


async def test_what_is_lost_in_the_middle_of_a_round_ends_with_it(world: World) -> None:
    """A round whose lease is lost runs to its own end; then the process acquires the lease again."""
    async with world.process("a", short()) as (lot, other, *_):
        await world.until(7)
        lot.busy = True
        await world.client.delete(lot.lease, other.lease)
        await until(lambda: other.begun == 2, "the other lease to be acquired again")
        await until(lambda: not lot.held, "the loss to be noticed")
        await world.client.incr(MemberKeys.of("poller").version)
        await world.client.delete(other.lease)
        await until(lambda: other.begun == 3, "the other lease to be acquired once more")
        assert (lot.working, lot.begun) == (True, 1)
        lot.busy = False
        await until(lambda: lot.begun == 2, "the lease to be acquired again")


def test_extras_are_known_with_their_offers(store_url: str) -> None:
    """A surplus lease has its age, its offers, and whether others list its feed; a change of members resets them."""
    at, ttl = [0.0], 3.0
    client = commands(store_url)
    lots = LeaseTable(client, ttl=ttl, clock=StubClock(monotonic=lambda: at[0]))
    lots.add(Lot(NAMES[0], client, "a", LONG, lambda: None))
    place = lots[NAMES[0]]

    def held_beyond(seconds: float) -> SurplusLease:
        place.state = "own"
        lots.taken_beyond(place)
        at[0] += seconds
        return lots.extras(None)[NAMES[0]]

    assert held_beyond(1.0) == SurplusLease(1.0)
    assert lots.extras(NAMES[1:])[NAMES[0]] == SurplusLease(1.0, listed=False)
    lots.handed(place)
    assert not lots.extras(None)
    assert held_beyond(2.0) == SurplusLease(2.0, offers=1)
    lots.handed(place)
    assert held_beyond(0.0) == SurplusLease(0.0, offers=2)
    lots.members_changed()
    assert not lots.extras(None)
    assert held_beyond(0.0) == SurplusLease(0.0)
