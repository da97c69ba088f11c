"""Laws of :mod:`poller.daemon.cluster.assignment` for any number of processes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from poller.daemon.cluster.assignment import LeaseMoves, SurplusLease, moves, offers_counted, preferred, share

_PATIENCE = 3.0
_MOST_MOVES = 2 * 5  # per process in 300 s: back and forth after terms of 9, 18, 36, 72 and 144 s
COUNTS, MEMBERS = st.integers(0, 30), st.integers(1, 7)


@given(COUNTS, MEMBERS)
def test_shares_add_up(count: int, members: int) -> None:
    """Law: the shares of all processes add up to the number of leases, and differ by at most one."""
    shares = [share(count, place, members) for place in range(members)]
    assert sum(shares) == count
    assert max(shares) - min(shares) <= 1


@given(COUNTS, MEMBERS)
def test_nobody_reaches_for_what_another_takes_first(count: int, members: int) -> None:
    """Law: the first choices of all processes together contain each lease exactly once."""
    names = [f"{number:02}" for number in range(count)]
    chosen = [preferred(names, place, members)[: share(count, place, members)] for place in range(members)]
    assert sorted(name for one in chosen for name in one) == names


@given(COUNTS)
def test_a_process_alone_takes_all_and_hands_back_nothing(count: int) -> None:
    """Law: a single process acquires every lease and hands none back."""
    names = [f"{number:02}" for number in range(count)]
    alone = {"place": 0, "members": 1, "patience": _PATIENCE}
    found = moves(names, own=(), busy=(), free=dict.fromkeys(names, 0.0), **alone)  # type: ignore[arg-type] # as given
    assert found == LeaseMoves(take=tuple(names))
    assert moves(names, own=names, busy=(), free={}, **alone) == LeaseMoves()  # type: ignore[arg-type] # as given


def test_what_is_busy_is_not_handed_back() -> None:
    """Law: a surplus lease is handed back after its round has ended, never during it."""
    known = {"names": "abcd", "own": "abcd", "free": {}, "place": 0, "members": 2, "patience": _PATIENCE}
    assert moves(**known, busy="abcd") == LeaseMoves(over=True)  # type: ignore[arg-type] # as given
    assert moves(**known, busy="bd") == LeaseMoves(hand=("a", "c"))  # type: ignore[arg-type] # as given
    assert moves(**known, busy="") == LeaseMoves(hand=("b", "d"))  # type: ignore[arg-type] # as given


def test_what_nobody_takes_is_taken_beyond_the_share() -> None:
    """Law: a process acquires a lease beyond its share after the others had time to acquire it."""
    known = {"names": "abcd", "busy": "", "place": 0, "members": 2, "patience": _PATIENCE}
    assert moves(**known, own="ac", free={"b": 2.9, "d": 3.0}) == LeaseMoves(beyond=("d",))  # type: ignore[arg-type] # as given


def test_an_extra_is_offered_after_a_term_that_doubles() -> None:
    """Law: a surplus lease is handed back after three times the patience, then six times, then twelve times."""
    known = {"names": "abcd", "busy": "", "free": {}, "place": 0, "members": 2, "patience": _PATIENCE}
    for offers, term in enumerate((9.0, 18.0, 36.0)):
        for seconds, found in ((term - 0.1, LeaseMoves()), (term, LeaseMoves(hand=("d",)))):
            extra = {"d": SurplusLease(seconds, offers)}
            assert moves(**known, own="acd", extras=extra) == found  # type: ignore[arg-type] # as given


def test_what_only_this_process_lists_is_never_offered() -> None:
    """Law: a surplus lease that no other process lists is never handed back, nor another lease in its place."""
    known = {"names": "abcd", "busy": "", "free": {}, "place": 0, "members": 2, "patience": _PATIENCE}
    extra = {"d": SurplusLease(1e9, listed=False)}
    assert moves(**known, own="acd", extras=extra) == LeaseMoves()  # type: ignore[arg-type] # as given
    extra["b"] = SurplusLease(9.0)
    assert moves(**known, own="abcd", extras=extra) == LeaseMoves(hand=("b",))  # type: ignore[arg-type] # as given


def test_an_offer_hands_back_extras_alone() -> None:
    """Law: surplus leases that are due are handed back before those in the share, and busy ones after their round."""
    known = {"names": "abcd", "own": "abcd", "free": {}, "place": 0, "members": 2, "patience": _PATIENCE}
    extra = {"a": SurplusLease(9.0), "c": SurplusLease(9.0)}
    assert moves(**known, busy="", extras=extra) == LeaseMoves(hand=("a", "c"))  # type: ignore[arg-type] # as given
    alone = {"a": SurplusLease(9.0), "c": SurplusLease(8.0)}
    assert moves(**known, busy="abcd", extras=alone) == LeaseMoves(over=True)  # type: ignore[arg-type] # as given


def test_offers_of_long_ago_do_not_count() -> None:
    """Law: the term is short again once other processes had the lease for twice as long as the next term."""
    assert [offers_counted(2, seconds, _PATIENCE) for seconds in (3.0, 72.0, 72.1)] == [2, 2, 0]
    assert offers_counted(0, math.inf, _PATIENCE) == 0


@dataclass
class Process:
    """A process: the leases that it knows and the leases that it holds."""

    name: str
    knows: tuple[str, ...]
    own: set[str] = field(default_factory=set)
    extra: dict[str, float] = field(default_factory=dict)  # and when each was acquired
    offers: dict[str, tuple[int, float]] = field(default_factory=dict)  # count for each, and time of the last
    saw: tuple[str, ...] = ()


@dataclass
class World:
    """Processes that follow the assignment, one after the other, in any order."""

    processes: list[Process]
    free: dict[str, float] = field(default_factory=dict)  # and since when
    moved: Counter[str] = field(default_factory=Counter)
    now: float = 0.0

    def turn(self, process: Process, busy: frozenset[str] = frozenset()) -> None:
        names = tuple(sorted(one.name for one in self.processes))
        if process.saw != names:
            process.saw, process.extra, process.offers = names, {}, {}
            self.free = dict.fromkeys(self.free, self.now)
        listed = {name for one in self.processes if one is not process for name in one.knows}
        found = moves(
            process.knows,
            own=process.own,
            busy=busy & process.own,
            free={name: self.now - since for name, since in self.free.items() if name in process.knows},
            place=names.index(process.name),
            members=len(names),
            patience=_PATIENCE,
            extras={
                name: SurplusLease(self.now - since, process.offers.get(name, (0, 0.0))[0], name in listed)
                for name, since in process.extra.items()
            },
        )
        for name in found.hand:
            assert name not in busy
            process.own.remove(name)
            self.free[name] = self.now
            if process.extra.pop(name, None) is not None:
                process.offers[name] = process.offers.get(name, (0, 0.0))[0] + 1, self.now
        for name in (*found.take, *found.beyond):
            del self.free[name]
            process.own.add(name)
        for name in found.beyond:
            process.extra[name] = self.now
            offers, at = process.offers.get(name, (0, 0.0))
            process.offers[name] = offers_counted(offers, self.now - at, _PATIENCE), at
        self.moved.update((*found.hand, *found.take, *found.beyond))

    def settle(self, *, seconds: int = 10) -> None:
        """Let some seconds pass in which every process takes its turns."""
        for _ in range(seconds):
            for process in self.processes:
                self.turn(process)
            self.now += 1.0

    def gone(self, number: int) -> None:
        process = self.processes.pop(number)
        self.free |= dict.fromkeys(process.own, self.now)


STEPS = st.lists(st.tuples(st.sampled_from(["join", "gone", "turn", "time"]), st.integers(0, 6), st.integers(0, 6)))


@given(COUNTS, STEPS, st.data())
def test_whatever_happens_all_is_held_evenly_in_the_end(
    count: int, steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    """Law: after joins, crashes, long rounds and delays all leases are held, shares are even, and nothing moves."""
    leases = tuple(f"{number:02}" for number in range(count))
    world = World([Process("first", leases)], dict.fromkeys(leases, 0.0))
    names = [f"p{number}" for number in range(7)]
    for what, one, number in steps:
        who = one % len(world.processes)
        if what == "join" and names[number] not in {process.name for process in world.processes}:
            world.processes.append(Process(names[number], leases))
        elif what == "gone" and len(world.processes) > 1:
            world.gone(who)
        elif what == "turn":
            world.turn(
                world.processes[who], frozenset(data.draw(st.sets(st.sampled_from(leases)))) if leases else frozenset()
            )
        elif what == "time":
            world.now += 1.0 + number
    world.settle()
    world.now += 1e6  # every surplus lease is due by then
    world.settle()
    counts = [len(process.own) for process in world.processes]
    assert not world.free
    assert sum(counts) == count
    assert max(counts) - min(counts) <= 1
    before = world.moved.copy()
    world.now += 1e6
    world.settle()
    assert world.moved == before


@given(st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), min_size=1, max_size=4))
def test_what_only_some_know_is_held_all_the_same(known: list[set[str]]) -> None:
    """Law: all leases are held though processes know different ones; a lease that one process knows never moves."""
    processes = [Process(f"p{number}", tuple(sorted(one))) for number, one in enumerate(known)]
    world = World(processes, dict.fromkeys(sorted(set().union(*known)), 0.0))
    world.settle()
    assert not world.free
    before, knowing = world.moved.copy(), Counter(name for process in processes for name in process.knows)
    world.settle(seconds=300)
    for name, times in (world.moved - before).items():
        assert knowing[name] > 1, f"{name}, which one process knows, has moved"
        assert times <= _MOST_MOVES * knowing[name], f"{name} has moved {times} times"
