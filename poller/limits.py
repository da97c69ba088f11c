"""Limits of rate and concurrency that may change while tasks wait, and the pauses that answers ask for.

Each process uses a part of a source's or sink's limit; the part changes whenever leases move. All sources of a process
share its connections, and so do all sinks.

**Invariants**

- After a change, the new limit holds for all tasks that wait; running tasks may end.
- Who hangs takes no connection from others: each has an even share, at least one.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from fractions import Fraction
from math import exp2, sqrt
from typing import Final, Protocol

import structlog
from aiolimiter import AsyncLimiter

WHOLE: Final = Fraction(1)

_log = structlog.get_logger("poller.limits")


class RateLimiter:
    """A limit of starts per second, evenly spaced."""

    def __init__(self, rate: float | None) -> None:
        """``rate``: starts per second; None: no limit."""
        self._rate = rate
        self._limiter = _limiter(rate, WHOLE)

    @property
    def is_limited(self) -> bool:
        """Whether a start may have to wait."""
        return self._limiter is not None

    def change(self, part: Fraction) -> None:
        """Use this part of the rate from now on."""
        self._limiter = _limiter(self._rate, part)

    async def turn(self) -> None:
        """Wait until a start is permitted."""
        passed = None
        while (limiter := self._limiter) is not None and limiter is not passed:  # else the limit was changed meanwhile
            await limiter.acquire()
            passed = limiter


def _limiter(rate: float | None, part: Fraction) -> AsyncLimiter | None:
    return AsyncLimiter(1, 1 / (rate * float(part))) if rate else None


class ConcurrencyLimit:
    """A limit on concurrent blocks, first come, first served.

    An async context manager: a slot for the time of the block.
    """

    def __init__(self, most: int) -> None:
        """``most``: the number of concurrent blocks."""
        self._whole = self._most = self._bound = most
        self._part = WHOLE
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def change(self, part: Fraction) -> None:
        """Use this part of the limit from now on, at least one."""
        self._part = part
        self._resize()

    def bound(self, most: int) -> None:
        """Permit at most this number, whatever the part."""
        self._bound = most
        self._resize()

    def _resize(self) -> None:
        self._most = min(part_of(self._whole, self._part), self._bound)
        self._admit()

    async def __aenter__(self) -> None:
        """Wait for a slot."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            else:
                with suppress(ValueError):
                    self._waiting.remove(turn)
            raise

    async def __aexit__(self, *_: object) -> None:
        """Release the slot."""
        self._leave()

    def _leave(self) -> None:
        self._taken -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._taken < self._most:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)


def part_of(count: int, part: Fraction) -> int:
    """A part of a whole, rounded down, at least one."""
    return max(1, int(count * part))


class ConnectionHolder(Protocol):
    """A source or an endpoint, which keeps connections."""

    @property
    def wanted(self) -> int:
        """The connections of its configuration."""
        ...

    def bound(self, most: int) -> None:
        """Use at most this number of connections."""
        ...


