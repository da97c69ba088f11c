"""A client of a Redis Cluster that sends each command to its slot's primary.

**Invariants**

- A command is carried out at most once. Only redirections, which mean that nothing was carried out, are followed.
- The assignment of slots is requested first, and again after a redirection or a failure: by one task at a time, at most
  ten times a second, from one server after the other until one answers. Without an answer the last one stays valid.
- Replicas are only asked for the assignment of slots.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.commands.core import AsyncScript
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as Unreachable
from redis.typing import EncodableT, KeyT, ScriptTextT

from poller.clock import Clock
from poller.redis.errors import described

_ANSWER: Final = 1.0  # seconds for one server to report the assignment of slots
_BETWEEN_LOOKS: Final = 0.1  # seconds


class ClusterNodes:
    """The servers of a cluster: a client of each, and the assignment of slots."""

    def __init__(
        self,
        seeds: Sequence[Address],
        make: Callable[[Address], Redis],
        *,
        clock: Clock,
    ) -> None:
        """Take some of the servers, what makes a client of one, and the clock of this process."""
        self._seeds = tuple(seeds)
        self._make = make
        self._clock = clock
        self._clients: dict[Address, Redis] = {}
        self._slots: Slots | None = None
        self._doubted = False
        self._knowing: Address | None = None
        self._failed: Address | None = None
        self._failure: RedisError | None = None
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()

    def __getitem__(self, address: Address) -> Redis:
        """The client of a server."""
        if address not in self._clients:
            self._clients[address] = self._make(address)
        return self._clients[address]

    async def primary_of(self, slot: int | None) -> Address:
        """The primary that has a slot; any, for None.

        Raises:
            redis.exceptions.ClusterDownError: no server has it.
            redis.exceptions.RedisError: no server reports the assignment of slots.
        """
        slots = await self._known()
        if slot is None:
            return next((one for one in slots.primaries if one != self._failed), slots.primaries[0])
        primary = slots.primary_of(slot)
        if primary is None:
            self._doubted = True
            raise ClusterDownError(f"no server has slot {slot}")
        return primary

    async def primaries(self) -> list[Redis]:
        """A client of each primary.

        Raises:
            redis.exceptions.RedisError: no server reports the primaries.
        """
        self._doubted = True
        return [self[one] for one in (await self._known()).primaries]

    def moved(self, to: Address) -> None:
        """Note a redirection: the server that it names is asked first."""
        self._doubted, self._knowing = True, to

    def failed(self, address: Address) -> None:
        """Note that a server has failed: the others are asked first."""
        self._doubted, self._failed = True, address

    async def aclose(self) -> None:
        """Close all connections."""
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(one.aclose() for one in clients))

    async def _known(self) -> Slots:
        if self._slots is None or self._is_refresh_due():
            async with self._looking:
                if self._is_refresh_due():
                    await self._refresh()
                if self._slots is None:
                    raise (self._failure or Unreachable("no server was asked")).with_traceback(None)
        return self._slots

    def _is_refresh_due(self) -> bool:
        rested = self._clock.monotonic() - self._looked_at >= _BETWEEN_LOOKS
        return rested and (self._doubted or self._slots is None)

    async def _refresh(self) -> None:
        """Ask until one server answers; doubts that arise meanwhile lead to another look."""
        self._doubted = False
        try:
            self._slots = await self._read_slots()
        except RedisError as error:
            self._doubted, self._failure = True, error
        except BaseException:  # cancelled: the next caller looks without a pause
            self._doubted = True
            raise
        else:
            self._knowing = None
        self._looked_at = self._clock.monotonic()
        await self._drop_others()

    async def _read_slots(self) -> Slots:
        reasons: list[str] = []
        refused: RedisError | None = None
        for one in self._in_turn():
            try:
                async with asyncio.timeout(_ANSWER):
                    answer: Any = await self[one].execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
                slots = slots_of(answer, one)
                if slots.primaries:
                    return slots
                reasons.append(f"{one}: has no slots")
            except (ResponseError, AuthenticationError) as error:
                refused = error
            except (RedisError, OSError, ValueError) as error:  # OSError: TimeoutError is one
                reasons.append(f"{one}: {described(error, str(one))}")
        raise refused or Unreachable(f"no server says which server has which slots ({'; '.join(reasons)})")

    def _in_turn(self) -> Iterator[Address]:
        """The server named by a redirection, then all others; the one that failed comes last."""
        known = [] if self._slots is None else self._slots.known
        knowing = [] if self._knowing is None else [self._knowing]
        order = dict.fromkeys([*knowing, *known, *self._seeds])
        yield from sorted(order, key=lambda one: one == self._failed)

    async def _drop_others(self) -> None:
        """Close the clients of servers that are not of the cluster any more, unless they are in use."""
        known = self._clients if self._slots is None else self._slots.known
        for address in [one for one in self._clients if one not in known and one not in self._seeds]:
            if not _in_use(self._clients[address]):
                with suppress(Exception):  # it is gone, whatever it says
                    await self._clients.pop(address).aclose()


def _in_use(client: Redis) -> bool:
    _, (used, _) = client.connection_pool.get_connection_count()
    return bool(used)


# The slot of a command. The first key decides; the server checks that all other keys lie in the same slot. A command
# without keys may go to any primary. Pure.

_KEYLESS: Final = frozenset(
    ["ACL", "AUTH", "BGREWRITEAOF", "BGSAVE", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "DEBUG", "ECHO",
     "FLUSHALL", "FLUSHDB", "FUNCTION", "HELLO", "INFO", "KEYS", "LASTSAVE", "LATENCY", "MODULE", "PING", "ROLE",
     "SAVE", "SCAN", "SCRIPT", "SLOWLOG", "TIME", "WAIT", "WAITAOF"]
)  # fmt: skip
_NUMBERED: Final = frozenset({"EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"})
_STREAMS: Final = {"XREAD": 1, "XREADGROUP": 4}
"""Where the options begin, of which STREAMS is the last: before that a group may have any name."""
_COUNT: Final = 2  # where those of _NUMBERED say how many keys follow


class Address(NamedTuple):
    """The address of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Shard(NamedTuple):
    """Slots from ``first`` to ``last``, their primary, and all who have them, the primary included."""

    first: int
    last: int
    primary: Address
    known: tuple[Address, ...]


