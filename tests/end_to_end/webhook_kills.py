"""Kills delivering processes at failpoints, many times, and prints a table of the results.

    python -m tests.end_to_end.webhook_kills --kills 500 --seed 1

One process polls and two deliver, sharing the leases; each of the two dies at a failpoint, and the other one takes over
until a replacement starts. Two sinks sometimes answer 500 or nothing. ``repeats`` are events sent to a sink again
between such a kill and the next one, most of them because it had answered 500; ``settled`` are those of them that were
recorded as settled at the kill, of which there must be none.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import time
from bisect import bisect
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from poller.failpoints import OF_DELIVERIES
from tests.harness.commanded import commanded
from tests.harness.processes import daemon
from tests.harness.subscribed import Wish, subscribed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.harness.delivered import Deliveries, Fault
    from tests.harness.subscribed import Subscribed

MOODS = "ok=30 slow=15 500=2 reset=0.5 429/1=0.02"
_POLL = ("poller", "run", "--only", "poll")
_DELIVER = ("poller", "run", "--only", "deliver")
_CHANGES = 12.0  # a second; more would pile up, because most processes die after a few requests
_WISHES = (Wish("one"), Wish("two"))
_COLUMNS = ("kills", "2xx", "lost", "repeats", "after 2xx", "settled", "disorder")


@dataclass(frozen=True, slots=True)
class Tally:
    """The result of some kills: the point and moment of each, and the verdict on each sink."""

    points: Sequence[str]
    moments: Sequence[float]
    verdicts: Sequence[Deliveries]
    taken: Sequence[float]

    def __str__(self) -> str:
        lines = [f"{'point':<20}" + "".join(f"{name:>11}" for name in _COLUMNS)]
        rows = {point: self._row(point) for point in OF_DELIVERIES}
        rows["in all"] = [sum(column) for column in zip(*rows.values(), strict=True)]
        lines += [f"{name:<20}" + "".join(f"{figure:>11}" for figure in row) for name, row in rows.items()]
        return "\n".join((*lines, *map(str, self.verdicts)))

    def _row(self, point: str) -> list[int]:
        found = self.verdicts
        disorder = [fault for one in found for fault in (*one.out_of_order, *one.late, *one.crowded)]
        columns = (
            self.taken,
            [fault.at for one in found for fault in one.lost],
            _moments(fault for one in found for fault in one.repeats),
            _moments(fault for one in found for fault in one.after_success),
            _moments(fault for one in found for fault in one.needless),
            _moments(disorder),
        )
        return [self.points.count(point), *(self._after(moments)[point] for moments in columns)]

    def _after(self, moments: Iterable[float]) -> Counter[str]:
        """How many of the moments follow a kill at each point; those before any kill count for the first."""
        return Counter(self.points[max(bisect(self.moments, at) - 1, 0)] for at in moments)


def plan(kills: int, seed: int) -> Iterator[str]:
    """This many failpoints in turn, each at its first, second, third and then a random pass."""
    rng = Random(seed)
    for number, point in zip(range(kills), itertools.cycle(OF_DELIVERIES), strict=False):
        turn = number // len(OF_DELIVERIES)
        most = 12 if point == "delivery.answered" else 6
        yield f"{point}:{turn + 1 if turn < 3 else rng.randint(1, most)}"


async def kill(
    directory: Path,
    kills: int,
    seed: int,
    *,
    store: str | None = None,
    changes_per_second: float = _CHANGES,
    told: bool = False,
) -> Tally:
    """Kill this often, wait until everything is delivered, and judge."""
    specs = list(plan(kills, seed))
    async with (
        subscribed(directory, _WISHES, store=store, seed=seed, changes_per_second=changes_per_second) as scene,
        daemon(scene.config(), command=_POLL),
    ):
        for wish in _WISHES:
            scene.sinks.mood(wish.sink, MOODS)
        points: list[str] = []
        async with AsyncExitStack() as stack:
            await _killed_in_turn(scene, specs, stack, points, told=told)
            for wish in _WISHES:
                scene.sinks.mood(wish.sink, "ok")
            verdicts = list((await scene.caught_up(seconds=120)).values())
        taken = [line.at for line in scene.sinks.lines() if getattr(line, "status", None) == 204]
        return Tally(points, scene.kills, verdicts, taken)


async def _killed_in_turn(
    scene: Subscribed, specs: Sequence[str], stack: AsyncExitStack, points: list[str], *, told: bool
) -> None:
    """Two processes deliver and die at their failpoints; each is replaced.

    Every death appends its point to ``points``. The last two processes stay, entered into ``stack`` like all of them.
    """
    config, began, noting = scene.config("deliverer"), time.monotonic(), asyncio.Lock()

    async def dies(spec: str) -> None:
        dying = await stack.enter_async_context(daemon(config, command=_DELIVER, failpoint=spec))
        assert await dying.left() == -signal.SIGKILL, dying
        async with noting:
            points.append(spec.partition(":")[0])
            await scene.killed()
        if told and len(points) % 25 == 0:
            sys.stderr.write(f"{len(points)} kills, {time.monotonic() - began:.0f} s\n")

    waiting = iter(specs)
    alive = {asyncio.create_task(dies(spec)) for spec in itertools.islice(waiting, 2)}
    while alive:
        dead, alive = await asyncio.wait(alive, return_when=asyncio.FIRST_COMPLETED)
        for one in dead:
            one.result()
            following = next(waiting, "")
            if following:
                alive.add(asyncio.create_task(dies(following)))
            else:
                await stack.enter_async_context(daemon(config, command=_DELIVER))


def _moments(faults: Iterable[Fault]) -> list[float]:
    return [fault.at for fault in faults]


def main() -> None:
    """Run from the command line and print the table; exit code 1 if anything is wrong."""
    commanded(
        __doc__,
        "kills",
        500,
        partial(kill, told=True),
        well=lambda tally: all(verdict.clean for verdict in tally.verdicts),
    )


if __name__ == "__main__":
    main()
