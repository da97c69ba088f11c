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
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec
from redis.asyncio import Redis
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import NoScriptError, RedisError

from poller.errors import StoreError, StoreRefused, StoreUnavailable
from poller.redis.client import scattered
from poller.redis.errors import translated
from poller.redis.single import KeyNamingClient

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


def in_any_case(shebang: str) -> str:
    """The first line of a script that a server runs although it is out of memory.

    For scripts that keep a lease or lead to freeing memory: without them no memory would ever be freed. A commit and
    the beginning of a round do not count among them.

    Args:
        shebang: the first line of the others; empty where the server does not know it.
    """
    return shebang and f"{shebang.rstrip()} flags=allow-oom\n"


_BATCH: Final = lua("batch")
_IN_LINE: Final = 32
"""Calls in one request; more would keep the store busy for others."""

_SHORT: Final = 128  # arguments of a call; one with more has a request of its own, which keeps no other waiting


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


class ScriptLine:
    """Sends calls of scripts to one store; those that come at the same time go in one request.

    Each is a command of its own, which is carried out once at most. If one of the answers is not awaited any more, the
    request ends for all: else it might reach the store later, after all that was sent since. For the others it is as if
    the connection was lost. Used within one event loop.
    """

    def __init__(self, client: Redis) -> None:
        """Take the client, without retries of its own."""
        self._client = client
        self._open: list[_LineCall] = []
        self._sending: set[asyncio.Task[None]] = set()

    def script(self, source: str) -> LineScript:
        """A script whose calls are sent so."""
        return LineScript(self, self._client.register_script(source))

    def ask(self, script: AsyncScript, keys: Sequence[str], arguments: Sequence[str | int | bytes]) -> Awaitable[Any]:
        """The answer of a script; the call is sent although nothing awaits it yet. Its errors are those of redis-py."""
        if not isinstance(self._client, KeyNamingClient) or len(arguments) > _SHORT:
            return asyncio.ensure_future(script(keys, arguments))
        call = _LineCall(script, keys, arguments, asyncio.get_running_loop().create_future())
        if not self._open or len(self._open) == _IN_LINE:
            self._open = []  # sent when all tasks that are ready now have run, and have added theirs
            task = asyncio.create_task(self._send(self._client, self._open), name="scripts")
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        self._open.append(call)
        return call.answer

    async def _send(self, client: KeyNamingClient, calls: list[_LineCall]) -> None:
        if self._open is calls:
            self._open = []
        failure: Exception = Disconnected("the request was given up, for one of its answers was not awaited any more")
        try:
            await self._settle(client, [call for call in calls if not call.answer.done()])
        except Exception as error:  # noqa: BLE001 -- each caller gets it, and translates it
            failure = error
        finally:
            for call in calls:
                call.settle(failure)

    async def _settle(self, client: KeyNamingClient, calls: Sequence[_LineCall]) -> None:
        sending = cast("asyncio.Task[None]", asyncio.current_task())

        def end_if_cancelled(answer: asyncio.Future[Any]) -> None:
            if answer.cancelled():
                sending.cancel()

        for call in calls:
            call.answer.add_done_callback(end_if_cancelled)
        answers = await client.send_together([call.command for call in calls]) if calls else []
        forgotten: list[_LineCall] = []
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, NoScriptError):
                forgotten.append(call)
            else:
                call.settle(answer)
        for call in forgotten:  # by the server: it has not been carried out, and is loaded now
            try:
                call.settle(await call.script(call.keys, call.arguments))
            except RedisError as error:
                call.settle(error)


class LineScript:
    """A script whose calls are sent by a :class:`ScriptLine`."""

    def __init__(self, line: ScriptLine, script: AsyncScript) -> None:
        self._line = line
        self._script = script

    def __call__(self, keys: Sequence[str], arguments: Sequence[str | int | bytes] = ()) -> Awaitable[Any]:
        """The answer, see :meth:`ScriptLine.ask`."""
        return self._line.ask(self._script, keys, arguments)


class _LineCall(NamedTuple):
    """A call that waits for its answer."""

    script: AsyncScript
    keys: Sequence[str]
    arguments: Sequence[str | int | bytes]
    answer: asyncio.Future[Any]

    @property
    def command(self) -> tuple[str | int | bytes, ...]:
        """The words of its command."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.arguments)

    def settle(self, answer: Any) -> None:
        """Pass on the answer, or the error in its place, if it is still awaited."""
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


def _batch_of(sources: Sequence[str]) -> str:
    functions = "".join(f"function(KEYS, ARGV)\n{source}\nend,\n" for source in sources)
    return f"local scripts = {{\n{functions}}}\n{_BATCH}"


C = TypeVar("C")

LATER: Final = object()
"""In place of an answer: the call was not carried out, and goes first with the next request."""


class CallGathering(Generic[C]):
    """Calls of many tasks, sent together: a request takes what has come while the one before was under way.

    A call that comes alone waits for nothing. The more come at a time, the fewer requests they cost.

    **Invariants**

    - One request is under way at a time, and calls are carried out in the order in which they came.
    - A call that is not awaited any more is not sent. A request of which no call is awaited any more is given up, as a
      command is whose caller was cancelled; the next one is sent after that.
    - Nothing is remembered but the calls that wait for an answer.
    """

    def __init__(
        self, send: Callable[[Sequence[C]], Awaitable[Sequence[Any]]], *, weight: Callable[[C], int], most: int
    ) -> None:
        """Take what is to be done with calls.

        Args:
            send: carries out some calls. Returns the answer to each, or an exception to be raised instead, or
                :data:`LATER`, but not to the first.
            weight: of a call.
            most: the greatest weight of all calls of a request; a heavier call goes alone.
        """
        self._send = send
        self._weight = weight
        self._most = most
        self._waiting: deque[tuple[C, asyncio.Future[Any]]] = deque()
        self._sent: Sequence[tuple[C, asyncio.Future[Any]]] = ()
        self._sending: asyncio.Task[Sequence[Any]] | None = None

    async def ask(self, call: C) -> Any:
        """The answer to a call.

        Raises:
            Exception: what was returned in place of the answer, or raised by ``send``.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, answer))
        if self._sending is None:
            self._start()
        try:
            return await answer
        except asyncio.CancelledError:
            if self._sending is not None and all(one.done() for _, one in self._sent):
                self._sending.cancel()
            raise

    def _start(self) -> None:
        """Send what waits. The task begins a turn of the loop later, and takes what has come until then."""
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
        if self._waiting:
            self._start()