class Slots:
    """The assignment of slots to servers, as reported by one server."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        """Take them in any order."""
        self._shards = sorted(shards, key=itemgetter(0))
        self._firsts = [shard.first for shard in self._shards]

    def primary_of(self, slot: int) -> Address | None:
        """The primary of a slot; None where no server has it."""
        place = bisect_right(self._firsts, slot) - 1
        if place < 0 or self._shards[place].last < slot:
            return None
        return self._shards[place].primary

    @property
    def primaries(self) -> list[Address]:
        """All of them, each once."""
        return list(dict.fromkeys(shard.primary for shard in self._shards))

    @property
    def known(self) -> list[Address]:
        """Primaries and replicas, each once, the primaries first."""
        return list(dict.fromkeys([*self.primaries, *(one for shard in self._shards for one in shard.known)]))


def slots_of(answer: Sequence[Any], told_by: Address) -> Slots:
    """The answer to CLUSTER SLOTS.

    Args:
        answer: as it comes over the wire.
        told_by: who answered; a server that does not know its own host leaves it out.

    Raises:
        ValueError: the answer has another form.
    """
    try:
        return Slots(
            Shard(int(first), int(last), *_addressed(nodes, told_by)) for first, last, *nodes in answer if nodes
        )
    except (TypeError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"no answer to CLUSTER SLOTS: {error}") from None


def _addressed(nodes: Sequence[Any], told_by: Address) -> tuple[Address, tuple[Address, ...]]:
    known = tuple(Address((node[0] or b"").decode() or told_by.host, int(node[1])) for node in nodes)
    return known[0], known


def slot_of(command: Sequence[Any]) -> int | None:
    """The slot of a command, as redis-py gives it: its name, maybe with a second word, then the arguments.

    None: it has no key.
    """
    name, key = _word(command[0]), _key(command)
    return None if key is None or name.partition(" ")[0] in _KEYLESS else int(key_slot(_bytes(key)))


def _key(command: Sequence[Any]) -> Any:
    name = _word(command[0])
    if name in _NUMBERED:
        return command[_COUNT + 1] if int(command[_COUNT]) else None
    if name in _STREAMS:
        options = command[_STREAMS[name] :]
        return next((key for word, key in pairwise(options) if _word(word) == "STREAMS"), None)
    place = 2 if name == "OBJECT" else 1
    return command[place] if len(command) > place else None


def _word(part: Any) -> str:
    """In capitals; what is no word of a command is none."""
    if isinstance(part, bytes):
        part = part.decode("ascii", "replace")
    return part.upper() if isinstance(part, str) else ""


def _bytes(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()


# Sending: ``ASKING`` and its command go through one connection in one write. A script or a transaction touches one
# slot. A pipeline may touch many slots and is sent to their primaries in parallel; its commands keep their order as
# long as their slot does not move.

Command = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments, and redis-py's options."""


