"""Laws of :mod:`poller.service.shares`, and of any number of processes that go by it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from poller.service.shares import Moves, moves, preferred, share

_PATIENCE = 3.0
COUNTS, MEMBERS = st.integers(0, 30), st.integers(1, 7)


@given(COUNTS, MEMBERS)
def test_shares_add_up(count: int, members: int) -> None:
    """Law: to all there are, and no two differ by more than one."""
    shares = [share(count, place, members) for place in range(members)]
    assert sum(shares) == count
    assert max(shares) - min(shares) <= 1


@given(COUNTS, MEMBERS)
def test_nobody_reaches_for_what_another_takes_first(count: int, members: int) -> None:
    """Law: the first choices of all processes are all leases, each once."""
    names = [f"{number:02}" for number in range(count)]
    chosen = [preferred(names, place, members)[: share(count, place, members)] for place in range(members)]
    assert sorted(name for one in chosen for name in one) == names


@given(COUNTS)
def test_a_process_alone_takes_all_and_hands_back_nothing(count: int) -> None:
    """Law: with one process sharing changes nothing."""
    names = [f"{number:02}" for number in range(count)]
    alone = {"place": 0, "members": 1, "patience": _PATIENCE}
    found = moves(names, ours=(), busy=(), free=dict.fromkeys(names, 0.0), **alone)  # type: ignore[arg-type] # as given
    assert found == Moves(take=tuple(names))
    assert moves(names, ours=names, busy=(), free={}, **alone) == Moves()  # type: ignore[arg-type] # as given


def test_what_is_busy_is_not_handed_back() -> None:
    """Law: never in the middle of a round; the rest waits for its end."""
    known = {"names": "abcd", "ours": "abcd", "free": {}, "place": 0, "members": 2, "patience": _PATIENCE}
    assert moves(**known, busy="abcd") == Moves(over=True)  # type: ignore[arg-type] # as given
    assert moves(**known, busy="bd") == Moves(hand=("a", "c"))  # type: ignore[arg-type] # as given
    assert moves(**known, busy="") == Moves(hand=("b", "d"))  # type: ignore[arg-type] # as given


def test_what_nobody_takes_is_taken_beyond_the_share() -> None:
    """Law: after the others had their time, and it stays."""
    known = {"names": "abcd", "busy": "", "place": 0, "members": 2, "patience": _PATIENCE}
    assert moves(**known, ours="ac", free={"b": 2.9, "d": 3.0}) == Moves(beyond=("d",))  # type: ignore[arg-type] # as given
    assert moves(**known, ours="acd", free={}, extra=1) == Moves()  # type: ignore[arg-type] # as given


@dataclass
class Process:
    """One that knows some leases and has some of them."""

    name: str
    knows: tuple[str, ...]
    ours: set[str] = field(default_factory=set)
    extra: int = 0
    saw: tuple[str, ...] = ()


@dataclass
class World:
    """Processes that go by the rules, one after the other, in any order."""

    processes: list[Process]
    free: dict[str, float] = field(default_factory=dict)
    moved: int = 0

    def turn(self, process: Process, busy: frozenset[str] = frozenset()) -> None:
        names = tuple(sorted(one.name for one in self.processes))
        if process.saw != names:
            process.saw, process.extra = names, 0
            self.free = dict.fromkeys(self.free, 0.0)
        found = moves(
            process.knows,
            ours=process.ours,
            busy=busy & process.ours,
            free={name: age for name, age in self.free.items() if name in process.knows},
            place=names.index(process.name),
            members=len(names),
            patience=_PATIENCE,
            extra=process.extra,
        )
        for name in found.hand:
            assert name not in busy
            process.ours.remove(name)
            self.free[name] = 0.0
        for name in (*found.take, *found.beyond):
            del self.free[name]
            process.ours.add(name)
        process.extra += len(found.beyond)
        self.moved += len(found.hand) + len(found.take) + len(found.beyond)

    def settle(self) -> None:
        for _ in range(10):
            for process in self.processes:
                self.turn(process)
            self.free = {name: age + 1.0 for name, age in self.free.items()}

    def gone(self, number: int) -> None:
        process = self.processes.pop(number)
        self.free |= dict.fromkeys(process.ours, 0.0)


STEPS = st.lists(st.tuples(st.sampled_from(["join", "gone", "turn", "time"]), st.integers(0, 6), st.integers(0, 6)))


@given(COUNTS, STEPS, st.data())
def test_whatever_happens_all_is_held_evenly_in_the_end(
    count: int, steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    """Law: after joins, crashes, long rounds and turns in any order, nothing is free, shares are even, all is still."""
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
            world.free = {name: age + 1.0 for name, age in world.free.items()}
    # What was taken beyond a share while others waited stays until the processes are others.
    world.processes.append(Process("last", leases))
    world.settle()
    counts = [len(process.ours) for process in world.processes]
    assert not world.free
    assert sum(counts) == count
    assert max(counts) - min(counts) <= 1
    before = world.moved
    world.settle()
    assert world.moved == before


@given(st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), min_size=1, max_size=4))
def test_what_only_some_know_is_held_all_the_same(known: list[set[str]]) -> None:
    """Law: while processes know different leases, each one that anybody knows is held by one, and nothing flaps."""
    processes = [Process(f"p{number}", tuple(sorted(one))) for number, one in enumerate(known)]
    world = World(processes, dict.fromkeys(sorted(set().union(*known)), 0.0))
    world.settle()
    assert not world.free
    before = world.moved
    world.settle()
    assert world.moved == before
