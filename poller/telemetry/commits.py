"""Commits, leases, and how the store does, as this process meets them."""

from __future__ import annotations

from typing import Final, Literal

from poller.telemetry.catalogue import counter, declared, gauge, histogram

CommitResult = Literal["written", "repeated", "fenced", "stale", "failed"]
LeaseKind = Literal["feed", "delivery"]
LeaseChange = Literal["taken", "lost", "released"]

_COMMITS: Final = counter(
    "poller_commits_total",
    "Commits by their end: written; repeated, it was written though the first answer was lost; fenced, the lease was "
    "another's; stale, the feed was elsewhere; failed, without an answer.",
    "result",
)
_RESULTS: Final = {one: _COMMITS.labels(one) for one in ("written", "repeated", "fenced", "stale", "failed")}
_COMMIT_SECONDS: Final = histogram(
    "poller_commit_duration_seconds",
    "How long commits took, in seconds, until the store had answered or was given up.",
    bounds=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)
_CHANGES: Final = counter(
    "poller_lease_changes_total", "Leases of feeds and deliveries that were taken, lost or released.", "kind", "change"
)
_HELD: Final = gauge("poller_leases_held", "Leases that this process has: of feeds, and of deliveries.", "kind")
for _kind in ("feed", "delivery"):
    for _change in ("taken", "lost", "released"):
        _CHANGES.labels(_kind, _change)  # so that the first of each is seen to be one more

STORE_FAILURES: Final = counter("poller_store_failures_total", "Times that the store was found to be away.")
STORE_UP: Final = declared("poller_store_up", "gauge", "1 while the store does what this process asks of it.")
STORE_FINDING: Final = declared(
    "poller_store_finding",
    "gauge",
    "1 for each check of the store that is not ok, by its name and severity (warning, error).",
    "name",
    "severity",
)


def committed(result: CommitResult, seconds: float) -> None:
    """A commit has ended."""
    _RESULTS[result].inc()
    _COMMIT_SECONDS.observe(seconds)


def lease_changed(kind: LeaseKind, change: LeaseChange) -> None:
    """A lease was taken, lost or released."""
    _CHANGES.labels(kind, change).inc()


def leases_held(kind: LeaseKind, count: int) -> None:
    """This process has so many."""
    _HELD.labels(kind).set(count)
