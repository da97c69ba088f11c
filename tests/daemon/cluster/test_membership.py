"""Laws of :mod:`poller.daemon.cluster.membership` where the store is slow or unavailable, on a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from poller.clock import Clock
from poller.daemon.cluster.membership import Membership
from poller.daemon.health import Readiness, StoreMonitor
from poller.errors import StoreError, StoreUnavailable
from poller.lifecycle import ended
from poller.redis.client import commands
from poller.store.keys import MemberKeys
from poller.store.members import UNSAID, MemberConfiguration, MemberList, Members
from poller.store.scripts import ScriptBatch, ScriptCall, ScriptQuestion
from tests.harness.clock import StubClock, store_clock
from tests.harness.waiting import patience, turns, until

KEYS = MemberKeys.of("poller")
TERM = timedelta(hours=1)


class List(Members):
    """The member list; the test can act while it is read, or make it unavailable."""

    def __init__(self, client: Redis) -> None:
        super().__init__(client, KEYS, name="one", ttl=TERM, clock=store_clock())
        self.asked: list[str] = []
        self.besides: list[int] = []  # how many scripts were sent with each
        self.refused = 0
        self.away = False
        self.meanwhile: Callable[[], None] = lambda: None

    async def read(
        self, known: MemberList, *, tell: bool = False, besides: Sequence[ScriptQuestion] = ()
    ) -> MemberList:
        self._note("look", besides, tell=tell)
        return await super().read(known, tell=tell, besides=besides)

    async def beat(
        self, roles: Iterable[str], known: MemberList, *, tell: bool = False, besides: Sequence[ScriptQuestion] = ()
    ) -> MemberList:
        self._note("beat", besides, tell=tell)
        return await super().beat(roles, known, tell=tell, besides=besides)

    def _note(self, what: str, besides: Sequence[ScriptQuestion], *, tell: bool) -> None:
        self.asked.append(what)
        self.besides.append(len(besides))
        self.meanwhile()
        if self.away:
            self.refused += tell
            raise StoreUnavailable("away")


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Redis]:
    client = commands(store_url)
    yield client
    await client.aclose()


def membership_of(members: Members, *, look_seconds: float, clock: Callable[[], float] | None = None) -> Membership:
    clock = clock or asyncio.get_running_loop().time
    watch = StoreMonitor("warn", clock=StubClock(monotonic=clock))
    return Membership(members, ttl=TERM, watch=watch, clock=StubClock(monotonic=clock), look_seconds=look_seconds)


async def test_what_the_others_are_to_hear_survives_an_absence_of_the_store(client: Redis) -> None:
    """Law: a release during a store outage is announced when the store is back, not only at the next sweep."""
    members = List(client)
    membership = membership_of(members, look_seconds=0.01)
    membership.join("poll")
    async with membership.running(), patience("the process to join"):
        await membership.joined("poll")
        before = int(await client.get(KEYS.version) or 0)
        members.away = True
        membership.announce_release()
        await until(lambda: members.refused, "the store to fail the announcement")
        members.away = False

        async def told() -> bool:
            return int(await client.get(KEYS.version) or 0) > before

        await until(told, "the list's version to grow")


async def test_a_store_that_is_away_is_a_problem_until_the_list_is_read_again(client: Redis) -> None:
    """Law: a failed reading is a problem of the store until one succeeds, each time that this happens."""
    members, watch = List(client), StoreMonitor("warn", clock=store_clock())
    watch.attach(client, [])
    membership = Membership(members, ttl=TERM, watch=watch, clock=store_clock(), look_seconds=0.01)
    async with membership.running():
        for _ in range(2):
            members.away = True
            await until(lambda: [one.name for one in watch.reasons()] == ["store"], "the problem")
            members.away = False
            await until(lambda: not watch.reasons(), "its end")


async def test_one_that_the_store_has_forgotten_is_back_with_the_next_look(client: Redis) -> None:
    """Law: a process that is missing from the member list joins again without waiting for its next beat."""
    membership = membership_of(List(client), look_seconds=0.01)
    membership.join("poll")
    async with membership.running(), patience("the process to join"):
        await membership.joined("poll")
        await client.delete(KEYS.roles, KEYS.beats)
        await client.incr(KEYS.version)

        async def there() -> bool:
            return bool(await client.hexists(KEYS.roles, "one"))

        await until(there, "the process to be in the list again")


async def test_what_changes_while_the_store_is_asked_is_said_next(client: Redis) -> None:
    """Law: a role that is added while a beat is under way is announced without waiting for the next look."""
    members = List(client)
    membership = membership_of(members, look_seconds=3600)
    members.meanwhile = lambda: membership.join("deliver")
    membership.join("poll")
    async with membership.running(), patience("both roles to be announced"):
        await membership.joined("poll")
        await membership.joined("deliver")


async def test_the_time_to_the_next_beat_counts_from_the_question(client: Redis) -> None:
    """Law: a slow reply does not put off the next beat, since the store counts from the request."""
    moment = 0.0
    members = List(client)
    membership = membership_of(members, look_seconds=0.01, clock=lambda: moment)

    def slow() -> None:
        nonlocal moment
        moment += TERM.total_seconds() / 3

    members.meanwhile = slow
    membership.join("poll")
    async with membership.running():
        await until(lambda: len(members.asked) > 4, "more readings")
    assert set(members.asked) == {"beat"}


@pytest.mark.parametrize(
    ("silent", "expected"),
    [((), {"acme/two", "acme/three"}), (("two",), None), (("one", "four"), {"acme/two", "acme/three"})],
)
async def test_what_the_others_list(client: Redis, silent: tuple[str, ...], expected: set[str] | None) -> None:
    """Law: ``listed`` holds the feeds of other processes with the same role; a silent process may list any."""
    membership = membership_of(List(client), look_seconds=TERM.total_seconds())
    said = {name: MemberConfiguration((f"acme/{name}",)) for name in ("one", "two", "three", "four")}
    roles = dict.fromkeys(said, frozenset({"poll"})) | {"four": frozenset({"deliver"})}
    membership.seen = MemberList("1", roles, said | dict.fromkeys(silent, UNSAID))
    assert membership.listed("poll") == expected


class MadeUp(List):
    """A member list that the test makes up."""

    made = MemberList()

    async def read(self, *_: object, **__: object) -> MemberList:
        return self.made

    async def beat(self, *_: object, **__: object) -> MemberList:
        return self.made


@pytest.mark.parametrize("life", [0.5, 1.2, 1.9])
async def test_one_that_crashes_again_and_again_is_given_leases_once(client: Redis, life: float) -> None:
    """Law: a process that crashes within two lifetimes of each start is given leases only after its first start.

    The other ones see it for a lifetime longer than it lives; leases that it had would have no owner by then.
    """
    moment, ttl = 0.0, TERM.total_seconds()
    members = MadeUp(client)
    membership = membership_of(members, look_seconds=0.001, clock=lambda: moment)

    async def show(*names: str) -> None:
        members.made = MemberList(f"{moment} {len(names)}", dict.fromkeys(names, frozenset({"poll"})))
        await until(lambda: membership.seen is members.made, "a reading")

    membership.join("poll")
    async with membership.running():
        await show("one")
        for count in range(6):
            moment = came = moment + 0.2 * ttl
            await show("one", f"start {count}")
            shared = []
            for passed in (0, life / 2, life, life + 0.5, life + 0.99):
                moment = came + passed * ttl
                rank = membership.steady("poll")
                assert rank is not None
                shared.append(len(rank.names) > 1)
            assert shared == [count == 0] * 5
            moment = came + (life + 1) * ttl
            await show("one")


async def test_one_that_is_alone_looks_less_often(client: Redis) -> None:
    """Law: a process reads the list four times as often once it has seen another one, and as long as that is there."""
    slept: list[float] = []

    class Waits(StubClock):
        async def wait(self, event: asyncio.Event, seconds: float) -> bool:
            slept.append(seconds)
            return await super().wait(event, 0.001)

    members = MadeUp(client)
    clock = Waits(monotonic=asyncio.get_running_loop().time)
    watch = StoreMonitor("warn", clock=clock)
    membership = Membership(members, ttl=TERM, watch=watch, clock=clock, look_seconds=1)
    membership.join("poll")
    async with membership.running():
        for names, seconds in ((("one",), 4), (("one", "two"), 1), (("two",), 1), (("one",), 4), ((), 1)):
            members.made = MemberList(" ".join(names) or "none", dict.fromkeys(names, frozenset({"poll"})))
            await until(lambda: membership.seen is members.made, "a reading")
            slept.clear()
            await until(lambda: len(slept) > 2, "some more")
            least = seconds - 1 if seconds > 1 else seconds  # alone, it wakes with what else wakes the process
            assert all(least <= one <= seconds + 0.1 for one in slept[1:])


COUNT = ScriptCall("return redis.call('INCR', KEYS[1])", ("poller:{one}:n",))


async def test_what_is_asked_goes_with_the_next_reading(client: Redis) -> None:
    """Law: all waiting scripts are sent with the next reading of the list, and each caller gets its own reply."""
    members = List(client)
    membership = membership_of(members, look_seconds=3600)
    membership.join("poll")
    asked = [asyncio.create_task(membership.ask(COUNT)) for _ in range(3)]
    given_up = asyncio.create_task(membership.ask(COUNT))
    await turns()
    await ended(given_up)
    async with membership.running(), patience("the answers"):
        assert [await one for one in asked] == [1, 2, 3]
    assert members.besides == [3]


async def test_an_answer_is_never_older_than_its_question(client: Redis) -> None:
    """Law: a script that is asked for during a reading is sent with the next one, since this one may be on its way."""
    members, asked = List(client), list[asyncio.Task[int]]()
    membership = membership_of(members, look_seconds=0.01)

    def once_more() -> None:
        if len(members.asked) == 2:
            asked.append(asyncio.create_task(membership.ask(COUNT)))

    members.meanwhile = once_more
    membership.join("poll")
    async with membership.running(), patience("an answer"):
        await until(lambda: asked, "a reading")
        assert await asked[0] == 1
    assert members.besides[:3] == [0, 0, 1]


async def test_who_asks_a_store_that_is_away_is_told(client: Redis) -> None:
    """Law: a failed reading raises its error in each waiting caller; asked again, the store's reply arrives."""
    members = List(client)
    membership = membership_of(members, look_seconds=0.01)
    broken = commands("unix:///nowhere/s")
    members._batch = ScriptBatch(broken)
    async with membership.running(), patience("the answers"):
        with pytest.raises(StoreUnavailable):
            await membership.ask(COUNT)
        members._batch = ScriptBatch(client)
        assert await membership.ask(COUNT) == 1
    await broken.aclose()


