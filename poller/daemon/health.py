"""Health of the store and of this process, for probes, logs, status and the supervisor.

:class:`StoreMonitor` runs the store's checks (:func:`poller.redis.health.check_store`) every minute, more often while a
check fails, and logs each finding when it appears and when it is gone. Components also report failing and working
commands to it: thousands of feeds meet the same unavailable store, and that is one warning, not thousands.

**Invariants**

- :meth:`StoreMonitor.fresh` is at most :data:`FRESH` old.
- A failure in the moment in which the process wakes from a suspension is not reported.
- The monitor writes nothing to the store and stops nothing.
- READY=1 is sent to the supervisor once, when the process works and its store is healthy; STOPPING=1 once, when the
  process is stopped.
- WATCHDOG=1 is sent from the event loop that does the work, twice per watchdog interval. So a blocked loop is noticed,
  and so is one without work. An unavailable store or source does not stop WATCHDOG=1: a restart would not help.
- Without ``NOTIFY_SOCKET`` nothing is sent. A supervisor that has stopped listening is ignored.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import msgspec
import structlog
from redis.asyncio import Redis

from poller.clock import Clock
from poller.errors import StoreError
from poller.lifecycle import ended
from poller.redis.health import Durability, ServerCheck, check_store, weighed
from poller.telemetry.metrics import process_metrics
from poller.text import without_credentials

EACH: Final = 60.0
"""Seconds between checks of a healthy store."""

FRESH: Final = 5.0
"""The greatest age of the check that :meth:`StoreMonitor.fresh` reports, in seconds."""

START: Final = "start"
"""The component that waits for the first reply of the store."""

_CHECK: Final = "check"
_UNAVAILABLE_EACH: Final = 1.0  # seconds between checks while the store is unavailable
_UNFIT_EACH: Final = 10.0  # seconds between checks while the store answers and a check fails
_RECOVERED: Final = 2.0  # seconds without a failure before the store is logged as available again
_AWAKE: Final = 0.5  # seconds after a suspension in which commands fail that began before it
_ANSWER: Final = 0.8  # seconds that a request waits for a check; common probes give up after one

_log = structlog.get_logger("poller.store")


class ReadinessProblem(msgspec.Struct, frozen=True):
    """A reason why the process is not ready: a stable name, and one line of text."""

    name: str
    text: str


class StoreMonitor:
    """The state of the store, as this process knows it."""

    def __init__(self, durability: Durability, *, clock: Clock) -> None:
        """Begin without a store.

        Args:
            durability: decides the severity of findings.
            clock: of this process.
        """
        self.findings: tuple[ServerCheck, ...] = ()
        self._durability: Durability = durability
        self._clock = clock
        self._client: Redis | None = None
        self._failing: dict[str, str] = {}
        self._failed_at = 0.0
        self._failing_since: float | None = None
        self._has_failed = asyncio.Event()
        self._looked_at: float | None = None
        self._looking: asyncio.Task[None] | None = None
        self._woke_at: float | None = None

    def attach(self, client: Redis, findings: Sequence[ServerCheck]) -> None:
        """Use this store from now on. It has replied, with these findings."""
        self._client = client
        self.findings = self._weighed(findings)
        self._looked_at = self._clock.monotonic()
        self.worked(START)

    def failed(self, who: str, text: str) -> None:
        """A command of ``who`` (a feed, a role) has failed; ``text``: the error on one line. Logged once."""
        if self._woke_at is not None and self._clock.monotonic() - self._woke_at < _AWAKE:
            return  # the retry fails again if the store is unavailable
        self._failing[who] = text
        self._failed_at = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = self._failed_at
            self._has_failed.set()
            process_metrics().store_failures.inc()
            _log.warning("redis unavailable", error=text, advice="retrying; no data is lost")

    def worked(self, who: str) -> None:
        """Commands of ``who`` work again, or ``who`` has ended."""
        self._failing.pop(who, None)

    def overslept(self) -> None:
        """This process was suspended (SIGSTOP, or its machine): replies that it missed are no failures."""
        self._woke_at = self._clock.monotonic()

    @property
    def away(self) -> bool:
        """Whether the store is logged as unavailable and not yet as available again."""
        return self._failing_since is not None

    def reasons(self) -> list[ReadinessProblem]:
        """The known problems of the store; empty: it is healthy."""
        found = [ReadinessProblem(one.name, one.text) for one in self.findings if one.severity == "error"]
        if self._failing:
            text, *others = self._failing.values()
            found.insert(0, ReadinessProblem("store", text + (f" (and {len(others)} more)" if others else "")))
        elif self._client is None:
            found.insert(0, ReadinessProblem("store", "has not answered yet"))
        return found

    async def fresh(self) -> list[ReadinessProblem]:
        """As :meth:`reasons`, after a new check if the last is older than :data:`FRESH`. A slow check is a problem."""
        if self._client is None or (self._looked_at is not None and self._clock.monotonic() - self._looked_at < FRESH):
            return self.reasons()
        looking = self._begun()
        await asyncio.wait({looking}, timeout=_ANSWER)
        if looking.done() or self._failing:
            return self.reasons()
        return [ReadinessProblem("store", f"does not answer within {_ANSWER:g} s"), *self.reasons()]

    async def run(self) -> None:
        """Check the store regularly until cancelled; :meth:`attach` comes first."""
        try:
            while True:
                self._has_failed.clear()
                await self._clock.wait(self._has_failed, self._until_next())
                await asyncio.wait({self._begun()})
                self._settle()
        finally:
            self._client = None  # it is closed soon
            if self._looking is not None:
                await ended(self._looking)

    def _until_next(self) -> float:
        if self._failing_since is not None:
            return _UNAVAILABLE_EACH
        return _UNFIT_EACH if self.reasons() else EACH

    def _begun(self) -> asyncio.Task[None]:
        """The check under way; all who wait share it."""
        self._looking = self._looking or asyncio.create_task(self._check(), name="store check")
        return self._looking

    async def _check(self) -> None:
        try:
            if self._client is not None:
                self._record(await check_store(self._client, process=self._clock))
                self.worked(_CHECK)
        except StoreError as error:
            self.failed(_CHECK, str(error))
        finally:
            self._looked_at, self._looking = self._clock.monotonic(), None

    def _record(self, found: Sequence[ServerCheck]) -> None:
        """Keep the findings, and log those whose severity has changed."""
        before = {one.name: one.severity for one in self.findings}
        self.findings = self._weighed(found)
        levels = {"ok": _log.info, "warning": _log.warning, "error": _log.error}
        for one in self.findings:
            if one.severity != before.get(one.name, "ok"):
                levels[one.severity]("store check", check=one.name, severity=one.severity, advice=one.text)

    def _weighed(self, found: Sequence[ServerCheck]) -> tuple[ServerCheck, ...]:
        return tuple(weighed(one, self._durability) for one in found)

    def _settle(self) -> None:
        """Log that the store is available again once nothing has failed for a while."""
        if self._failing_since is None or self._failing or self._clock.monotonic() - self._failed_at < _RECOVERED:
            return
        _log.info("redis available again", seconds=round(self._clock.monotonic() - self._failing_since, 1))
        self._failing_since = None


# Readiness, as ``/readyz`` shows it: the process has started, its store is available and durable, and it is not
# stopping. Failing feeds and subscriptions are named but do not count: they would fail in another process, too.


class ReadinessReport(msgspec.Struct, frozen=True):
    """The body of ``/readyz``.

    Attributes:
        ready: whether ``reasons`` is empty.
        reasons: why this process is not ready.
        failing: the error of each feed whose last round failed, or whose lease the store refuses, by ``SOURCE/NAME``.
        store: the latest checks of the store.
        subscriptions: the error of each subscription of this process whose deliveries fail.
    """

    ready: bool
    reasons: tuple[ReadinessProblem, ...]
    failing: Mapping[str, str]
    store: tuple[ServerCheck, ...]
    subscriptions: Mapping[str, str] = {}


class Readiness:
    """The readiness of this process, from its start to its end.

    Attributes:
        begun: set when the process's work begins.
    """

    def __init__(self, watch: StoreMonitor) -> None:
        """Begin unready."""
        self.begun = asyncio.Event()
        self._watch = watch
        self._phase = "starting"
        self._failing: dict[str, str] = {}
        self._refused: Callable[[], Mapping[str, str]] = dict
        self._undelivered: Callable[[], Mapping[str, str]] = dict
        self._unread: Callable[[], str | None] = lambda: None
        self._unseen: Callable[[], str | None] = lambda: None

    def started(self) -> None:
        """The process's work has begun."""
        self._phase = "started"
        self.begun.set()

    def stopping(self) -> None:
        """The process is stopping."""
        self._phase = "stopping"

    def round(self, feed: str, error: str | None) -> None:
        """Record the error of a feed's last round; None: it succeeded."""
        self._failing.pop(feed, None)
        if error is not None:
            self._failing[feed] = error

    def polling(self, refused: Callable[[], Mapping[str, str]]) -> None:
        """Set the function that returns the errors of feeds whose leases the store refuses."""
        self._refused = refused

    def delivering(
        self, failing: Callable[[], Mapping[str, str]], unread: Callable[[], str | None] = lambda: None
    ) -> None:
        """Set the functions that return the errors of failing subscriptions, and why none could be read."""
        self._undelivered, self._unread = failing, unread

    def sharing(self, failure: Callable[[], str | None]) -> None:
        """Set the function that returns why the list of processes cannot be read: without it no lease is acquired."""
        self._unseen = failure

    async def report(self) -> ReadinessReport:
        """The present state; checks the store if the last check is old."""
        reasons = await self._watch.fresh()
        if self._phase == "stopping":
            reasons = [ReadinessProblem("stopping", "this process is stopping")]
        elif self._phase == "starting" and not reasons:
            reasons = [ReadinessProblem("starting", "this process has not begun its work yet")]
        else:
            if (unseen := self._unseen()) is not None:
                reasons = [*reasons, ReadinessProblem("processes", f"the other processes cannot be seen: {unseen}")]
            if (unread := self._unread()) is not None:
                reasons = [*reasons, ReadinessProblem("subscriptions", f"nothing is delivered: {unread}")]
        return ReadinessReport(
            ready=not reasons,
            reasons=tuple(ReadinessProblem(one.name, without_credentials(one.text)) for one in reasons),
            failing={
                feed: without_credentials(text) for feed, text in sorted({**self._failing, **self._refused()}.items())
            },
            store=tuple(self._watch.findings),
            subscriptions={name: without_credentials(text) for name, text in sorted(self._undelivered().items())},
        )


