"""Health of the store and of this process, for probes, logs and status.

:class:`StoreMonitor` runs the store's checks (:func:`poller.redis.health.check_store`) every minute, more often while a
check fails. It logs a finding when it appears and when it is gone. Components also report to it when a command fails
and when commands work again: thousands of feeds meet the same unavailable store, and that is one warning, not
thousands.

**Invariants**

- :meth:`StoreMonitor.fresh` is at most :data:`FRESH` old.
- A failure at the moment the process wakes from a suspension is not reported; the process slept through it.
- It writes nothing to the store and stops nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import structlog
from redis.asyncio import Redis

from poller.clock import Clock
from poller.control.status import StoreCheck
from poller.errors import StoreError
from poller.lifecycle import ended
from poller.redis.health import Durability, ServerCheck, check_store, weighed
from poller.telemetry.metrics import STORE_FAILURES
from poller.text import without_credentials

EACH: Final = 60.0
"""Seconds between looks at a store that is well."""

FRESH: Final = 5.0
"""Seconds that the latest look may be old for those who ask."""

START: Final = "start"
"""Who waits for the first answer of the store."""

_CHECK: Final = "check"
_AMISS: Final = 1.0  # seconds between looks while the store is away
_UNFIT: Final = 10.0  # and while it is there and something is wrong with it
_CALM: Final = 2.0  # seconds without a failure before the store is logged as available again
_AWAKE: Final = 0.5  # seconds in which those that waited when this process fell asleep have given up
_ANSWER: Final = 0.8  # seconds that a request waits for a look; common probes give up after one

_log = structlog.get_logger("poller.store")


class ReadinessProblem(msgspec.Struct, frozen=True):
    """A reason why the process is not ready: a stable name, and one line of text."""

    name: str
    text: str


class StoreMonitor:
    """What one process knows of its store."""

    def __init__(self, durability: Durability, *, clock: Clock) -> None:
        """Begin without a store.

        Args:
            durability: decides how grave it is what is found.
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
        """This is the store; it has answered, and this was found."""
        self._client = client
        self.findings = self._weighed(findings)
        self._looked_at = self._clock.monotonic()
        self.worked(START)

    def failed(self, who: str, text: str) -> None:
        """The store did not do what it was asked: ``who`` is a feed or the like, ``text`` one line. Logged once."""
        if self._woke_at is not None and self._clock.monotonic() - self._woke_at < _AWAKE:
            return  # what is tried again fails again if the store is away
        self._failing[who] = text
        self._failed_at = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = self._failed_at
            self._has_failed.set()
            STORE_FAILURES.inc()
            _log.warning("redis unavailable", error=text, advice="retrying; no data is lost")

    def worked(self, who: str) -> None:
        """The store does what ``who`` asks, or ``who`` asks no more."""
        self._failing.pop(who, None)

    def overslept(self) -> None:
        """This process has slept (SIGSTOP, a machine that was suspended): answers that it missed say nothing."""
        self._woke_at = self._clock.monotonic()

    @property
    def away(self) -> bool:
        """Whether the store is logged as unavailable, and not yet as available again."""
        return self._failing_since is not None

    def reasons(self) -> list[ReadinessProblem]:
        """Why nothing can be relied on at the moment; empty: all is well, as far as is known."""
        found = [ReadinessProblem(one.name, one.text) for one in self.findings if one.severity == "error"]
        if self._failing:
            text, *others = self._failing.values()
            found.insert(0, ReadinessProblem("store", text + (f" (and {len(others)} more)" if others else "")))
        elif self._client is None:
            found.insert(0, ReadinessProblem("store", "has not answered yet"))
        return found

    async def fresh(self) -> list[ReadinessProblem]:
        """As :meth:`reasons`, from a look that is not older than :data:`FRESH`, or of one that takes too long."""
        if self._client is None or (self._looked_at is not None and self._clock.monotonic() - self._looked_at < FRESH):
            return self.reasons()
        looking = self._begun()
        await asyncio.wait({looking}, timeout=_ANSWER)
        if looking.done() or self._failing:
            return self.reasons()
        return [ReadinessProblem("store", f"does not answer within {_ANSWER:g} s"), *self.reasons()]

    async def run(self) -> None:
        """Look, again and again, until cancelled. Only once there is a store; see :meth:`attach`."""
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
            return _AMISS
        return _UNFIT if self.reasons() else EACH

    def _begun(self) -> asyncio.Task[None]:
        """The look that is under way; one is enough for all who want to know."""
        self._looking = self._looking or asyncio.create_task(self._check(), name="look at the store")
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
        """Take the findings over, and log what has changed since the last ones."""
        before = {one.name: one.severity for one in self.findings}
        self.findings = self._weighed(found)
        levels = {"ok": _log.info, "warning": _log.warning, "error": _log.error}
        for one in self.findings:
            if one.severity != before.get(one.name, "ok"):
                levels[one.severity]("store check", check=one.name, severity=one.severity, advice=one.text)

    def _weighed(self, found: Sequence[ServerCheck]) -> tuple[ServerCheck, ...]:
        return tuple(weighed(one, self._durability) for one in found)

    def _settle(self) -> None:
        """Say so where nothing has failed for a while."""
        if self._failing_since is None or self._failing or self._clock.monotonic() - self._failed_at < _CALM:
            return
        _log.info("redis available again", seconds=round(self._clock.monotonic() - self._failing_since, 1))
        self._failing_since = None


