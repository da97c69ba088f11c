"""The data of a soak: changes that keep all sizes constant, and the samples of the processes."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]  # has no types of its own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from random import Random

    from tests.harness.processes import Daemon

EXPLAINED = 30.0
"""Seconds after a restart of the store in which it explains a warning."""

MOST_SLOPE = 1.0
"""MB an hour."""

_MB = 1e6
_WARM_UP = 1 / 4
TEXTS = {"employmentUnavailabilities": "reason", "achievements": "remark"}  # of all others "name"


class Steady:
    """Records that are changed back and forth."""

    def __init__(self, log: Iterable[Mapping[str, Any]], rng: Random) -> None:
        """Take the source's history."""
        latest = {line["id"]: line for line in log}
        self._records = [(line["resource"], line["record"]) for line in latest.values() if line["record"] is not None]
        self._rng = rng
        self._turn = 0

    def changes(self, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """This many records, each with another text of the same length."""
        for resource, record in self._rng.choices(self._records, k=count):
            self._turn += 1
            changed = {**record, TEXTS.get(resource, "name"): f"turn {self._turn % 10_000:04}"}
            changed.pop("lastModifiedAt", None)  # the source sets it
            yield resource, json.loads(json.dumps(changed, default=int))


@dataclass(slots=True)
class _Process:
    """The samples of one process: seconds, megabytes, sockets."""

    at: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)
    sockets: list[int] = field(default_factory=list)
    read: int = 0


class Watched:
    """Memory, connections and warnings of some processes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.strayed: list[str] = []
        self._clock = clock
        self._began = clock()
        self._restarts: list[float] = []
        self._clients: list[int] = []
        self._processes: dict[int, _Process] = defaultdict(_Process)
        self._explained: Counter[str] = Counter()
        self._unexplained: list[str] = []

    def restarted(self) -> None:
        """Note that the store is killed now."""
        self._restarts.append(self._clock())

    def sample(self, one: Daemon, clients: int) -> None:
        """Sample a process; ``clients`` is the number of the store's connections from all of them."""
        seen, process, now = self._processes[one.pid], psutil.Process(one.pid), self._clock()
        for line in one.lines:
            self._warned(line, now)
        one.lines.clear()  # nothing waits for a line any more
        seen.at.append(now - self._began)
        seen.rss.append(process.memory_info().rss / _MB)
        if not self._restarts or now - self._restarts[-1] > EXPLAINED:
            seen.sockets.append(len(process.net_connections("all")))
            self._clients.append(clients)

    def _warned(self, line: Mapping[str, Any], now: float) -> None:
        if line.get("level") not in ("warning", "error", "critical") and "text" not in line:
            return
        if self._restarts and now - self._restarts[-1] <= EXPLAINED:
            self._explained[str(line.get("event", "text"))] += 1
        else:
            self._unexplained.append(str(line))

    @property
    def held(self) -> bool:
        slopes = [slope(one.at, one.rss) for one in self._processes.values()]
        drifting = [drifts(one.sockets) for one in self._processes.values()]
        return not (self._unexplained or self.strayed or any(drifting) or max(slopes) >= MOST_SLOPE)

    def __str__(self) -> str:
        lines = [f"{(self._clock() - self._began) / 60:.0f} min, {len(self._restarts)} restarts of Redis"]
        for pid, one in self._processes.items():
            lines.append(
                f"process {pid}: RSS {one.rss[0]:.1f} MB at first, {one.rss[-1]:.1f} MB now, "
                f"slope {slope(one.at, one.rss):+.2f} MB/h; sockets {_span(one.sockets)}"
            )
        lines.append(f"Redis' connections named poller: {_span(self._clients)}")
        lines.append(f"warnings within {EXPLAINED:.0f} s of a restart: {dict(self._explained)}")
        lines.append(f"other warnings: {len(self._unexplained)}")
        return "\n".join([*lines, *self._unexplained[:10], *self.strayed])


def slope(at: Sequence[float], sizes: Sequence[float]) -> float:
    """The growth of ``sizes`` in an hour by least squares, after a warm-up; ``at`` in seconds."""
    begin = int(len(at) * _WARM_UP)
    at, sizes = at[begin:], sizes[begin:]
    if len(at) < 2:
        return 0.0
    middle_at, middle = sum(at) / len(at), sum(sizes) / len(sizes)
    spread = sum((one - middle_at) ** 2 for one in at)
    return sum((x - middle_at) * (y - middle) for x, y in zip(at, sizes, strict=True)) / spread * 3600


def drifts(counts: Sequence[int]) -> bool:
    """Whether the minimum of the second half exceeds the maximum of the first half."""
    half = len(counts) // 2
    return half > 0 and min(counts[half:]) > max(counts[:half])


def _span(counts: Sequence[int]) -> str:
    return f"{min(counts)} to {max(counts)}" if counts else "not seen"