# Notifications to the supervisor (systemd's sd_notify).

LONGEST_STATUS: Final = 300
"""Characters of the status line; logs and the status page hold more."""

_STARTING_EACH: Final = 0.05  # seconds between looks until the process is ready, besides the one when its work begins
_STARTED_EACH: Final = 10.0  # seconds between notifications then, unless the watchdog needs more


class SupervisorNotifier:
    """Notifies the supervisor of this process, if there is one."""

    def __init__(self, environ: Mapping[str, str], *, pid: int | None = None) -> None:
        """Read ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``.

        Args:
            environ: of the process.
            pid: the process; default: this one.
        """
        address = environ.get("NOTIFY_SOCKET", "")
        asked = environ.get("WATCHDOG_USEC", "")
        meant = environ.get("WATCHDOG_PID", "") in {"", str(os.getpid() if pid is None else pid)}
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.listens = address.startswith(("/", "@"))
        self.watchdog = int(asked) / 1e6 if meant and asked.isascii() and asked.isdecimal() and int(asked) else None
        """Seconds without ``WATCHDOG=1`` after which the supervisor acts; None: no limit."""

    def notify(self, *words: str) -> None:
        """Send these assignments in one datagram. Never waits, never fails."""
        if self.listens:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(0)
                sender.sendto("\n".join(words).encode(errors="backslashreplace"), self._address)


