"""The Lua scripts, the only way in which a feed's keys are written, and the sending of many in one request.

Their text is in ``lua/*.lua``; each file begins with what it does, its KEYS, its ARGV and what it answers. What a
process reads again and again, and the renewals of its leases, would be most of its requests: :class:`ScriptBatch` sends
them together. What many tasks ask of one feed at nearly the same time goes through :class:`CallGathering`.

**Invariants**

- Checks come first, then writes that do not fail: Redis does not roll a script back.
- Scripts move and compare bytes, no more. Events are encoded and snapshots packed before: Lua would damage large
  integers and empty arrays.
- Fencing compares a random nonce, not a counter: a counter kept in the same Redis, replicated asynchronously, may
  repeat after a failover.
- A script is sent again only while the lease that it checks may last: after that another process may have it.
- In a batch each call has its own keys, arguments and answer. A call that fails ends no other one.
- On a cluster each call of a batch is a request of its own, unless all keys have one hash tag.
- A call of a batch may be carried out twice: one that the server refuses is sent again by itself, so that the error
  names its key. So only scripts that may be repeated go there.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from itertools import chain
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
from redis.asyncio import Redis
from redis.commands.core import AsyncScript
from redis.exceptions import RedisError

from poller.errors import StoreError, StoreRefused, StoreUnavailable
from poller.redis.client import scattered
from poller.redis.errors import translated

# Servers from 7.0 on know the shebang. With it, one that is out of memory refuses the script before its first write.
SHEBANG: Final = "#!lua\n"

LONGEST_LEASE_MS: Final = 600_000
"""No configuration allows a longer lease. One that lasts longer was taken before the server's clock was set back."""

_HEAD: Final = re.compile(r"(?:--.*\n)*")
_INCLUDED: Final = re.compile(r"^-- include (\w+)$", re.MULTILINE)


def lua(name: str) -> str:
    """The script ``lua/NAME.lua`` without its head, after the parts that it includes."""
    text = files("poller.store").joinpath("lua", f"{name}.lua").read_text("utf-8")
    head = cast("re.Match[str]", _HEAD.match(text))[0]
    parts = [lua(part) for part in _INCLUDED.findall(head)]
    return "\n".join([*parts, text[len(head) :].replace("LONGEST_LEASE_MS", str(LONGEST_LEASE_MS))])


ORDER: Final = lua("request_order")

DROP: Final = lua("drop_quarantined")

COMMIT: Final = lua("commit")

END_IDLE_ROUND: Final = lua("end_idle_round")


def in_any_case(shebang: str) -> str:
    """The first line of a script that a server runs although it is out of memory.

    For scripts that keep a lease or lead to freeing memory: without them no memory would ever be freed. A commit and
    the beginning of a round do not count among them.

    Args:
        shebang: the first line of the others; empty where the server does not know it.
    """
    return shebang and f"{shebang.rstrip()} flags=allow-oom\n"


_BATCH: Final = lua("batch")


class ScriptCall(msgspec.Struct, frozen=True):
    """A script with its keys, all of one hash tag, and its arguments."""

    source: str
    keys: tuple[str, ...]
    arguments: tuple[str | int | bytes, ...] = ()


ScriptSender = Callable[[ScriptCall], Awaitable[Any]]
"""Sends a call and returns its answer, or raises StoreError."""


class ScriptQuestion(msgspec.Struct, frozen=True):
    """A call that waits for a batch to be sent with, and the future of its answer."""

    call: ScriptCall
    answer: asyncio.Future[Any]

    def settle(self, answer: Any) -> None:
        """Pass on the answer, or the StoreError in its place, if it is still awaited."""
        if self.answer.done():
            return
        if isinstance(answer, StoreError):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


class ScriptQuestions:
    """Calls that wait for the next request of another, to be sent with it. Used within one event loop."""

    def __init__(self) -> None:
        """Begin without any."""
        self._waiting: list[ScriptQuestion] = []

    async def ask(self, call: ScriptCall) -> Any:
        """The answer to a call, once the request that it was sent with is answered.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        question = ScriptQuestion(call, asyncio.get_running_loop().create_future())
        self._waiting.append(question)
        return await question.answer

    def taken(self) -> list[ScriptQuestion]:
        """Those that wait and are still awaited, for the request that is sent now; none waits any more."""
        waiting, self._waiting = self._waiting, []
        return [question for question in waiting if not question.answer.done()]


class ScriptBatch:
    """Sends calls of scripts to one store; each script is loaded there once."""

    def __init__(self, client: Redis, *, shebang: str = "") -> None:
        """Take the client, without retries of its own, and the first line of scripts where the server knows it."""
        self._client = client
        self._first = in_any_case(shebang)
        self._alone: dict[str, AsyncScript] = {}
        self._together: dict[tuple[str, ...], AsyncScript] = {}

    @property
    def is_scattered(self) -> bool:
        """Whether its calls may go to different servers."""
        return scattered(self._client)

    async def run(self, call: ScriptCall) -> Any:
        """The answer to one call.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        script = self._alone.get(call.source)
        if script is None:
            script = self._alone[call.source] = self._client.register_script(self._first + call.source)
        with translated(self._client):
            return await script(call.keys, call.arguments)

    async def send(self, calls: Sequence[ScriptCall], *, one_tag: bool = False) -> list[Any]:
        """The answer to each call, or the StoreError in its place; raises none.

        ``one_tag``: all keys have one hash tag, so that they are on one server.
        """
        if len(calls) == 1 or (not one_tag and scattered(self._client)):
            return await asyncio.gather(*map(self._settled, calls))
        sources = tuple(sorted({call.source for call in calls}))
        script = self._together.get(sources)
        if script is None:
            script = self._together[sources] = self._client.register_script(self._first + _batch_of(sources))
        keys = list(chain.from_iterable(call.keys for call in calls))
        sizes = ((sources.index(call.source) + 1, len(call.keys), len(call.arguments)) for call in calls)
        arguments = (len(calls), *chain.from_iterable(sizes), *chain.from_iterable(call.arguments for call in calls))
        try:
            with translated(self._client):
                answers = await script(keys, arguments)
        except StoreRefused:  # on account of one of them, maybe
            return [await self._settled(call) for call in calls]
        except StoreError as error:
            return [error] * len(calls)
        return [
            await self._settled(call) if isinstance(answer, RedisError) else answer
            for call, answer in zip(calls, answers, strict=True)
        ]

    async def _settled(self, call: ScriptCall) -> Any:
        try:
            return await self.run(call)
        except StoreError as error:
            return error


