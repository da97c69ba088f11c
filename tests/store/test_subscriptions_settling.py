"""Laws of :func:`poller.store.subscriptions.plan_file_pauses`: subscriptions that no live process lists are paused."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from poller.store import subscriptions as registering
from poller.store.keys import SubscriptionKeys
from poller.store.members import ListedSubscriptions, MemberConfiguration, MemberList
from poller.store.registry import Registry
from poller.store.subscriptions import (
    UNLISTED,
    FilePauses,
    Paused,
    Subscriptions,
    Write,
    plan_file_pauses,
    subscriptions_of,
)

NOW = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
HAS, LACKS = frozenset({"x"}), frozenset[str]()
DELIVER = frozenset({"deliver"})
Kind = Literal["new", "older", "silent"]
"""A process of this version, of one that noted whose file had brought a subscription back, and of one that in addition
does not say what it lists."""


@dataclass(frozen=True)
class Process:
    name: str
    file: frozenset[str]
    kind: Kind = "new"


@dataclass
class Site:
    """Processes on one registry, which is held as in the store."""

    registry: dict[bytes, bytes] = field(default_factory=dict)
    paused: dict[bytes, bytes] = field(default_factory=dict)
    there: dict[str, Process] = field(default_factory=dict)
    started: int = 0
    changes: int = 0

    @property
    def kept(self) -> Subscriptions:
        return subscriptions_of(b"1", [self.registry, {}, {}, self.paused, {}, {}, {}])

    @property
    def listed(self) -> ListedSubscriptions:
        said = {
            one.name: MemberConfiguration((), {}, None if one.kind == "silent" else dict.fromkeys(one.file, "digest"))
            for one in self.there.values()
        }
        return MemberList(roles=dict.fromkeys(self.there, DELIVER), configurations=said).subscriptions

    @property
    def active(self) -> frozenset[str]:
        return frozenset(self.kept.registered.keys() - self.kept.paused.keys())

    def start(self, file: frozenset[str], kind: Kind = "new") -> Process:
        """Start a process: it joins the member list, then its file is applied."""
        self.started += 1
        one = Process(f"m{self.started}", file, kind)
        self.there[one.name] = one
        if kind == "new":
            self.write(registering.plan_file(self.kept, dict.fromkeys(sorted(file), b"{}"), NOW))
            self.look(one)
        else:
            self._start_older(one)
        return one

    def leave(self, one: Process) -> None:
        """End a process, in order or by a crash: it leaves the member list."""
        del self.there[one.name]

    def look(self, one: Process) -> FilePauses:
        """Let one process reconcile the pauses once."""
        if one.kind != "new":
            self._look_older(one)
            return FilePauses()
        writes, changed = plan_file_pauses(self.kept, self.listed, NOW)
        self.write(writes)
        assert bool(writes) == bool(changed.paused or changed.resumed)
        return changed

    def settle(self) -> None:
        """Let all processes reconcile again and again until nothing changes."""
        while True:
            before = self.changes
            for one in self.there.values():
                self.look(one)
            if self.changes == before:
                return
            assert self.changes < 20 * (self.started + 1), "the processes undo each other's changes"

    def write(self, writes: list[Write]) -> None:
        for part, name, value in writes:
            where = {"registry": self.registry, "paused": self.paused}.get(part, {})
            where.pop(name.encode(), None)
            if value is not None:
                where[name.encode()] = value
        self.changes += bool(writes)

    def _start_older(self, one: Process) -> None:
        for name in sorted(one.file):
            if name.encode() not in self.registry:
                new = {"origin": "file", "settings": {}, "since": NOW, "asked": 0, "member": one.name}
                self._write_older(name, new, pause=None)
        self._look_older(one)
        for name, registered in self._filed_older():
            if name not in one.file and name.encode() not in self.paused:
                self._write_older(name, registered | {"member": ""}, pause=one.name)

    def _look_older(self, one: Process) -> None:
        """As in commit bc6a44b and before, which stored the name of the member that listed or paused a subscription."""
        for name, registered in self._filed_older():
            pause = msgspec.json.decode(self.paused.get(name.encode(), b"null"))
            if pause and pause["by"] == "removed" and name in one.file:
                self._write_older(name, registered | {"member": one.name}, pause=None)
            by = registered.get("member", "")
            if not pause and by and name not in one.file and by not in self.there:
                self._write_older(name, registered | {"member": ""}, pause=one.name)

    def _filed_older(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name.decode(), msgspec.json.decode(text)) for name, text in self.registry.items()]

    def _write_older(self, name: str, registered: dict[str, Any], *, pause: str | None) -> None:
        gone = {"by": "removed", "reason": "it left", "at": NOW, "member": pause}
        encoded = None if pause is None else msgspec.json.encode(gone)
        self.write([("registry", name, msgspec.json.encode(registered)), ("paused", name, encoded)])


def test_a_process_with_another_file_pauses_nothing_that_a_live_one_lists() -> None:
    """Law: a process with another file pauses nothing when it starts, runs or ends."""
    site = Site()
    site.start(HAS)
    changes = site.changes
    other = site.start(LACKS)
    site.settle()
    site.leave(other)
    site.settle()
    assert (site.active, site.changes) == (HAS, changes)


def test_a_rolling_upgrade_that_drops_it() -> None:
    """Law: while a rolling upgrade drops a subscription, it is active until the last old process has gone."""
    site = Site()
    old = [site.start(HAS) for _ in range(3)]
    for one in old:
        site.start(LACKS)
        site.settle()
        assert site.active == HAS
        site.leave(one)
    site.settle()
    assert not site.active
    assert site.kept.paused["x"] == Paused("removed", UNLISTED, NOW)


def test_a_rolling_upgrade_that_adds_it_and_is_taken_back() -> None:
    """Law: old processes pause a new subscription once the new processes have gone; the next resumes it."""
    site = Site()
    old, fresh = site.start(LACKS), site.start(HAS)
    site.settle()
    assert site.active == HAS
    site.leave(fresh)
    assert site.look(old) == FilePauses(paused=("x",))
    assert not site.active
    site.start(HAS)
    assert site.active == HAS


def test_where_nothing_is_known_of_the_others_nothing_changes() -> None:
    """Law: without a complete list of live processes, nothing is paused or resumed."""
    site = Site()
    site.start(HAS)
    assert plan_file_pauses(site.kept, ListedSubscriptions(), NOW) == ([], FilePauses())
    site.there.clear()
    assert not site.listed.is_complete
    site.start(LACKS)
    assert plan_file_pauses(site.kept, ListedSubscriptions(), NOW) == ([], FilePauses())


def test_a_process_that_does_not_say_what_it_lists_may_list_any() -> None:
    """Law: while a process lives that does not say what it lists, nothing is paused."""
    site = Site()
    owner = site.start(frozenset({"x", "y"}))
    site.start(HAS)
    site.leave(owner)
    site.settle()
    assert site.active == HAS
    silent = Process("silent", frozenset(), "silent")
    site.there = {"silent": silent, "new": Process("new", LACKS)}
    site.settle()
    assert site.active == HAS
    site.leave(silent)
    site.settle()
    assert not site.active


@pytest.mark.parametrize("by", ["operator", "sink", "failures"])
def test_other_pauses_are_no_file_s_concern(by: str) -> None:
    """Law: other pauses are neither ended nor replaced, whether a live process lists the subscription or not."""
    site = Site()
    owner, other = site.start(HAS), site.start(LACKS)
    pause = Paused(by, "so", NOW)  # type: ignore[arg-type] # one of them
    site.write(registering.plan_pause(site.kept, "x", pause)[0])
    site.settle()
    site.leave(owner)
    assert site.look(other) == FilePauses()
    site.start(HAS)
    assert site.kept.paused == {"x": pause}


def test_one_of_run_time_is_in_no_file() -> None:
    """Law: no file changes a subscription added at run time, not even one that lists the same id."""
    site = Site()
    site.write(registering.plan_addition(site.kept, "run", b"{}", (), NOW))
    other = site.start(LACKS)
    assert site.look(other) == FilePauses()
    run, listed = Site(dict(site.registry)), ListedSubscriptions(frozenset({"run"}), is_complete=True)
    run.write(registering.plan_pause(run.kept, "run", Paused("removed", "so", NOW))[0])
    assert plan_file_pauses(run.kept, listed, NOW) == ([], FilePauses())


def test_other_settings_come_back_with_it() -> None:
    """Law: a subscription that returns with other settings has the new ones."""
    site = Site()
    site.leave(site.start(HAS))
    late = site.start(LACKS)
    assert not site.active
    site.there[late.name] = Process(late.name, HAS)
    site.write(registering.plan_file(site.kept, {"x": b'{"rate":1}'}, NOW))
    site.settle()
    assert (bytes(site.kept.registered["x"].settings), site.active) == (b'{"rate":1}', HAS)


def test_what_an_older_version_noted_is_gone_when_it_is_resumed() -> None:
    """Law: resuming deletes an older version's member name, or older processes would pause it again."""
    site = Site()
    site.leave(site.start(HAS, "older"))
    older = site.start(LACKS, "older")
    assert not site.active
    fresh = site.start(HAS)
    assert b"member" not in site.registry[b"x"]
    site.settle()
    assert site.active == HAS
    site.leave(fresh)
    site.look(older)
    assert site.active == HAS  # until the last older process has gone