async def supervised(
    supervisor: SupervisorNotifier,
    readiness: Readiness,
    doing: Callable[[], str],
    *,
    stop: asyncio.Event,
    over: asyncio.Event,
    clock: Clock,
) -> None:
    """Keep the supervisor informed until ``over`` is set.

    Args:
        supervisor: is notified.
        readiness: of this process.
        doing: returns a short description of the process's work.
        stop: set when the process is stopped.
        over: set when its work has ended.
        clock: of this process.
    """
    ready, sent = False, set[str]()
    while supervisor.listens and not over.is_set():
        if ready and supervisor.watchdog:
            supervisor.notify("WATCHDOG=1")
        report, stopping = await readiness.report(), stop.is_set()
        ready |= report.ready
        words = [f"STATUS={status(report, doing())}", *["READY=1"] * ready, *["STOPPING=1"] * stopping]
        if fresh := [word for word in words if word not in sent]:
            supervisor.notify(*fresh)
        sent = set(words)
        each = (supervisor.watchdog or 2 * _STARTED_EACH) / 2
        awaited = stop if readiness.begun.is_set() else readiness.begun
        await clock.wait(over if stopping else awaited, each if ready else min(each, _STARTING_EACH))
    if stop.is_set() and "STOPPING=1" not in sent:  # it ended before the next look
        supervisor.notify("STOPPING=1")


def counted(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def status(report: ReadinessReport, doing: str) -> str:
    """The status line: the process's work and all problems."""
    problems = [f"{one.name}: {one.text}" for one in report.reasons]
    problems += [f"{feed} fails: {text}" for feed, text in (*report.failing.items(), *report.subscriptions.items())]
    line = " ".join(f"{doing}; {', '.join(problems) or 'all is well'}".split())
    return line if len(line) <= LONGEST_STATUS else line[: LONGEST_STATUS - 1] + "…"


# Lag of the event loop, which is measured with the regular work of the process and does not wake it on its own.

EVERY: Final = 1.0
"""Seconds between measurements."""

ASLEEP: Final = 1.0
"""Seconds of lag; a process with more was not busy but suspended (SIGSTOP, or its machine)."""


@contextmanager
def measured(
    observe: Callable[[float], None],
    clock: Clock,
    *,
    overslept: Callable[[], None] = lambda: None,
    every: float = EVERY,
) -> Iterator[None]:
    """Measure the event loop's lag while the block runs.

    Args:
        observe: is called with each lag, in seconds.
        clock: of this process.
        overslept: called if a lag exceeds :data:`ASLEEP`, before other code notices that time has passed.
        every: seconds between measurements.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def schedule() -> None:
        nonlocal timer
        seconds = clock.aligned(every)
        timer = loop.call_later(seconds, measure, clock.monotonic() + seconds)

    def measure(due: float) -> None:
        late = max(clock.monotonic() - due, 0.0)
        observe(late)
        if late >= ASLEEP:
            overslept()
        schedule()

    schedule()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