async def test_a_question_that_cannot_be_answered_any_more_is_cancelled(client: Redis) -> None:
    """Law: a waiting script is cancelled when the list is no longer read."""
    membership = membership_of(List(client), look_seconds=3600)
    async with membership.running():
        await until(lambda: membership.seen.version, "a reading")
        asked = asyncio.create_task(membership.ask(COUNT))
        await turns()
    await turns()
    assert asked.cancelled()


async def test_what_another_program_wrote_among_the_processes_keeps_none_from_reading(client: Redis) -> None:
    """Law: members that are not UTF-8 end neither the reading of the list nor the scripts sent with it."""
    membership = membership_of(List(client), look_seconds=0.01)
    membership.join("poll")
    await client.hset(KEYS.roles, mapping={b"\xff": b"\xfe", "other": b"poll"})
    await client.hset(KEYS.configurations, mapping={b"\xff": b"{}", "other": b'{"feeds":["\xff"]}'})
    async with membership.running(), patience("the process to join"):
        await membership.joined("poll")
        assert membership.seen.doing("poll") == ("one", "other")
        assert membership.listed("poll") is None
        assert await membership.ask(COUNT) == 1


async def test_a_list_that_cannot_be_read_makes_a_process_unready(client: Redis) -> None:
    """Law: while the list's key has another type, the process is not ready and says why."""
    membership = membership_of(List(client), look_seconds=0.01)
    membership.join("poll")
    readiness = Readiness(StoreMonitor("warn", clock=store_clock()))
    readiness.started()
    readiness.sharing(lambda: membership.error)
    await client.set(KEYS.beats, "x")
    async with membership.running(), patience("the failure, and its end"):
        await until(lambda: membership.error, "the failure")
        reasons = {one.name: one.text for one in (await readiness.report()).reasons}
        assert "WRONGTYPE" in reasons["processes"]
        await client.delete(KEYS.beats)
        await membership.joined("poll")
        await until(lambda: membership.error is None, "the end of the failure")
        assert "processes" not in [one.name for one in (await readiness.report()).reasons]


async def test_a_fault_of_the_program_ends_no_reading(client: Redis) -> None:
    """Law: an unexpected error of a reading is raised in each waiting caller; after a pause the list is read again."""
    members, faults = List(client), [ValueError("unforeseen")]
    membership = Membership(
        members, ttl=TERM, watch=StoreMonitor("warn", clock=store_clock()), clock=_Hurried(), look_seconds=0.01
    )

    def fault() -> None:
        if faults and members.besides[-1]:
            raise faults.pop()

    members.meanwhile = fault
    async with membership.running(), patience("the answers"):
        await until(lambda: members.asked, "a reading")  # the first reading has no script
        with pytest.raises(StoreError, match="ValueError"):
            await membership.ask(COUNT)
        assert await membership.ask(COUNT) == 1


class _Hurried(Clock):
    """A clock whose sleeps end at once."""

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        await asyncio.sleep(0)