class ConnectionBudget:
    """The connections that one process may have to its sources, or to its sinks; its holders share them evenly.

    A server that accepts requests and never answers keeps its connections. Without a bound a few dozen of them would
    use up the descriptors of the process, and nothing would reach the others.
    """

    def __init__(self, most: int, of: str) -> None:
        """``most``: the number of connections; ``of``: what its holders are, for the log."""
        self._most = most
        self._of = of
        self._holders: set[ConnectionHolder] = set()
        self._each = most
        self._widest = 0  # the most that a holder has wanted so far
        self._is_reported = False

    @contextmanager
    def shared_by(self, *holders: ConnectionHolder) -> Iterator[None]:
        """Give each of these a share for the time of the block."""
        self._holders.update(holders)
        self._widest = max((self._widest, *(holder.wanted for holder in holders)))
        self._spread(holders)
        try:
            yield
        finally:
            self._holders.difference_update(holders)
            self._spread(())

    def _spread(self, come: Iterable[ConnectionHolder]) -> None:
        """Give each holder its share; if all others have and keep what they want, only those that have come."""
        before, each = self._each, max(1, self._most // max(1, len(self._holders)))
        self._each = each
        if min(before, each) >= self._widest:
            for holder in come:
                holder.bound(holder.wanted)
            return
        for holder in self._holders:
            holder.bound(min(each, holder.wanted))
        if not self._is_reported and any(each < holder.wanted for holder in self._holders):
            self._is_reported = True
            log = _log.error if len(self._holders) > self._most else _log.warning
            log(
                "few descriptors",
                **{self._of: len(self._holders)},
                connections_each=each,
                advice=f"{self._of} use fewer connections than their concurrency, so that one that hangs takes none "
                "from others, as long as each can have one; raise the limit of open files (ulimit -n, LimitNOFILE=)",
            )


# The rate that a sink accepts, learnt from ``429`` answers without ``Retry-After``. A refusal halves the rate of
# requests. The rate rises within seconds to just below the last good rate, and slowly from there.
#
# - Before the first refusal there is no limit. A limit that was not reached for long is dropped.
# - A refusal of a request sent before the last halving belongs to the same burst and changes nothing.
# - A burst pauses the sink once: for :data:`FIRST_PAUSE`, or for :data:`LATER_PAUSE` if a limit was known; twice as
#   long each time without an accepted request in between, up to :data:`LONGEST_PAUSE`. - After each refusal the rate
#   starts at half of its former value, or below.

FIRST_PAUSE: Final = 1.0
LATER_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 60.0

_LEAST: Final = 0.1  # requests a second
_MEASURED: Final = 1.0  # seconds before the first refusal whose accepted requests give the sink's rate
_MOST_MEASURED: Final = 256
_RECOVERY: Final = 3.0  # seconds from half of the rate to just below it
_BELOW: Final = 0.97  # of the accepted rate: where the slow rise begins
_SLOPE: Final = 0.005  # a second
_CURVE: Final = 10.0  # seconds after which the slow rise becomes a fast one
_KEPT: Final = 0.9  # of the rate, at least, if requests were accepted between two refusals
_LATE: Final = 0.05  # of the time between two requests
_DROPPED: Final = 16.0  # times the accepted rate
_SEARCHED: Final = 10.0  # doublings


class AdaptiveRate:
    """The adaptive rate limit of one sink in one process."""

    def __init__(self) -> None:
        """Begin without a limit."""
        self._latest: deque[float] = deque(maxlen=_MOST_MEASURED)
        self._taken = 0  # since the last refusal
        self._borne: float | None = None  # requests a second
        self._searching = False
        self._since = float("-inf")  # time of the last refusal
        self._resumed = float("-inf")  # when its pause ended
        self._pause = FIRST_PAUSE
        self._started = float("-inf")  # the last request

    def rate(self, now: float) -> float | None:
        """The limit in requests per second; None: no limit."""
        if self._borne is None:
            return None
        seconds = max(now - self._resumed, 0.0)
        if self._searching:
            factor, most = exp2(min(seconds, _SEARCHED) - 1), exp2(_SEARCHED - 1)
        elif seconds < _RECOVERY:
            factor, most = _BELOW - (_BELOW - 0.5) * (1 - seconds / _RECOVERY) ** 3, _DROPPED
        else:
            beyond = seconds - _RECOVERY
            factor, most = _BELOW + _SLOPE * beyond + 0.1 * (beyond / _CURVE) ** 3, _DROPPED
        if factor >= most:
            self._borne = None
            return None
        return self._borne * factor

    def taken(self, now: float) -> None:
        """Record a request that was answered with 2xx."""
        self._taken += 1
        if self._borne is None:
            self._latest.append(now)

    def refused(self, now: float, *, sent: float) -> float:
        """Record the refusal of a request sent at this moment. Returns the pause in seconds; 0: no further one."""
        if sent <= self._since:
            return 0.0
        rate = self.rate(now)
        if rate is None:
            borne = max(1.0, sum(now - moment < _MEASURED for moment in self._latest) / _MEASURED)
            self._pause = FIRST_PAUSE
        elif not self._taken:
            borne = rate
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        else:
            # Between two refusals, a sink that saves up unused requests accepted the mean rate; another sink, the rate.
            mean = self._taken / (now - self._since)
            borne = rate if self._searching else max(min(rate, sqrt(rate * mean)), rate * _KEPT)
            self._pause = LATER_PAUSE
        self._searching = rate is None or not self._taken
        self._borne = max(borne, _LEAST)
        self._taken = 0
        self._latest.clear()
        self._since, self._resumed = now, now + self._pause
        return self._pause

    def wait(self, now: float) -> float:
        """Seconds until the next request may start. The rate may rise meanwhile."""
        rate = self.rate(now)
        return 0.0 if rate is None else max(self._started + 1 / rate - now, 0.0)

    def start(self, now: float) -> None:
        """Record the start of a request."""
        rate = self.rate(now)
        if rate is None:
            self._started = now
            return
        due = self._started + 1 / rate
        self._started = due if now - due < _LATE / rate else now  # timers are a little late, each time


# ``Retry-After`` and dates of HTTP. A date is relative to the response's ``Date``, so a wrong clock on either side does
# no harm; without ``Date``, it is relative to the wall clock. Any other text is ignored.

# RFC 9110 knows whole seconds only; some send parts of one, or a number below zero.
_SECONDS: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_FAR: Final = timedelta(days=36_500)


def pause_requested(value: str | None, *, date: str | None, now: datetime) -> timedelta | None:
    """The pause that an answer asks for: none below zero, a hundred years at most; None where it asks for none.

    Args:
        value: its ``Retry-After``: seconds or an HTTP date.
        date: its ``Date``.
        now: the wall clock, UTC; what a date is compared with where ``date`` cannot be read.
    """
    text = (value or "").strip()
    if _SECONDS.fullmatch(text):
        # As a float first: a number of any length is one, and a timedelta is not.
        return timedelta(seconds=min(max(float(text), 0.0), _FAR.total_seconds()))
    until = http_date(text)
    return min(max(until - (http_date(date) or now), timedelta(0)), _FAR) if until else None


def http_date(text: str | None) -> datetime | None:
    """A date of RFC 9110 in any of its three spellings, UTC; None for anything else."""
    try:
        moment = parsedate_to_datetime(text or "")
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None  # the parser of the standard library raises any of these on text from outside
