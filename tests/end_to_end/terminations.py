"""Stops daemons at random instants and measures how long they take to exit and to be replaced.

    python -m tests.end_to_end.terminations --times 50 --seed 1

Two daemons share four feeds and eight deliveries under changes; one of them, drawn at random, gets SIGTERM at a random
instant and is replaced. ``to leave`` is the time from the signal to the end of the process, ``to a round`` to the start
of the first round of one of its feeds in another daemon, ``to deliver`` to another owner of one of its delivery leases.
All in seconds; the start of the round is taken from the log.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tests.harness.commanded import commanded
from tests.harness.processes import daemon
from tests.harness.scene import RESOURCES, lease
from tests.harness.subscribed import Wish, subscribed
from tests.harness.waiting import unless, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.harness.delivered import Deliveries
    from tests.harness.processes import Daemon
    from tests.harness.subscribed import Subscribed

LEAVES_WITHIN = 10.0
NEXT_WITHIN = 1.0
_TTL = "30s"  # long, so that an unreleased lease shows
_WISHES = (Wish("one", lines='timeout = "10s"'), Wish("two", lines='timeout = "10s"'))
_PAIRS = tuple(f"poller:{{acme/{feed}}}:sub:{wish.sink}:lease" for feed in RESOURCES for wish in _WISHES)


@dataclass(slots=True)
class Tally:
    """The result of some terminations: seconds, exit codes, and the verdict on each sink."""

    to_leave: list[float] = field(default_factory=list)
    to_a_round: list[float] = field(default_factory=list)
    to_deliver: list[float] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    verdicts: list[Deliveries] = field(default_factory=list)

    @property
    def well(self) -> bool:
        """Whether all exited with 0 and in time, and nothing was lost or doubled."""
        in_time = max(self.to_leave) < LEAVES_WITHIN and not self.late
        return in_time and not any(self.codes) and all(one.clean and not one.repeats for one in self.verdicts)

    @property
    def late(self) -> int:
        """How often the next owner did not start within its time."""
        return sum(seconds >= NEXT_WITHIN for seconds in (*self.to_a_round, *self.to_deliver))

    def __str__(self) -> str:
        rows = {"to leave": self.to_leave, "to a round": self.to_a_round, "to deliver": self.to_deliver}
        lines = [f"{'':<12}{'times':>8}{'median':>8}{'95 %':>8}{'most':>8}"]
        for name, found in rows.items():
            figures = "".join(f"{_part(found, part):>8.2f}" for part in (0.5, 0.95, 1.0))
            lines.append(f"{name:<12}{len(found):>8}{figures}")
        lines.append(f"left with 0: {self.codes.count(0)} of {len(self.codes)}; beyond {NEXT_WITHIN:g} s: {self.late}")
        return "\n".join((*lines, *map(str, self.verdicts)))


async def terminate(directory: Path, times: int, seed: int, *, store: str | None = None, told: bool = False) -> Tally:
    """Terminate this many daemons, wait until everything is delivered, and judge."""
    rng, tally = Random(seed), Tally()
    async with subscribed(directory, _WISHES, store=store, seed=seed, changes_per_second=15, feeds=RESOURCES) as scene:
        config = scene.config(ttl=_TTL, interval="1s")
        async with AsyncExitStack() as stack:
            running = [await stack.enter_async_context(daemon(config)) for _ in range(2)]
            for number in range(times):
                for one in running:
                    await one.started()
                assert not await unless(running[0].gone, rng.random() * 1.5), "exited before the signal"
                leaver = running.pop(rng.randrange(2))
                await _left(scene, leaver, running[0], tally)
                running.append(await stack.enter_async_context(daemon(config)))
                if told and number % 10 == 9:
                    sys.stderr.write(f"{number + 1} of {times}\n")
            tally.verdicts = list((await scene.caught_up(seconds=60)).values())
    return tally


async def _left(scene: Subscribed, leaver: Daemon, other: Daemon, tally: Tally) -> None:
    """Terminate one daemon and measure until the other one has taken over its leases."""
    name, since = await leaver.started(), len(other.lines)
    had = await scene.played.owners(*map(lease, RESOURCES), *_PAIRS)
    feeds = [resource for resource in RESOURCES if had.get(lease(resource)) == name]
    pairs = [pair for pair in _PAIRS if had.get(pair) == name]
    told, at = time.monotonic(), datetime.now(UTC)
    leaver.send(signal.SIGTERM)
    delivering = asyncio.create_task(_delivered(scene, pairs, name, told))
    tally.codes.append(await leaver.left())
    tally.to_leave.append(time.monotonic() - told)
    tally.to_deliver += await delivering
    for feed in feeds:
        await other.polled([feed], since=since)
        first = next(line for line in other.rounds(since=since) if line["feed"] == f"acme/{feed}")
        begun = datetime.fromisoformat(first["at"]) - timedelta(seconds=first["seconds"])
        tally.to_a_round.append((begun - at).total_seconds())


async def _delivered(scene: Subscribed, pairs: Sequence[str], name: str, told: float) -> list[float]:
    """The seconds until each of these leases had another owner."""
    taken: dict[str, float] = {}

    async def all_taken() -> bool:
        owners = await scene.played.owners(*(set(pairs) - set(taken)))
        after = time.monotonic() - told
        taken.update({pair: after for pair, owner in owners.items() if owner != name})
        return len(taken) == len(pairs)

    if pairs:
        await until(all_taken, "deliveries to be taken over")
    return list(taken.values())


def _part(found: Sequence[float], part: float) -> float:
    return sorted(found)[min(int(len(found) * part), len(found) - 1)] if found else 0.0


def main() -> None:
    """Run from the command line and print the table; exit code 1 if anything is wrong."""
    commanded(__doc__, "times", 50, partial(terminate, told=True), well=lambda tally: tally.well)


if __name__ == "__main__":
    main()
