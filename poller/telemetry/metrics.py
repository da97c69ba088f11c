"""Metrics of this process: rounds, deliveries and their counts.

**Invariants**

* A process has series only for the feeds that it polls.
* There may be thousands of feeds, sources and subscriptions, so each is a few numbers rather than objects of the
  library; they become series on request.
* Each metric is declared once, with its name, labels and meaning, so that a complete list exists.
* What is counted goes to the :class:`ProcessMetrics` of the task: those of the process, unless :func:`counting_in` says
  otherwise. Series that are counted again and again are looked up once.
* Label values come from the configuration or from a list beside the metric's declaration. No text of a source, a sink
  or a record becomes a label.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from itertools import accumulate, chain
from typing import Final, Literal

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

from poller import __version__
from poller.changes.plan import KINDS, RoundCounts

Kind = Literal["counter", "gauge", "histogram"]

Sample = tuple[str, float]
"""The labels in text form (empty: none) and a value."""

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

disable_created_metrics()  # type: ignore[no-untyped-call]  # as it is; when a series began, its process did, too


class MetricDescription(msgspec.Struct, frozen=True):
    """The declaration of a metric.

    Attributes:
        name: as exported.
        kind: counter, gauge or histogram.
        labels: their names.
        text: its meaning, with the unit.
        bounds: the upper bounds of a histogram of the library.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    text: str
    bounds: tuple[float, ...] = ()

    def counter(self, registry: CollectorRegistry) -> Counter:
        """The counter in this registry."""
        return Counter(self.name, self.text, self.labels, registry=registry)

    def gauge(self, registry: CollectorRegistry) -> Gauge:
        """The gauge in this registry."""
        return Gauge(self.name, self.text, self.labels, registry=registry)

    def histogram(self, registry: CollectorRegistry) -> Histogram:
        """The histogram in this registry."""
        return Histogram(self.name, self.text, self.labels, registry=registry, buckets=self.bounds)

    def block(self, samples: Iterable[Sample], *, openmetrics: bool) -> str:
        """The metric's series as text. For many series the library would take twenty times as long."""
        name, own = self.name.removesuffix("_total") if openmetrics else self.name, self.name
        head = f"# HELP {name} {self.text}\n# TYPE {name} {self.kind}\n"
        return head + "".join([f"{own}{labels} {value}\n" for labels, value in samples])


def labelled(**labels: str) -> str:
    """The labels in text form."""
    return "{" + ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()]) + "}"


_described: dict[str, MetricDescription] = {}


def described() -> Iterator[MetricDescription]:
    """All declared metrics, in the order of declaration."""
    yield from _described.values()


def declared(name: str, kind: Kind, text: str, *labels: str, bounds: Sequence[float] = ()) -> MetricDescription:
    """Declare a metric. ``name`` of a counter ends in ``_total``; ``bounds`` of a histogram are in seconds."""
    if name in _described:
        raise ValueError(f"{name} is declared twice")
    found = _described[name] = MetricDescription(name, kind, labels, text, tuple(bounds))
    return found


_ROUNDS: Final = declared(
    "poller_rounds_total",
    "counter",
    "Rounds that this process ended, by mode; the result is ok, failed or skipped.",
    "feed",
    "mode",
    "result",
)
_PAGES: Final = declared("poller_pages_total", "counter", "Pages that rounds have read and committed.", "feed")
_RECORDS: Final = declared(
    "poller_records_total",
    "counter",
    f"Records in rounds by what became of them: {', '.join(KINDS[:-1])} or {KINDS[-1]}.",
    "feed",
    "kind",
)
_ROUND_SECONDS: Final = declared(
    "poller_round_duration_seconds",
    "histogram",
    "Duration of rounds, in seconds, without those that were skipped.",
    "source",
    "mode",
    bounds=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)


