"""What each simulated daemon has counted, compared with what others have seen of it.

**Invariants**

- Nothing is counted that did not happen.
- What happened and is not counted has failed for the process: its answer was lost, or was on its way as it was killed.
  So a killed process has counted all but a few, too.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from poller.store.scripts import COMMIT, END_IDLE_ROUND, SHEBANG
from poller.telemetry.metrics import AttemptSeries, CommitResult, ProcessMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.metrics import MetricWrapperBase

    from tests.simulation.store import Executed

_COMMITS: Final = frozenset(
    hashlib.sha1((SHEBANG + script).encode(), usedforsecurity=False).hexdigest().encode()
    for script in (COMMIT, END_IDLE_ROUND)
)
_ANSWERS: Final[Mapping[bytes, CommitResult]] = {
    b"OK": "written",
    b"ALREADY": "repeated",
    b"FENCED": "fenced",
    b"STALE": "stale",
}
_AT_ONCE: Final = 4  # requests to a source, by default


class DaemonMetrics(ProcessMetrics):
    """The metrics of a daemon; what it has counted of a subscription is known when it delivers it no more, too."""

    def __init__(self) -> None:
        super().__init__()
        self._series: list[tuple[str, AttemptSeries]] = []

    def attempts_of(self, subscription: str) -> AttemptSeries:
        found = super().attempts_of(subscription)
        if not any(one is found for _, one in self._series):
            self._series.append((subscription, found))
        return found

    def delivered(self, subscription: str) -> int:
        """How many events it has delivered for a subscription."""
        return sum(one.attempts("delivered") for name, one in self._series if name == subscription)

    def committed(self, result: CommitResult) -> int:
        """How many commits have ended so."""
        return int(_value(self.commits[result]))

    def requested(self) -> Counter[str]:
        """How many requests to sources have ended with each status or failure."""
        found = Counter[str]()
        for (_, status), count in self.source_requests.items():
            found[status] += count
        return found


def _value(metric: MetricWrapperBase) -> float:
    return next(one.value for family in metric.collect() for one in family.samples if one.name.endswith("_total"))


@dataclass(slots=True)
class _Process:
    """A daemon: its machine, what it counts, what the store has answered to its commits."""

    host: str
    metrics: DaemonMetrics = field(default_factory=DaemonMetrics)
    commits: Counter[CommitResult] = field(default_factory=Counter)
    resent: int = 0  # commits that were sent again after their answer was lost: they count once
    last: list[bytes] = field(default_factory=list)


class Counters:
    """The counters of all daemons of a run."""

    def __init__(self) -> None:
        """Begin without daemons."""
        self._processes: dict[str, _Process] = {}
        self._served: defaultdict[str, Counter[str]] = defaultdict(Counter)

    @property
    def count(self) -> int:
        """How many daemons have started."""
        return len(self._processes)

    def started(self, host: str, pid: int) -> DaemonMetrics:
        """A daemon has started, and counts here."""
        process = self._processes[f"{host}-{pid}"] = _Process(host)
        return process.metrics

    def executed(self, done: Executed) -> None:
        """The store has carried out a command. A commit names its process."""
        words = done.words
        if len(words) < 3 or words[1] not in _COMMITS or words[0].upper() != b"EVALSHA":
            return
        name = words[3 + int(words[2])].decode().partition("/")[0].rpartition("-")[0]
        result = next((_ANSWERS[word] for word in done.answer.split(b"\r\n") if word in _ANSWERS), None)
        if result is not None and name in self._processes:
            process, sent = self._processes[name], [bytes(word) for word in words]
            process.commits[result] += 1
            process.resent += sent == process.last
            process.last = sent

    def served(self, host: str, status: int) -> None:
        """The source has answered a request of a daemon."""
        self._served[host][str(status)] += 1

    def ended(self, host: str, pid: int, *, under_way: int) -> Iterator[str]:
        """What is wrong with the commits that a process has counted, which has just ended or is about to be killed.

        Args:
            host: of the process.
            pid: of the process.
            under_way: how many commits it may not know the answer to.
        """
        name = f"{host}-{pid}"
        process = self._processes[name]
        uncounted = 0
        for result in _ANSWERS.values():
            seen, counted = process.commits[result], process.metrics.committed(result)
            uncounted += seen - counted
            if counted > seen:
                yield f"{name} has counted {counted} commits as {result}; the store has answered so {seen} times"
        failed = process.metrics.committed("failed")
        if uncounted - process.resent > failed + under_way:
            yield f"{name} has not counted {uncounted} answers to commits, and {failed} as failed"

    def requested(self, *, cancelled: int | None) -> Iterator[str]:
        """What is wrong with the requests to sources that were counted.

        Args:
            cancelled: how often a process may have given up what it had asked for; None: who knows.
        """
        for host, served in self._served.items():
            processes = [one for one in self._processes.values() if one.host == host]
            counted = sum((one.metrics.requested() for one in processes), Counter[str]())
            for status, times in served.items():
                if counted[status] > times:
                    yield f"{host} has counted {counted[status]} answers {status} of the source, which gave {times}"
            missing = served.total() - counted.total()
            if cancelled is not None and missing > _AT_ONCE * (cancelled + len(processes)):
                yield f"{host} has not counted {missing} answers of the source"

    def delivered(self, subscription: str, taken: int, *, under_way: int | None) -> Iterator[str]:
        """What is wrong with the delivered events that were counted.

        Args:
            subscription: its id.
            taken: how many events its sink has answered with 2xx.
            under_way: how many of these answers may have reached no process; None: who knows.
        """
        counted = sum(one.metrics.delivered(subscription) for one in self._processes.values())
        if counted > taken:
            yield f"{subscription}: {counted} events were counted as delivered, its sink took {taken}"
        if under_way is not None and taken - counted > under_way:
            told = f"{counted} events were counted as delivered"
            yield f"{subscription}: {told}; its sink took {taken}, of which {under_way} may be unheard of"


def counting(app: Any, served: Any) -> Any:
    """An ASGI application of which each status is told with the address of the client."""

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                served(scope["client"][0], message["status"])
            await send(message)

        await app(scope, receive, sending)

    return counted