class RoutedScript(AsyncScript):
    """A script that is run by its digest, and by its text if the server does not know it yet."""

    async def __call__(
        self,
        keys: Sequence[KeyT] | None = None,
        args: Iterable[EncodableT] | None = None,
        client: Redis | None = None,  # type: ignore[override]  # never another's
    ) -> Any:
        """Run the script; returns its answer."""
        one = cast("ClusterClient", client or self.registered_client)
        given = (len(keys or ()), *(keys or ()), *(args or ()))
        try:
            return await one.execute_command("EVALSHA", self.sha, *given)
        except NoScriptError:
            return await one.execute_command("EVAL", self.script, *given)


class RoutedPipeline(Pipeline):
    """A pipeline that sends each command to the primary of its slot."""

    def __init__(self, client: ClusterClient, transaction: bool, shard_hint: str | None) -> None:  # noqa: FBT001 -- as there
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002 -- as there
        """The answers, in order.

        Raises:
            redis.exceptions.RedisError: no server says which one has a slot; or, with ``raise_on_error``, one did not
                answer, or answered an error. Else the error is in the place of each answer that is missing.
        """
        commands: Sequence[Command] = self.command_stack
        self.command_stack = []
        if not commands:
            return []
        sent = self._together(commands) if self.is_transaction else self._spread(commands, all_or_none=raise_on_error)
        answers = await sent
        if raise_on_error:
            self.raise_first_error(list(commands), answers)
        return answers

    async def _together(self, commands: Sequence[Command]) -> list[Any]:
        async def send(node: Redis, asking: bool) -> list[Any]:  # noqa: FBT001 -- as everywhere here
            if asking:
                raise TryAgainError("a transaction waits until its slot has moved")
            return await _piped(node, commands, transaction=True)

        slots = (slot_of(arguments) for arguments, _ in commands)
        return await self._client.routed(next((one for one in slots if one is not None), None), send)

    async def _spread(self, commands: Sequence[Command], *, all_or_none: bool) -> list[Any]:
        nodes = self._client.nodes
        shares: dict[Address, list[int]] = {}
        for place, (arguments, _) in enumerate(commands):
            shares.setdefault(await nodes.primary_of(slot_of(arguments)), []).append(place)
        told = await asyncio.gather(
            *(self._share(where, [commands[place] for place in places]) for where, places in shares.items()),
            return_exceptions=True,  # else those that are still under way would be left behind
        )
        answers: list[Any] = [None] * len(commands)
        for places, share in zip(shares.values(), told, strict=True):
            if isinstance(share, BaseException) and (all_or_none or not isinstance(share, Exception)):
                raise share
            answered = [share] * len(places) if isinstance(share, BaseException) else share
            for place, answer in zip(places, answered, strict=True):
                redirected = isinstance(answer, (AskError, TryAgainError))
                answers[place] = await self._again(commands[place]) if redirected else answer
        return answers

    async def _share(self, where: Address, commands: Sequence[Command]) -> list[Any]:
        try:
            return await _piped(self._client.nodes[where], commands, transaction=False)
        except Exception:
            self._client.nodes.failed(where)
            raise

    async def _again(self, command: Command) -> Any:
        """Send a command again that was not carried out because its slot has moved or is moving."""
        arguments, options = command
        try:
            return await self._client.execute_command(*arguments, **options)
        except ResponseError as error:
            return error


