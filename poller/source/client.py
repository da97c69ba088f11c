"""Asking the API with manners: a path and parameters in, a body out, or an error that says whose fault it was.

The law: what all feeds of a source do together stays within the source's bounds, that is how many requests run at once,
how many start in a second, and whether any may start at all (:mod:`poller.source.gate`). Where several processes share
the feeds, each keeps to its part of the first two. Repetitions are requests like others. What follows a failure is
:mod:`poller.source.retrying`'s to say; what goes over the wire :mod:`poller.source.exchange` knows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Self

import httpx
import msgspec

from poller.credentials.bearer import Credential, NoCredential
from poller.errors import SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from poller.http.transport import Transport
from poller.pacing import Pace, Slots
from poller.source.exchange import Exchange, Limits, Reply
from poller.source.gate import Gate
from poller.source.paging import Params
from poller.source.retrying import ATTEMPTS, PATIENCE, Pause, Stands, Step, affordable, step_after
from poller.source.traced import request_of, tell_reply
from poller.source.unchanged import Answer
from poller.source.validators import Validators
from poller.telemetry import costs
from poller.telemetry.sources import SourceSeries

__all__ = ["ATTEMPTS", "ApiClient", "Limits"]


class ApiClient:
    """The client of one source, shared by its feeds. An async context manager: enter it before the first call."""

    def __init__(
        self,
        base_url: str,
        *,
        credential: Credential | None = None,
        limits: Limits | None = None,
        transport: Transport | None = None,
        jitter: Callable[[], float] = lambda: 1.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], timedelta] = lambda: timedelta(seconds=time.monotonic()),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        series: SourceSeries | None = None,
    ) -> None:
        """Take what the client works with.

        Args:
            base_url: without a trailing slash; paths are appended to it.
            credential: where the bearer token comes from.
            limits: see there.
            transport: see there.
            jitter: a fresh factor for each pause, between 0.5 and 1.5 say.
            sleep: waits for so many seconds.
            clock: one that only goes forward, from any beginning.
            now: the wall clock, UTC.
            series: where requests are counted.

        Raises:
            ConfigurationError: a certificate file cannot be used.
        """
        self._credential = credential or NoCredential()
        limits = limits or Limits()
        self._base_url = base_url
        self._exchange = Exchange(base_url, limits, transport or Transport(), series=series)
        self._series = series
        self._jitter = jitter
        self._sleep = sleep
        self._clock = clock
        self._now = now
        self._gate = Gate(clock=clock, now=now, sleep=sleep, jitter=jitter)
        self._slots = Slots(limits.concurrency)
        self._pace = Pace(limits.rate)

    async def __aenter__(self) -> Self:
        """Open the pool; connections are made when they are needed."""
        await self._exchange.__aenter__()
        if self._series:
            self._series.opened(lambda: self._gate.shut or not self._gate.answering)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        if self._series:
            self._series.closed()
        await self._exchange.__aexit__()

    def share(self, part: Fraction) -> None:
        """Use only this part of the source's rate and concurrency; other processes have the rest."""
        self._slots.change(part)
        self._pace.change(part)

    async def get(self, path: str, params: Params = (), *, patience: timedelta = PATIENCE) -> bytes:
        """The body of a 200.

        ``patience`` bounds waiting and repeating; the first attempt has the whole ``timeout`` in any case.

        Raises:
            SourceUnavailable: no usable answer; later there may be one. Raised at once where the API asked to be left
                alone for longer than ``patience``, or has not answered anybody and is not due to be asked again.
            SourceRefused: a status that will not change by asking again.
            SourceNonsense: the body is larger than ``max_page_bytes``.
            CredentialUnusable: there is no token to send.
        """
        return (await self._settled(path, params, {}, patience)).body

    async def ask(
        self, path: str, params: Params = (), *, unless: Validators | None = None, patience: timedelta = PATIENCE
    ) -> Answer:
        """As :meth:`get`, on condition that the answer is another than these validators say."""
        reply = await self._settled(path, params, unless.headers if unless else {}, patience)
        return Answer(None if reply.outcome.status == httpx.codes.NOT_MODIFIED else reply.body, reply.validators)

    async def _settled(self, path: str, params: Params, condition: dict[str, str], patience: timedelta) -> Reply:
        """The answer that no further attempt would better, if it is a good one."""
        deadline, attempt = self._clock() + patience, 1
        reply, step = await self._attempt(path, params, condition, attempt, deadline)
        while not isinstance(step, Stands):
            left = deadline - self._clock()
            if not affordable(step.after, attempt=attempt, left=left) or not self._gate.answering:
                raise self._given_up(reply, step, attempt)
            if not isinstance(step, Pause):  # a pause is everybody's: the gate waits
                await self._sleep(step.after.total_seconds())
            costs.retried()
            try:
                async with asyncio.timeout((deadline - self._clock()).total_seconds()):
                    reply, step = await self._attempt(path, params, condition, attempt + 1, deadline)
            except TimeoutError:
                raise self._given_up(reply, step, attempt) from None
            attempt += 1
        refusal = self._refusal(reply, conditional=bool(condition))
        if refusal:
            raise refusal
        return reply

    async def _attempt(
        self, path: str, params: Params, condition: dict[str, str], attempt: int, deadline: timedelta
    ) -> tuple[Reply, Step]:
        while True:
            await self._gate.passed(path, deadline=deadline)
            token = await self._credential.token()
            async with self._slots:
                await self._pace.turn()
                if self._gate.shut:
                    continue  # another feed's answer shut it while this one was waiting for its turn
                with self._gate.request(path) as learn:
                    reply = await self._answer(path, params, condition, token, again=attempt - 1)
                    step = step_after(reply.outcome, attempt=attempt, jitter=self._jitter(), now=self._now())
                    learn(reply.outcome, step)
                    return reply, step

    async def _answer(
        self, path: str, params: Params, condition: dict[str, str], token: str | None, *, again: int
    ) -> Reply:
        """One answer; where it is 401, once more with another token, if there is one to be had."""
        reply = await self._asked(path, params, condition, token, again=again)
        if reply.outcome.status != httpx.codes.UNAUTHORIZED:
            return reply
        offered = "the token of " if token else ""
        if token is not None and await self._credential.renew(token):
            reply = await self._asked(path, params, condition, await self._credential.token(), again=again + 1)
            if reply.outcome.status != httpx.codes.UNAUTHORIZED:
                return reply
            offered = "a fresh token of "
        return msgspec.structs.replace(
            reply, text=f"{reply.text}; it does not accept {offered}{self._credential.origin}"
        )

    async def _asked(
        self, path: str, params: Params, condition: dict[str, str], token: str | None, *, again: int
    ) -> Reply:
        with request_of(self._base_url, path, again=again) as span:
            reply = await self._exchange.get(path, params, condition, token)
            tell_reply(span, reply)
            return reply

    def _given_up(self, reply: Reply, step: Step, attempts: int) -> SourceUnavailable:
        asked = f"; {self._gate.asked}" if isinstance(step, Pause) else ""
        return SourceUnavailable(f"{reply.text} ({attempts} attempt{'s' if attempts > 1 else ''}){asked}")

    def _refusal(self, reply: Reply, *, conditional: bool) -> SourceError | None:
        """What is wrong with an answer that stands; None where it is one to read."""
        status = reply.outcome.status
        if reply.too_large:
            return SourceNonsense(reply.text)
        if status == httpx.codes.OK or status is None or (conditional and status == httpx.codes.NOT_MODIFIED):
            return None
        return SourceRefused(reply.text, status=status)