class _Durations:
    """The numbers of a histogram: a count for each bucket, not cumulated, and the sum of all seconds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, described: MetricDescription) -> None:
        self._bounds = described.bounds
        self._counts = [0] * (len(described.bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def samples(self, **labels: str) -> Iterator[Sample]:
        """The series, each with its suffix."""
        counts, seconds = list(self._counts), self._sum  # one copy, because the loop may continue meanwhile
        bounds = (*map(str, map(float, self._bounds)), "+Inf")
        for bound, count in zip(bounds, accumulate(counts), strict=True):
            yield "_bucket" + labelled(le=bound, **labels), count
        yield "_count" + labelled(**labels), sum(counts)
        yield "_sum" + labelled(**labels), seconds


class _FeedCounts:
    """The counts of one feed."""

    __slots__ = ("rounds", "sums")

    def __init__(self) -> None:
        self.rounds: Counts[tuple[str, str]] = Counts()
        self.sums = RoundCounts()


class RoundMetrics:
    """The metrics of all rounds of one process. Counted by its loop, rendered by any thread."""

    def __init__(self) -> None:
        self._feeds: dict[str, _FeedCounts] = {}
        self._seconds: dict[tuple[str, str], _Durations] = {}  # by source and mode

    def ended(self, feed: str, counts: RoundCounts, *, mode: str, result: str) -> None:
        """Count a round.

        Args:
            feed: ``SOURCE/NAME``.
            counts: of the round.
            mode: of the round.
            result: ``ok``, ``failed`` or ``skipped``.
        """
        tally = self._feeds.get(feed)
        if tally is None:
            tally = self._feeds[feed] = _FeedCounts()
        tally.rounds[mode, result] += 1
        tally.sums += counts
        if result != "skipped":
            kind = feed.partition("/")[0], mode
            seconds = self._seconds.get(kind)
            if seconds is None:
                seconds = self._seconds[kind] = _Durations(_ROUND_SECONDS)
            seconds.observe(counts.seconds)

    def gone(self, feed: str) -> None:
        """Remove a feed that is not polled here any more."""
        self._feeds.pop(feed, None)

    def blocks(self, *, openmetrics: bool) -> Iterator[str]:
        """The series as text."""
        feeds = list(self._feeds.items())  # one copy, because the loop may continue meanwhile
        rounds = (
            (labelled(feed=feed, mode=mode, result=result), count)
            for feed, one in feeds
            for (mode, result), count in list(one.rounds.items())
        )
        yield _ROUNDS.block(rounds, openmetrics=openmetrics)
        yield _PAGES.block(((labelled(feed=feed), one.sums.pages) for feed, one in feeds), openmetrics=openmetrics)
        records = ((labelled(feed=feed, kind=kind), getattr(one.sums, kind)) for feed, one in feeds for kind in KINDS)
        yield _RECORDS.block(records, openmetrics=openmetrics)
        seconds = (one.samples(source=source, mode=mode) for (source, mode), one in list(self._seconds.items()))
        yield _ROUND_SECONDS.block(chain.from_iterable(seconds), openmetrics=openmetrics)


# Attempts by subscription. A subscription that is not delivered here has no series.

Step = Literal["delivered", "retried", "dead_letter", "subscription_paused", "sink_paused", "withheld"]
"""The steps that may follow an attempt."""

STEPS: Final[tuple[Step, ...]] = (
    "delivered",
    "retried",
    "dead_letter",
    "subscription_paused",
    "sink_paused",
    "withheld",
)

_ATTEMPTS: Final = declared(
    "poller_attempts_total",
    "counter",
    f"Attempts to deliver an event, by what followed: {', '.join(STEPS[:-1])} or {STEPS[-1]}.",
    "subscription",
    "outcome",
)
_ATTEMPT_SECONDS: Final = declared(
    "poller_attempt_duration_seconds",
    "histogram",
    "Duration of requests to sinks, in seconds; one request carries a whole batch.",
    "subscription",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15),
)
_DELAY: Final = declared(
    "poller_delivery_delay_seconds",
    "histogram",
    "Time from an event's recordedtime to its 2xx, in seconds, without redeliveries, replays and backfills.",
    "subscription",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300, 3600, 86400),
)


class AttemptSeries:
    """The series of one subscription. A few numbers: each delivery counts here."""

    __slots__ = ("_delays", "_requests", "_steps", "delayed", "requested")

    def __init__(self) -> None:
        """Begin with zeros."""
        self._steps = dict.fromkeys(STEPS, 0)
        self._requests, self._delays = _Durations(_ATTEMPT_SECONDS), _Durations(_DELAY)
        self.requested, self.delayed = self._requests.observe, self._delays.observe

    def attempted(self, step: Step, events: int) -> None:
        """Count attempts at this number of events by what follows."""
        self._steps[step] += events

    def attempts(self, step: Step) -> int:
        """How many attempts this has followed."""
        return self._steps[step]

    def samples(self, subscription: str) -> dict[MetricDescription, list[Sample]]:
        """The series of each metric, as those of this subscription."""
        return {
            _ATTEMPTS: [(labelled(outcome=step, subscription=subscription), n) for step, n in self._steps.items()],
            _ATTEMPT_SECONDS: list(self._requests.samples(subscription=subscription)),
            _DELAY: list(self._delays.samples(subscription=subscription)),
        }


def attempts_of(subscription: str) -> AttemptSeries:
    """The series of a subscription, created if necessary."""
    return process_metrics().attempts_of(subscription)


def no_attempts_of(subscription: str) -> None:
    """Remove the series of a subscription that is not delivered here any more."""
    process_metrics().no_attempts_of(subscription)


# Costs of a round for its log event. Tasks that a round starts count for it as well.


class RoundCosts:
    """The costs of one round.

    Attributes:
        requests: requests to the source, retries included.
        retries: retries of failed requests.
        received: bytes of the responses' bodies, as sent.
        source_seconds: the sum of the durations of all requests, which may overlap.
        commits: commits, successful or not.
        commit_seconds: the sum of their durations.
    """

    __slots__ = ("commit_seconds", "commits", "received", "requests", "retries", "source_seconds")

    def __init__(self) -> None:
        self.requests = self.retries = self.received = self.commits = 0
        self.source_seconds = self.commit_seconds = 0.0

    @property
    def public(self) -> dict[str, int | float]:
        """The costs as fields of the log event."""
        return {
            "requests": self.requests,
            "retries": self.retries,
            "bytes": self.received,
            "source_seconds": round(self.source_seconds, 3),
            "commits": self.commits,
            "commit_seconds": round(self.commit_seconds, 3),
        }


_current: Final[ContextVar[RoundCosts | None]] = ContextVar("costs", default=None)


@contextmanager
def counted() -> Iterator[RoundCosts]:
    """Count the costs of a block."""
    costs = RoundCosts()
    before = _current.set(costs)
    try:
        yield costs
    finally:
        _current.reset(before)


def requested(seconds: float, received: int) -> None:
    """Count a request."""
    if costs := _current.get():
        costs.requests += 1
        costs.received += received
        costs.source_seconds += seconds


def retried() -> None:
    """Count a retry."""
    if costs := _current.get():
        costs.retries += 1


def commit_timed(seconds: float) -> None:
    """Count a commit, successful or not."""
    if costs := _current.get():
        costs.commits += 1
        costs.commit_seconds += seconds


# This process.

_BUILD: Final = declared("poller_build_info", "gauge", "1; the versions of poller and of Python.", "version", "python")

_RETENTION_MAX_BYTES: Final = declared(
    "poller_retention_max_bytes", "gauge", "retention.max_bytes of this process, in bytes."
)

READY: Final = declared("poller_ready", "gauge", "1 while this process is ready, 0 otherwise, as /readyz says.")

_LOOP_LAG: Final = declared(
    "poller_loop_lag_seconds",
    "histogram",
    "Delay of the event loop in running what is due, in seconds; measured each second.",
    bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)
_ANSWERS: Final = declared(
    "poller_http_requests_total",
    "counter",
    "Requests to the HTTP service by route and status of the answer.",
    "route",
    "status",
)
_EVENT_READERS: Final = declared("poller_event_readers", "gauge", "Connections that are reading events over HTTP.")


def answered(route: str, status: int) -> None:
    """Count a response of the HTTP service. ``route``: as declared, never the requested path."""
    process_metrics().answers.labels(route, str(status)).inc()


# Requests to sources. A status unknown to HTTP counts as ``other``, so that no source can create series.

Failure = Literal["connect", "timeout", "body", "other"]
"""Failures: no connection; timeout; a body that is truncated, too large or malformed; anything else."""

_REQUESTS: Final = declared(
    "poller_source_requests_total",
    "counter",
    "Requests to sources by the status of the answer, or by connect, timeout, body or other if none was usable.",
    "source",
    "status",
)
_REQUEST_SECONDS: Final = declared(
    "poller_source_request_duration_seconds",
    "histogram",
    "Duration of requests to sources, in seconds, bodies included.",
    "source",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
_PAUSED: Final = declared(
    "poller_source_paused",
    "gauge",
    "1 while requests to a source are paused, because it asked for that (429, 503) or did not answer.",
    "source",
)
_STATUSES: Final = {int(status): str(int(status)) for status in HTTPStatus}


class SourceSeries:
    """The series of one source, while its client is open."""

    def __init__(self, source: str) -> None:
        metrics = process_metrics()
        self._source = source
        self._requests = metrics.source_requests
        self._paused = metrics.source_paused
        self._seconds = metrics.source_seconds.setdefault(source, _Durations(_REQUEST_SECONDS))

    def ended(self, answer: int | Failure, seconds: float) -> None:
        """Count a request with this status or failure."""
        status = answer if isinstance(answer, str) else _STATUSES.get(answer, "other")
        self._requests[self._source, status] += 1
        self._seconds.observe(seconds)

    def opened(self, paused: Callable[[], bool]) -> None:
        """Create the series. ``paused``, called by any thread, says whether the source is paused."""
        self._paused.labels(self._source).set_function(lambda: float(paused()))

    def closed(self) -> None:
        """Remove the series."""
        self._paused.remove(self._source)


# Commits, leases and the store, as this process sees them.

CommitResult = Literal["written", "repeated", "fenced", "stale", "failed"]
COMMIT_RESULTS: Final[tuple[CommitResult, ...]] = ("written", "repeated", "fenced", "stale", "failed")
LeaseKind = Literal["feed", "delivery"]
LeaseChange = Literal["taken", "lost", "released"]

_COMMITS: Final = declared(
    "poller_commits_total",
    "counter",
    "Commits by result: written; repeated: already written, the first reply was lost; fenced: another process has the "
    "lease; stale: the feed had changed; failed: the store refused it or did not answer.",
    "result",
)
_COMMIT_SECONDS: Final = declared(
    "poller_commit_duration_seconds",
    "histogram",
    "Duration of commits, in seconds, until the store answered or the commit was given up.",
    bounds=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)
_CHANGES: Final = declared(
    "poller_lease_changes_total",
    "counter",
    "Leases of feeds and deliveries that were taken, lost or released.",
    "kind",
    "change",
)
_HELD: Final = declared(
    "poller_leases_held", "gauge", "Leases of feeds and deliveries that this process holds.", "kind"
)

_STORE_FAILURES: Final = declared("poller_store_failures_total", "counter", "How often the store became unavailable.")
STORE_UP: Final = declared(
    "poller_store_up", "gauge", "1 while the store answers this process and accepts its commands."
)
STORE_FINDING: Final = declared(
    "poller_store_finding",
    "gauge",
    "1 for each check of the store that is not ok, by its name and severity (warning, error).",
    "name",
    "severity",
)


def committed(result: CommitResult, seconds: float) -> None:
    """Count a commit."""
    metrics = process_metrics()
    metrics.commits[result].inc()
    metrics.commit_seconds.observe(seconds)


def lease_changed(kind: LeaseKind, change: LeaseChange) -> None:
    """Count a lease that was acquired, lost or released."""
    process_metrics().lease_changes.labels(kind, change).inc()


def leases_held(kind: LeaseKind, count: int) -> None:
    """Set the number of leases of this process."""
    process_metrics().leases_held.labels(kind).set(count)


class ProcessMetrics:
    """The metrics of one process.

    Attributes:
        registry: those that the library collects.
        rounds: of the rounds.
        source_requests: the requests to sources, by source and by status or failure.
        source_seconds: their durations, by source.
    """

    def __init__(self) -> None:
        """Begin with zeros."""
        self.registry = registry = CollectorRegistry()
        self.rounds = RoundMetrics()
        ProcessCollector(registry=registry)
        self.retention_max_bytes = _RETENTION_MAX_BYTES.gauge(registry)
        self.loop_lag = _LOOP_LAG.histogram(registry)
        self.answers = _ANSWERS.counter(registry)
        self.event_readers = _EVENT_READERS.gauge(registry)
        self.source_requests: Counts[tuple[str, str]] = Counts()
        self.source_seconds: dict[str, _Durations] = {}
        self.source_paused = _PAUSED.gauge(registry)
        commits = _COMMITS.counter(registry)
        self.commits = {one: commits.labels(one) for one in COMMIT_RESULTS}
        self.commit_seconds = _COMMIT_SECONDS.histogram(registry)
        self.lease_changes = _CHANGES.counter(registry)
        self.leases_held = _HELD.gauge(registry)
        self.store_failures = _STORE_FAILURES.counter(registry)
        _BUILD.gauge(registry).labels(__version__, platform.python_version()).set(1)
        for kind in ("feed", "delivery"):
            for change in ("taken", "lost", "released"):
                self.lease_changes.labels(kind, change)  # so that the first increase of each is visible
        self._subscriptions: dict[str, AttemptSeries] = {}

    def attempts_of(self, subscription: str) -> AttemptSeries:
        """The series of a subscription, created if necessary."""
        found = self._subscriptions.get(subscription)
        if found is None:
            found = self._subscriptions[subscription] = AttemptSeries()
        return found

    def no_attempts_of(self, subscription: str) -> None:
        """Remove the series of a subscription that is not delivered here any more."""
        self._subscriptions.pop(subscription, None)

    def blocks(self, *, openmetrics: bool) -> Iterator[str]:
        """The series that the library does not collect, as text. May be called by any thread."""
        yield from self.rounds.blocks(openmetrics=openmetrics)
        requests = list(self.source_requests.items())
        counts = ((labelled(source=source, status=status), count) for (source, status), count in requests)
        yield _REQUESTS.block(counts, openmetrics=openmetrics)
        seconds = (one.samples(source=source) for source, one in list(self.source_seconds.items()))
        yield _REQUEST_SECONDS.block(chain.from_iterable(seconds), openmetrics=openmetrics)
        found = [one.samples(name) for name, one in list(self._subscriptions.items())]
        for described in (_ATTEMPTS, _ATTEMPT_SECONDS, _DELAY):
            samples = chain.from_iterable(one[described] for one in found)
            yield described.block(samples, openmetrics=openmetrics)


_METRICS: Final[ContextVar[ProcessMetrics]] = ContextVar("metrics", default=ProcessMetrics())  # noqa: B039 -- what has no other counts there


def process_metrics() -> ProcessMetrics:
    """Where this task counts."""
    return _METRICS.get()


@contextmanager
def counting_in(metrics: ProcessMetrics) -> Iterator[None]:
    """Let the tasks that the block starts count there: for several processes in one."""
    before = _METRICS.set(metrics)
    try:
        yield
    finally:
        _METRICS.reset(before)