async def send_to_node(node: Redis, command: Command, *, asking: bool) -> Any:
    """The answer of one server; ``asking``: for a slot that is on its way there."""
    if not asking:
        return await node.execute_command(*command[0], **command[1])  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    _, answer = await _piped(node, [(("ASKING",), {}), command], transaction=False)
    if isinstance(answer, Exception):
        raise answer
    return answer


async def _piped(node: Redis, commands: Sequence[Command], *, transaction: bool) -> list[Any]:
    pipeline = node.pipeline(transaction=transaction)
    for arguments, options in commands:
        pipeline.execute_command(*arguments, **options)
    return await pipeline.execute(raise_on_error=False)


# The client. ``MOVED``, ``ASK`` and ``TRYAGAIN`` mean that nothing was carried out, so they are followed, a few times;
# any other error is raised without a retry.
#
# Not redis-py's own RedisCluster: it sends failed commands again, sends ``ASKING`` through any free connection, refuses
# a command that finds no free connection, and closes connections that other tasks wait for.

T = TypeVar("T")

_FOLLOWED: Final = 5
"""Redirections of one command, and waits for a slot that is between two servers."""
_FIRST_PAUSE: Final = 0.05  # seconds, while a slot is between two servers; doubles


class ClusterClient(Redis):
    """A client of a Redis Cluster that sends each command to the primary of its slot.

    Connects with its first command. Close it with ``aclose()``. A command is carried out at most once.
    """

    def __init__(
        self,
        seeds: Sequence[Address],
        make: Callable[[Address], Redis],
        *,
        clock: Clock,
    ) -> None:
        """Take what it works with.

        Args:
            seeds: some of the servers.
            make: makes a client of one of them.
            clock: of this process.
        """
        super().__init__(connection_pool=_Nowhere(seeds))
        self.nodes = ClusterNodes(seeds, make, clock=clock)
        self._clock = clock

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to where its first key is, or to any primary if it has none.

        Raises:
            redis.exceptions.RedisError: as :class:`redis.asyncio.Redis` does, and where redirections do not end.
        """

        async def send(node: Redis, asking: bool) -> Any:  # noqa: FBT001 -- the one thing that is to be known
            return await send_to_node(node, (args, options), asking=asking)

        return await self.routed(slot_of(args), send)

    async def routed(self, slot: int | None, send: Callable[[Redis, bool], Awaitable[T]]) -> T:
        """The result of ``send``, after following redirections.

        Args:
            slot: None for any primary.
            send: sends it by a server's client; the flag says whether ASKING must come first.
        """
        where, asking, pause = await self.nodes.primary_of(slot), False, _FIRST_PAUSE
        for left in reversed(range(_FOLLOWED)):
            try:
                return await send(self.nodes[where], asking)
            except AskError as told:
                where, asking = _pointed(told, where), not isinstance(told, MovedError)
                if not asking:
                    self.nodes.moved(where)
                if not left:
                    raise
            except TryAgainError:
                if not left:
                    raise
                await self._clock.sleep(pause)
                where, asking, pause = await self.nodes.primary_of(slot), False, pause * 2
            except ClusterDownError:
                self.nodes.failed(where)
                raise
            except ResponseError:
                raise
            except Exception:
                self.nodes.failed(where)
                raise
        raise AssertionError  # the last turn has raised or returned

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:  # noqa: FBT001, FBT002 -- as there
        """Commands that are sent together; a transaction's keys lie in one slot."""
        return RoutedPipeline(self, transaction, shard_hint)

    def register_script(self, script: ScriptTextT) -> AsyncScript:  # type: ignore[override]  # as in redis-py's own
        """A script that is loaded where it is run."""
        return RoutedScript(self, script)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001 -- as there
        """Close all connections."""
        await self.nodes.aclose()
        await super().aclose(close_connection_pool)


class _Nowhere(ConnectionPool):
    """A pool without connections: commands go through the clients of the servers."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        super().__init__()
        self.place = ",".join(map(str, seeds))

    async def get_connection(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("a cluster is spoken to by execute_command and pipeline")


def _pointed(error: AskError, where: Address) -> Address:
    """The address in a redirection; a server that does not know its own host leaves the host out."""
    return Address(error.host or where.host, error.port)