FILES = st.frozensets(st.sampled_from("xy"))
STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "start", "leave", "look", "settle"]), FILES, st.integers(0, 9)), max_size=25
)
KINDS: st.SearchStrategy[Kind] = st.sampled_from(["new", "new", "older", "silent"])


def played(site: Site, steps: list[tuple[str, frozenset[str], int]], kinds: list[Kind]) -> None:
    """Start, end and reconcile processes in this order, then until nothing changes."""
    for step, file, which in steps:
        if step == "start":
            site.start(file, kinds[which % len(kinds)])
        elif step == "settle":
            site.settle()
        elif site.there:
            one = site.there[sorted(site.there)[which % len(site.there)]]
            if step == "leave":
                site.leave(one)
            else:
                site.look(one)
    site.settle()


@given(STEPS, st.sets(st.integers(0, 5)))
def test_in_the_end_it_goes_on_exactly_where_a_live_process_lists_it(
    steps: list[tuple[str, frozenset[str], int]], last: set[int]
) -> None:
    """Law: whatever the order of events, the active subscriptions are those that live processes list."""
    site = Site()
    played(site, steps, ["new"])
    for number, name in enumerate(sorted(site.there)):
        if number in last:
            site.leave(site.there[name])
    if not site.there:
        site.start(LACKS)
    site.settle()
    assert site.active == frozenset[str]().union(*(one.file for one in site.there.values()))


