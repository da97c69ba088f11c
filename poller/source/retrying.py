"""What follows from one exchange: the policy of retries as a table.

Theory of operation
-------------------
======================================  ==========================================  ====================================
outcome                                 step                                        does the API count as answering
======================================  ==========================================  ====================================
429                                     pause the source, a second at least         yes: it is there, and busy
5xx with ``Retry-After``                pause the source for so long                no
network, timeout, 408, 425, other 5xx   again after a pause that doubles, jittered  no
closed before a byte came, first time   again at once                               no
any other status                        final: asking again would not change it     yes
======================================  ==========================================  ====================================

The pause belongs to the source: none of its feeds starts a request in it. A further attempt is made only while there
is something left of the caller's patience and of :data:`ATTEMPTS`; beyond that the feed's next round is the retry.

Pure: the jitter and the wall clock are arguments, and nothing waits here.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from poller.source.retry_after import pause_asked

ATTEMPTS: Final = 3
PATIENCE: Final = timedelta(seconds=30)
FIRST_PAUSE: Final = timedelta(seconds=0.25)
DOUBLINGS: Final = 8  # to about a minute, whatever the attempts are one day

_TOO_MANY: Final = 429
_PASSING: Final = frozenset({408, 425, _TOO_MANY})
_SERVER_ERRORS: Final = range(500, 1000)


class Outcome(msgspec.Struct, frozen=True):
    """How an exchange ended, as far as manners are concerned.

    Attributes:
        status: the HTTP status; None where no complete answer came.
        closed: the connection was closed before a byte of an answer, as a server does with one that was idle for long.
        retry_after: the header's text.
        date: the text of the answer's ``Date``.
    """

    status: int | None = None
    closed: bool = False
    retry_after: str | None = None
    date: str | None = None

    @property
    def transient(self) -> bool:
        """Whether asking again may bring something else."""
        return self.status is None or self.status in _PASSING or self.status in _SERVER_ERRORS

    @property
    def answering(self) -> bool:
        """Whether it shows an API that is there."""
        return not self.transient or self.status == _TOO_MANY


class Stands(msgspec.Struct, frozen=True):
    """The answer stands, good or not."""


class Again(msgspec.Struct, frozen=True):
    """Worth another attempt ``after`` a while."""

    after: timedelta


class Pause(msgspec.Struct, frozen=True):
    """The whole source is left alone for so long (``after``); then it is worth another attempt."""

    after: timedelta


Step = Stands | Again | Pause


def step_after(outcome: Outcome, *, attempt: int, jitter: float, now: datetime) -> Step:
    """What follows from this outcome.

    Args:
        outcome: how the exchange ended.
        attempt: which attempt it was, from 1.
        jitter: a factor for the pause, about 1; it never shortens what the API asked for.
        now: the wall clock, UTC.
    """
    if not outcome.transient:
        return Stands()
    if outcome.status == _TOO_MANY or (outcome.status in _SERVER_ERRORS and outcome.retry_after is not None):
        return Pause(pause_asked(outcome.retry_after, date=outcome.date, now=now))
    if outcome.closed and attempt == 1:
        return Again(timedelta(0))
    return Again(FIRST_PAUSE * 2 ** min(attempt - 1, DOUBLINGS) * jitter)


def affordable(wait: timedelta, *, attempt: int, left: timedelta) -> bool:
    """Whether a caller that made ``attempt`` attempts, and has so much patience ``left``, can wait and try again."""
    return attempt < ATTEMPTS and wait < left