def _batch_of(sources: Sequence[str]) -> str:
    functions = "".join(f"function(KEYS, ARGV)\n{source}\nend,\n" for source in sources)
    return f"local scripts = {{\n{functions}}}\n{_BATCH}"


C = TypeVar("C")

MOST_FIRST: Final = 16
"""Requests that may go before calls that follow them, see :class:`CallGathering`."""

LATER: Final = object()
"""In place of an answer: the call was not carried out, and goes first with the next request."""


class CallGathering(Generic[C]):
    """Calls of many tasks, sent together: a request takes what has come while the one before was under way.

    A call that comes alone waits for nothing. The more come at a time, the fewer requests they cost. One gathering may
    let the calls of another go first: where those take several requests, its own are sent after them.

    **Invariants**

    - One request is under way at a time, and calls are carried out in the order in which they came.
    - A call that is not awaited any more is not sent. A request of which no call is awaited any more is given up, as a
      command is whose caller was cancelled; the next one is sent after that.
    - Nothing is remembered but the calls that wait for an answer.
    - Of the calls that go first, :data:`MOST_FIRST` requests are sent before some that follow them, and no more.
    """

    def __init__(
        self,
        send: Callable[[Sequence[C]], Awaitable[Sequence[Any]]],
        *,
        weight: Callable[[C], int],
        most: int,
        following: CallGathering[Any] | None = None,
    ) -> None:
        """Take what is to be done with calls.

        Args:
            send: carries out some calls. Returns the answer to each, or an exception to be raised instead, or
                :data:`LATER`, but not to the first.
            weight: of a call.
            most: the greatest weight of all calls of a request; a heavier call goes alone.
            following: what these calls follow: while some of its calls wait for a request, none of these is sent.
        """
        self._send = send
        self._weight = weight
        self._most = most
        self._waiting: deque[tuple[C, asyncio.Future[Any]]] = deque()
        self._sent: Sequence[tuple[C, asyncio.Future[Any]]] = ()
        self._sending: asyncio.Task[Sequence[Any]] | None = None
        self._following = following
        self._passed = 0  # requests that have gone first since the last one here
        self._followers: list[CallGathering[Any]] = []
        if following is not None:
            following.go_before(self)

    async def ask(self, call: C) -> Any:
        """The answer to a call.

        Raises:
            Exception: what was returned in place of the answer, or raised by ``send``.
        """
        answer = self.add(call)
        try:
            return await answer
        except asyncio.CancelledError:
            self.give_up(answer)
            raise

    def add(self, call: C) -> asyncio.Future[Any]:
        """The future of what :meth:`ask` returns or raises, for a caller that does not wait."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        self._start()
        return answer

    def give_up(self, answer: asyncio.Future[Any]) -> None:
        """Await the answer to a call no more."""
        answer.cancel()
        if self._sending is not None and all(one.done() for _, one in self._sent):
            self._sending.cancel()

    @property
    def is_waiting(self) -> bool:
        """Whether calls wait for a request."""
        return bool(self._waiting)

    def go_before(self, follower: CallGathering[Any]) -> None:
        """Tell this one of each request that has ended; its own follow."""
        self._followers.append(follower)

    def follow(self) -> None:
        """Send what waits, if its turn has come: a request that goes first has ended."""
        self._passed += 1
        self._start()

    def _start(self) -> None:
        """Send what waits, if its turn has come.

        The task begins a turn of the loop later, and takes what has come until then.
        """
        if not self._waiting or self._sending is not None:
            return
        if self._following is not None and self._following.is_waiting and self._passed < MOST_FIRST:
            return
        self._passed = 0
        self._sending = asyncio.create_task(self._request(), name="gathered calls")
        self._sending.add_done_callback(self._ended)

    async def _request(self) -> Sequence[Any]:
        sent: list[tuple[C, asyncio.Future[Any]]] = []
        weight = 0
        while self._waiting:
            call, answer = self._waiting[0]
            if not answer.done():
                weight += self._weight(call)
                if sent and weight > self._most:
                    break
                sent.append((call, answer))
            self._waiting.popleft()
        self._sent = sent
        return await self._send([call for call, _ in sent]) if sent else ()

    def _ended(self, sending: asyncio.Task[Sequence[Any]]) -> None:
        sent, self._sent, self._sending = self._sent, (), None
        if sending.cancelled():
            answers: Sequence[Any] = [StoreUnavailable("the request was given up")] * len(sent)
        else:
            error = sending.exception()
            answers = sending.result() if error is None else [error] * len(sent)
        for (call, answer), found in reversed(list(zip(sent, answers, strict=True))):
            if answer.done():
                continue
            if found is LATER:
                self._waiting.appendleft((call, answer))
            elif isinstance(found, BaseException):
                answer.set_exception(found)
            else:
                answer.set_result(found)
        self._start()
        for follower in self._followers:
            follower.follow()
