"""Law: members of a group that are killed within the loop's body strand no event, and keep what is promised."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from poller.lifecycle import ended
from tests.client.published import FEED, publish
from tests.client.test_consumer import pending
from tests.harness.waiting import lasting, until
from tests.stores import Store, looking

ROOT: Final = Path(__file__).parents[2]
EACH: Final = 8
"""Events for each kill."""

FEWER: Final = 50
"""Kills of exclusive members on the second kind of server: each costs a second, until the other member takes over."""

REPEATED: Final = 20
"""Events of a batch of these members: what may wait for its acknowledgement."""


@dataclass
class Handled:
    """An event whose body began: the member, its sequence, and whether the member was killed in the body."""

    name: str
    sequence: int
    killed: bool = False


@dataclass
class Group:
    """Two members that are started again when they are killed.

    Attributes:
        url: of the store.
        mode: ``exclusive`` or ``shared``.
        kills: how many are left.
        handled: each event whose body began, in order.
    """

    url: str
    mode: str
    kills: int
    chance: Random
    handled: list[Handled] = field(default_factory=list)

    async def keep(self, name: str) -> None:
        """Run a member until cancelled."""
        while True:
            command = (
                sys.executable,
                "-m",
                "tests.client.member_process",
                self.url,
                FEED,
                name,
                self.mode,
                lasting(0.7)[:-2],
            )
            process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
            try:
                await self._drive(name, process)
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.communicate()

    async def _drive(self, name: str, process: Process) -> None:
        """Let it handle events until it is killed."""
        assert process.stdout is not None
        assert process.stdin is not None
        async for line in process.stdout:
            one = Handled(name, int(line), killed=self.kills > 0 and self.chance.random() < 2 / EACH)
            self.handled.append(one)
            if one.killed:
                self.kills -= 1
                process.kill()
                return
            process.stdin.write(b"\n")

    @property
    def sequences(self) -> set[int]:
        return {one.sequence for one in self.handled}


@pytest.fixture
def store(server: str) -> Iterator[Any]:
    with looking(server) as client:
        yield client


def faults(handled: list[Handled]) -> list[Handled]:
    """Events out of order: neither the one after the last, nor a repeat directly after a kill or a takeover."""
    found, last = list[Handled](), Handled("", 0)
    for one in handled:
        is_repeat = last.sequence - REPEATED < one.sequence <= last.sequence and (last.killed or last.name != one.name)
        if one.sequence != last.sequence + 1 and not is_repeat:
            found.append(one)
        last = one
    return found


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.thorough)])
@pytest.mark.timeout(900)
async def test_members_that_are_killed_strand_nothing(
    single_kind: Store, server: str, store: Any, mode: str, kills: int
) -> None:
    """Two members killed -9 in the body: every event is handled, and none is pending in the end.

    Exclusive: in the order of the stream, with repeats only of what was not acknowledged at a kill.
    """
    if (single_kind, mode) == ("redis", "exclusive"):
        kills = min(kills, FEWER)
    total = kills * EACH + 20
    group = Group(server, mode, kills, Random(kills))
    members = [asyncio.create_task(group.keep(name), name=name) for name in "ab"]
    try:
        for first in range(1, total, 20):
            publish(store, *range(first, min(first + 20, total + 1)))
            await until(lambda: len(group.sequences) > first - 10, "progress", seconds=120)  # noqa: B023 -- it is awaited
        everything = set(range(1, total + 1))
        await until(lambda: group.sequences == everything, "every event", seconds=600)
        await until(lambda: pending(store) == 0, "every acknowledgement", seconds=60)
    finally:
        await ended(*members)
    assert group.kills == 0
    if mode == "exclusive":
        assert faults(group.handled) == []
        assert len(group.handled) <= total + 3 * kills
