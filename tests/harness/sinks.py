"""Unreliable sinks in a process of their own, with a log of each request and its end.

Each path is a sink with moods of its own: ``POST /_moods/NAME`` sets them, as words ``MOOD`` or ``MOOD=WEIGHT``, of
which one is drawn at random for each request from the seed.

==========  ============================================================================
mood        what the sink does
==========  ============================================================================
``ok``      204
``slow``    204 after up to 30 ms
``503``     this status immediately; 302 points to another path
``429/2``   this status and ``Retry-After: 2``
``429@2``   likewise as a date, two seconds after the answer's own ``Date``
``hang``    nothing, until the client gives up
``reset``   RST
==========  ============================================================================

An arrival is logged before anything else happens, and an end before the answer is written; so the log has everything
that a sink has acknowledged, whatever is killed meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from urllib.request import Request as Order
from urllib.request import urlopen

import msgspec

from tests.harness.requests import Arrived, Ended, Line
from tests.programs import program
from tests.receiver import HANG, RESET, Reply, receiving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.receiver import Answer, Received

_WITH_PAUSE = re.compile(r"(\d{3})([/@])(\d+)")
_SLOW = 0.03
_MOODS = "/_moods/"


class Sinks:
    """All sinks of one process."""

    def __init__(
        self,
        note: Callable[[Line], None],
        seed: int,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        has_left: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Begin with sinks that answer 204.

        Args:
            note: gets each arrival and each end.
            seed: of the moods.
            now: the monotonic clock of the sinks.
            wall: their wall clock.
            has_left: whether the client has ended a connection. A process that had to wait for its turn finds several
                requests at once, and those that were given up meanwhile ended before the next one was made.
        """
        self._has_left = has_left
        self._open: dict[int, Received] = {}
        self._note = note
        self._rng = Random(seed)
        self._now = now
        self._wall = wall
        self._number = 0
        self._moods: dict[str, tuple[list[str], list[float]]] = {}

    def __call__(self, request: Received) -> Answer | Awaitable[Answer]:
        if request.target.startswith(_MOODS):
            self.mood(request.target.removeprefix(_MOODS), request.body.decode())
            return Reply()
        for number in [number for number, one in self._open.items() if self._has_left(one.connection)]:
            self._end(number, None, None)
        self._number += 1
        self._open[self._number] = request
        sink = request.target.strip("/")
        headers = {name.lower(): value for name, value in request.headers}
        self._note(Arrived(self._number, sink, request.at, headers, request.body, request.connection))
        return self._answered(self._number, sink)

    def _end(self, number: int, status: int | None, pause: float | None) -> None:
        request = self._open.pop(number, None)
        if request is not None:
            self._note(Ended(number, request.target.strip("/"), self._now(), status, pause))

    def mood(self, sink: str, moods: str) -> None:
        """Set the moods of a sink."""
        words = [word.partition("=") for word in moods.split()]
        self._moods[sink] = [mood for mood, _, _ in words], [float(weight or 1) for _, _, weight in words]

    async def _answered(self, number: int, sink: str) -> Answer:
        moods, weights = self._moods.get(sink, (["ok"], [1.0]))
        mood = self._rng.choices(moods, weights)[0]
        status, pause, answer = _meant(mood, self._wall)
        try:
            if mood == "slow":
                await asyncio.sleep(self._rng.random() * _SLOW)  # the delay is the fault
            if answer is HANG:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            status, pause = None, None  # the client has given up
            raise
        finally:
            self._end(number, status, pause)
        return answer


def _meant(mood: str, wall: Callable[[], float]) -> tuple[int | None, float | None, Answer]:
    """The status, the pause and the answer of a mood."""
    if mood in ("ok", "slow"):
        return 204, None, Reply()
    if mood in ("hang", "reset"):
        return None, None, HANG if mood == "hang" else RESET
    if found := _WITH_PAUSE.fullmatch(mood):
        status, seconds, now = int(found[1]), int(found[3]), int(wall())
        dated = [("Date", formatdate(now, usegmt=True)), ("Retry-After", formatdate(now + seconds, usegmt=True))]
        return status, seconds, Reply(status, dated if found[2] == "@" else [("Retry-After", found[3])])
    return int(mood), None, Reply(int(mood), [("Location", "/elsewhere")])


class SinkProcess:
    """A running process of sinks; ``url`` is its address, ``log`` its log."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._path = log
        self._lines: list[Line] = []
        self._read = 0

    def mood(self, sink: str, moods: str) -> None:
        """Set the moods of a sink."""
        with urlopen(Order(f"{self.url}{_MOODS}{sink}", data=moods.encode())):  # noqa: S310 -- loopback
            pass

    def lines(self) -> list[Line]:
        """All lines so far, without an incomplete last one."""
        with self._path.open("rb") as log:
            log.seek(self._read)
            fresh = log.read()
        fresh = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(fresh)
        self._lines += [msgspec.json.decode(line, type=Line) for line in fresh.splitlines()]
        return self._lines

    def of(self, sink: str) -> list[Line]:
        """The lines of one sink."""
        return [line for line in self.lines() if line.sink == sink]


@contextmanager
def sink_process(log: Path, seed: int) -> Iterator[SinkProcess]:
    """Sinks for the duration of the block."""
    log.touch()
    with program("tests.harness.sinks", f"--log={log}", f"--seed={seed}") as url:
        yield SinkProcess(url, log)


async def serve(log: Path, seed: int) -> None:
    """Receive until the process is killed."""
    with log.open("ab") as file:

        def note(line: Line) -> None:
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()

        async with receiving(recording=False) as receiver:
            receiver.answer = Sinks(note, seed, has_left=receiver.has_left)
            sys.stdout.write(receiver.url + "\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


def main() -> None:
    """Serve with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    asyncio.run(serve(given.log, given.seed))


if __name__ == "__main__":
    main()
