"""Requests to sources, and whether a source is left alone.

Law: a status that HTTP does not know is counted as ``other``, so that no source can make up series.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Literal

from poller.telemetry.catalogue import counter, gauge, histogram

Failure = Literal["connect", "timeout", "body", "other"]
"""No usable answer: no connection; not in time; a body that is cut, too large or not what it claims; anything else."""

_REQUESTS: Final = counter(
    "poller_source_requests_total",
    "Requests to sources by the status of the answer, or connect, timeout, body or other where no usable one came.",
    "source",
    "status",
)
_REQUEST_SECONDS: Final = histogram(
    "poller_source_request_duration_seconds",
    "How long requests to sources took, in seconds, bodies included.",
    "source",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
_PAUSED: Final = gauge(
    "poller_source_paused",
    "1 while this process leaves a source alone: it asked for that (429, 503), or has not answered.",
    "source",
)
_STATUSES: Final = {int(status): str(int(status)) for status in HTTPStatus}


class SourceSeries:
    """The series of one source, for the time in which it is asked."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._seconds = _REQUEST_SECONDS.labels(source)

    def ended(self, answer: int | Failure, seconds: float) -> None:
        """A request has: with this status, or without a usable answer."""
        status = answer if isinstance(answer, str) else _STATUSES.get(answer, "other")
        _REQUESTS.labels(self._source, status).inc()
        self._seconds.observe(seconds)

    def opened(self, paused: Callable[[], bool]) -> None:
        """It is asked from now on; ``paused`` says whether it is left alone, to any thread."""
        _PAUSED.labels(self._source).set_function(lambda: float(paused()))

    def closed(self) -> None:
        """It is asked no more."""
        _PAUSED.remove(self._source)
