"""Points where a test may kill the process, to prove that nothing is lost.

Nothing happens unless :func:`arm` was called, which the command line does when ``POLLER_FAILPOINT=name[:n]`` is set.
Then the process kills itself with SIGKILL when it reaches that place for the n-th time: no clean-up, no last words.
"""

from __future__ import annotations

import os
import signal
from typing import Final

from poller.errors import ConfigurationError

# Each in the order in which it is reached. A name stands at one place in the code.
OF_ROUNDS: Final = (
    "lease.taken",  # lease and state are in hand, nothing was asked of the API
    "page.fetched",  # a page is here, nothing of it is committed
    "known.read",  # its snapshots are read
    "commit.planned",  # the commit is planned, not sent
    "commit.sent",  # the commit is written, this process does not know it yet: the lost reply
    "commit.done",  # the process knows that the commit is written
    "round.read",  # all pages are committed, the delta token is not
    "round.done",  # the delta token is committed
    "lease.released",  # on the way out
)
OF_DELIVERIES: Final = (
    "delivery.read",  # entries are read from the stream, nothing of them is sent
    "delivery.answered",  # a sink has answered, what follows is not even drafted
    "delivery.settling",  # what became of deliveries is drafted, not sent to the store
    "delivery.settled",  # it is written
)
POINTS: Final = OF_ROUNDS + OF_DELIVERIES

_armed: dict[str, int] = {}


def arm(spec: str) -> None:
    """Die at a place: ``name`` at the first time it is reached, ``name:n`` at the n-th.

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
    """Say that this place is reached."""
    if not _armed or name not in _armed:
        return
    _armed[name] -= 1
    if _armed[name] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
