"""This process: which program it is, whether it is ready, how late its loop is, whom it answers, what it may keep."""

from __future__ import annotations

import platform
from typing import Final

from poller import __version__
from poller.telemetry.catalogue import counter, declared, gauge, histogram

gauge("poller_build_info", "1; which poller and which Python this is.", "version", "python").labels(
    __version__, platform.python_version()
).set(1)

RETENTION_MAX_BYTES: Final = gauge("poller_retention_max_bytes", "retention.max_bytes of this process, in bytes.")

READY: Final = declared("poller_ready", "gauge", "1 while this process is ready, 0 otherwise, as /readyz says.")

LOOP_LAG: Final = histogram(
    "poller_loop_lag_seconds",
    "How late the event loop runs what is due, in seconds; looked at twice a second.",
    bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)
_ANSWERS: Final = counter(
    "poller_http_requests_total",
    "Requests to the HTTP service by their route and the answer's status.",
    "route",
    "status",
)
EVENT_READERS: Final = gauge("poller_event_readers", "Connections that follow events over HTTP now.")


def answered(route: str, status: int) -> None:
    """The HTTP service has answered. ``route``: as it is declared, never a path that was asked for."""
    _ANSWERS.labels(route, str(status)).inc()
