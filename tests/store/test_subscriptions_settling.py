"""Laws of :mod:`poller.store.subscriptions`: whose file counts, whoever comes and goes in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.store import subscriptions as registering
from poller.store.subscriptions import REASON, Contested, Paused, Settled, Subscriptions, Write, contested, settling
from tests.store.test_subscriptions import applied

NOW = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
HAS, LACKS = frozenset({"x"}), frozenset[str]()


@dataclass
class Site:
    """Processes on one registry, by name, with the ids of their files."""

    kept: Subscriptions = field(default_factory=Subscriptions)
    there: dict[str, frozenset[str]] = field(default_factory=dict)
    started: int = 0
    changes: int = 0

    def start(self, file: frozenset[str]) -> str:
        """In the list first, then what the file says."""
        self.started += 1
        name = f"m{self.started}"
        self.there[name] = file
        writes, _ = registering.syncing(self.kept, dict.fromkeys(sorted(file), b"{}"), NOW, member=name)
        self._write(writes)
        return name

    def leave(self, name: str) -> None:
        """With or without a word: it is not in the list any more."""
        del self.there[name]

    def look(self, name: str) -> Settled:
        """One look of one process."""
        writes, settled = settling(self.kept, contested(self.kept, self.there[name]), name, self.there, NOW)
        self._write(writes)
        assert bool(writes) == bool(settled.returned or settled.removed)
        return settled

    def settle(self) -> None:
        """All look again and again until nothing changes."""
        while True:
            before = self.changes
            for name in self.there:
                self.look(name)
            if self.changes == before:
                return
            assert self.changes < 20 * (self.started + 1), "they fight"

    def rests(self, subscription: str = "x") -> bool:
        return subscription in self.kept.paused

    def _write(self, writes: list[Write]) -> None:
        if writes:
            self.kept = applied(self.kept, writes)
            self.changes += 1


def test_a_process_that_was_there_for_a_moment_silences_nothing() -> None:
    """Law: whoever has it brings it back, also when the other has gone, and knows who has paused it."""
    site = Site()
    owner = site.start(HAS)
    stranger = site.start(LACKS)
    assert site.rests()
    site.leave(stranger)
    assert site.look(owner) == Settled(returned={"x": stranger})
    assert not site.rests()
    assert site.look(owner) == Settled()


def test_two_that_stay_do_not_fight() -> None:
    """Law: brought back once, it is left alone by who has not got it, until that one is started again."""
    site = Site()
    owner, other = site.start(HAS), site.start(LACKS)
    site.look(owner)
    changes = site.changes
    for _ in range(3):
        assert (site.look(other), site.look(owner)) == (Settled(), Settled())
    assert (site.rests(), site.changes) == (False, changes)
    site.leave(other)
    again = site.start(LACKS)
    assert site.look(owner) == Settled(returned={"x": again})


def test_a_rolling_upgrade_that_drops_it() -> None:
    """Law: while old processes are left it goes on; with the last of them it ends, paused, without a word of theirs."""
    site = Site()
    old = [site.start(HAS) for _ in range(3)]
    for one in old:
        site.start(LACKS)
        site.settle()
        assert not site.rests()
        site.leave(one)
    site.settle()
    assert site.rests()
    assert (site.kept.paused["x"].by, site.kept.paused["x"].reason) == ("removed", REASON)


def test_a_rolling_upgrade_that_adds_it_and_is_taken_back() -> None:
    """Law: the older ones leave it alone, and pause it when the new ones have gone."""
    site = Site()
    old, fresh = site.start(LACKS), site.start(HAS)
    site.settle()
    assert not site.rests()
    site.leave(fresh)
    assert site.look(old) == Settled(removed=("x",))
    assert site.rests()
    site.start(HAS)
    assert not site.rests()


def test_one_that_is_not_in_the_list_brings_nothing_back() -> None:
    """Law: as one that was stopped for long: the others could not see who has it."""
    site = Site()
    owner = site.start(HAS)
    site.start(LACKS)
    found = contested(site.kept, HAS)
    assert settling(site.kept, found, owner, site.there.keys() - {owner}, NOW) == ([], Settled())


@pytest.mark.parametrize("by", ["operator", "sink", "failures"])
def test_other_pauses_are_nobodys_file_s_concern(by: str) -> None:
    """Law: neither ended nor replaced, by whoever has it or has not got it."""
    site = Site()
    owner, other = site.start(HAS), site.start(LACKS)
    site.look(owner)
    pause = Paused(by, "so", NOW)  # type: ignore[arg-type] # one of them
    site.kept = applied(site.kept, registering.pausing(site.kept, "x", pause)[0])
    site.settle()
    site.leave(owner)
    assert site.look(other) == Settled()
    assert site.kept.paused == {"x": pause}


def test_what_an_operator_has_resumed_goes_on() -> None:
    """Law: his word counts more than that nobody's file has it; and one of run time is in no file anyway."""
    site = Site()
    owner, other = site.start(HAS), site.start(LACKS)
    site.leave(owner)
    site.settle()
    site.kept = applied(site.kept, registering.resuming(site.kept, "x", bytes)[0])
    site.kept = applied(site.kept, registering.adding(site.kept, "run", b"{}", (), NOW))
    assert (site.look(other), contested(site.kept, LACKS)) == (Settled(), Contested())


def test_other_settings_come_back_with_it() -> None:
    """Law: one that returns by a file with other settings has these, and whose file it was is kept through changes."""
    site = Site()
    site.start(HAS)
    site.leave(site.start(LACKS))
    writes, _ = registering.syncing(site.kept, {"x": b'{"rate":1}'}, NOW, member="late")
    site.kept = applied(site.kept, writes)
    assert bytes(site.kept.registered["x"].settings) == b'{"rate":1}'
    site.kept = applied(site.kept, registering.syncing(site.kept, {"x": b'{"rate":2}'}, NOW, member="later")[0])
    one = site.kept.registered["x"]
    assert (bytes(one.settings), one.member, site.rests()) == (b'{"rate":2}', "late", False)


FILES = st.frozensets(st.sampled_from("xy"))
STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "start", "leave", "look", "settle"]), FILES, st.integers(0, 9)), max_size=25
)


@given(STEPS, st.sets(st.integers(0, 5)))
def test_in_the_end_it_goes_on_exactly_where_somebody_has_it(
    steps: list[tuple[str, frozenset[str], int]], last: set[int]
) -> None:
    """Law: whoever comes, looks and goes in whatever order, all come to rest, and those that are there decide."""
    site = Site()
    for step, file, which in steps:
        if step == "start":
            site.start(file)
        elif step == "settle":
            site.settle()
        elif site.there:
            name = sorted(site.there)[which % len(site.there)]
            if step == "leave":
                site.leave(name)
            else:
                site.look(name)
    site.settle()
    for number, name in enumerate(sorted(site.there)):
        if number in last:
            site.leave(name)
    if not site.there:
        site.start(LACKS)
    site.settle()
    wanted = frozenset[str]().union(*site.there.values())
    assert site.kept.registered.keys() - site.kept.paused.keys() == wanted