# Readiness, as ``/readyz`` shows it: the process has started, its store is available and durable, and it is not
# stopping. A failing feed or subscription is named and no more: it would fail in another process, too.


class ReadinessReport(msgspec.Struct, frozen=True):
    """The answer, key for key.

    Attributes:
        ready: whether there is no reason against it.
        reasons: why this process is not ready.
        failing: the feeds whose last round failed, by ``SOURCE/NAME``, each with why.
        store: everything that was looked at about the store, the last time it was.
        subscriptions: those of which nothing arrives, as far as this process delivers them, each with why.
    """

    ready: bool
    reasons: tuple[ReadinessProblem, ...]
    failing: Mapping[str, str]
    store: tuple[StoreCheck, ...]
    subscriptions: Mapping[str, str] = {}


class Readiness:
    """How this process does, from its start to its end."""

    def __init__(self, watch: StoreMonitor) -> None:
        """Begin, not ready."""
        self._watch = watch
        self._phase = "starting"
        self._failing: dict[str, str] = {}
        self._undelivered: Callable[[], Mapping[str, str]] = dict

    def started(self) -> None:
        """Its work has begun."""
        self._phase = "started"

    def stopping(self) -> None:
        """The process is stopping."""
        self._phase = "stopping"

    def round(self, feed: str, error: str | None) -> None:
        """How the last round of a feed ended; None: well."""
        self._failing.pop(feed, None)
        if error is not None:
            self._failing[feed] = error

    def delivering(self, failing: Callable[[], Mapping[str, str]]) -> None:
        """Who tells of the subscriptions that fail here, each with why."""
        self._undelivered = failing

    async def report(self) -> ReadinessReport:
        """How it is now; asks the store where what is known of it is old."""
        reasons = await self._watch.fresh()
        if self._phase == "stopping":
            reasons = [ReadinessProblem("stopping", "this process was told to stop")]
        elif self._phase == "starting" and not reasons:
            reasons = [ReadinessProblem("starting", "this process has not begun its work yet")]
        return ReadinessReport(
            ready=not reasons,
            reasons=tuple(ReadinessProblem(one.name, without_credentials(one.text)) for one in reasons),
            failing={feed: without_credentials(text) for feed, text in sorted(self._failing.items())},
            store=tuple(StoreCheck(one.name, one.severity, one.text) for one in self._watch.findings),
            subscriptions={name: without_credentials(text) for name, text in sorted(self._undelivered().items())},
        )
