"""The gate that every request of a source passes: shut while the API asked to be left alone or does not answer.

One gate is shared by all feeds of a source. The rules are those of :mod:`poller.source.retrying` and
:mod:`poller.source.circuit`; here they meet the clock. Between the last look at the gate and the start of a request
nothing may be awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from poller.errors import SourceNotAsked, SourceUnavailable
from poller.source.circuit import Circuit
from poller.source.retrying import Outcome, Pause, Step

Learn = Callable[[Outcome, Step], None]


class Gate:
    """Whether a request may start. Used within one event loop."""

    def __init__(
        self,
        *,
        clock: Callable[[], timedelta],
        now: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]],
        jitter: Callable[[], float],
    ) -> None:
        """Take what it works with.

        Args:
            clock: one that only goes forward, from any beginning.
            now: the wall clock, UTC; only messages show it.
            sleep: waits for so many seconds.
            jitter: a fresh factor for each pause, about 1.
        """
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._jitter = jitter
        self._circuit = Circuit()
        self._shut_until = clock()

    @property
    def shut(self) -> bool:
        """Whether the API asked to be left alone, and the time is not over."""
        return self._clock() < self._shut_until

    @property
    def opens_at(self) -> datetime | None:
        """When the time is over for which the API asked to be left alone; None where it did not, or it is."""
        return self._now() + (self._shut_until - self._clock()) if self.shut else None

    async def passed(self, path: str, *, deadline: timedelta) -> None:
        """Wait until the pause is over.

        Raises:
            SourceUnavailable: it is not over before the deadline, or the API does not answer and no probe is due.
        """
        while self.shut:
            if self._shut_until > deadline:
                raise SourceUnavailable(f"GET {path}: not asked; {self.asked}")
            await self._sleep((self._shut_until - self._clock()).total_seconds())
        self._admit(path)

    @contextmanager
    def request(self, path: str) -> Iterator[Learn]:
        """A request starts now; it hands over what it learned, or was called off.

        Raises:
            SourceNotAsked: another request is the probe already.
        """
        self._admit(path)
        self._circuit = self._circuit.started()
        probe, learned = self._circuit.probing, False

        def learn(outcome: Outcome, step: Step) -> None:
            nonlocal learned
            learned = True
            if isinstance(step, Pause):
                self._shut_until = max(self._shut_until, self._clock() + step.after)
            if outcome.answering:
                self._circuit = self._circuit.answered()
            else:
                self._circuit = self._circuit.failed(self._clock(), probe=probe, jitter=self._jitter())

        try:
            yield learn
        finally:
            if probe and not learned:
                self._circuit = self._circuit.abandoned()

    @property
    def asked(self) -> str:
        """Until when the API asked to be left alone, in words."""
        return f"the API asked to be left alone until {_shown(self._now() + (self._shut_until - self._clock()))}"

    @property
    def answering(self) -> bool:
        """Whether the circuit is closed, and everybody may ask."""
        return self._circuit.due is None

    def _admit(self, path: str) -> None:
        if self._circuit.admits(self._clock()):
            return
        at, since, due = self._clock(), self._circuit.since, self._circuit.due
        if since is None or due is None:
            raise AssertionError("a circuit that admits nobody is open, and knows since when")
        probe = "a probe is on its way" if self._circuit.probing else f"next probe in {_seconds(due - at)}"
        raise SourceNotAsked(
            f"GET {path}: not asked; the API has not answered since {_shown(self._now() - (at - since))}; {probe}"
        )


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(span: timedelta) -> str:
    return f"{max(span.total_seconds(), 0.1):.1f} s"