@given(STEPS, st.lists(KINDS, min_size=1, max_size=10))
def test_versions_side_by_side_do_not_fight(steps: list[tuple[str, frozenset[str], int]], kinds: list[Kind]) -> None:
    """Law: mixed versions settle with all listed ones active; without silent processes exactly those are active."""
    site = Site()
    played(site, steps, kinds)
    wanted = frozenset[str]().union(*(one.file for one in site.there.values()))
    assert site.active >= wanted
    for one in list(site.there.values()):
        if one.kind == "silent":
            site.leave(one)
    site.start(LACKS)
    site.settle()
    assert site.active == frozenset[str]().union(*(one.file for one in site.there.values()))


async def test_a_process_that_comes_while_another_one_looks_is_not_overlooked(store_client: Redis) -> None:
    """Law: the member list is read after the registry, and a change planned on an older registry is not written."""
    registry = Registry(store_client, SubscriptionKeys.of("poller"))
    await registry.sync([("x", b"{}"), ("y", b"{}")], NOW)
    looks: list[Subscriptions] = []

    async def listed() -> ListedSubscriptions:
        looks.append(await registry.all())
        if len(looks) == 1:  # a process that lists x joins after the list was read, and changes its settings
            await registry.sync([("x", b'{"rate":1}')], NOW)
            return ListedSubscriptions(is_complete=True)
        return ListedSubscriptions(frozenset("x"), is_complete=True)

    assert await registry.reconcile(listed, NOW) == FilePauses(paused=("y",))
    assert len(looks) == 2
    kept = await registry.all()
    assert {name: one.by for name, one in kept.paused.items()} == {"y": "removed"}
    version = await registry.version()
    assert await registry.reconcile(listed, NOW) == FilePauses()
    assert await registry.version() == version
