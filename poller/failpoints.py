"""Failpoints: places where a test kills the process, to prove that nothing is lost.

Nothing happens unless :func:`arm` was called, which the command line does if ``POLLER_FAILPOINT=name[:n]`` is set. Then
the process kills itself with SIGKILL, without any clean-up, when it reaches that place for the n-th time.
"""

from __future__ import annotations

import os
import signal
from typing import Final

from poller.errors import ConfigurationError

# In the order in which they are reached. Each name occurs at one place in the code.
OF_ROUNDS: Final = (
    "lease.taken",  # lease acquired and state read, no request made
    "page.fetched",  # a page is read, nothing of it is committed
    "known.read",  # its snapshots are read
    "commit.planned",  # the commit is planned, not sent
    "commit.sent",  # the commit is written, but its reply is lost
    "commit.done",  # the process knows that the commit is written
    "round.read",  # all pages are committed, the delta token is not
    "round.done",  # the delta token is committed
    "lease.released",  # on the way out
)
OF_DELIVERIES: Final = (
    "delivery.read",  # entries are read from the stream, nothing of them is sent
    "delivery.answered",  # a sink has answered, the step is not planned
    "delivery.settling",  # the ack batch is planned, not sent
    "delivery.settled",  # the ack batch is written
)
OF_BACKFILLS: Final = (
    "backfill.read",  # a chunk of records is read, and waits for its place among the entries
    "backfill.queued",  # its events are queued, nothing of them is sent
)
OF_ERASURES: Final = (
    "erasure.begun",  # the record has a tombstone, nothing else is looked for
    "erasure.letters",  # its dead letters are gone, its scheduled retries are not
    "erasure.quarantine",  # its retries and quarantined copies are gone, its events are not
    "erasure.events",  # a part of its events is gone
    "erasure.complete",  # all of it is gone, which is noted, and not announced
    "erasure.announced",  # its operational event is published, which is not noted
)
POINTS: Final = OF_ROUNDS + OF_DELIVERIES + OF_BACKFILLS + OF_ERASURES

_armed: dict[str, int] = {}


def arm(spec: str) -> None:
    """Kill the process at a failpoint: ``name`` the first time it is reached, ``name:n`` the n-th time.

    Raises:
        ConfigurationError: no such place, or n is not a number from 1.
    """
    name, _, times = spec.partition(":")
    if name not in POINTS or not (times or "1").isdecimal() or times == "0":
        raise ConfigurationError(
            f"POLLER_FAILPOINT is {spec!r}; expected name or name:n with one of the names {', '.join(POINTS)}"
        )
    _armed[name] = int(times or 1)


def reach(name: str) -> None:
    """Mark a failpoint in the code; kills the process if it is armed."""
    if not _armed or name not in _armed:
        return
    _armed[name] -= 1
    if _armed[name] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
