"""A client of one Redis server that never repeats a command: a fixed server, or the primary that Sentinels name.

**Invariants**

- A command is sent once. redis-py's own Redis() sends it up to ten more times when a reply is lost, and a script that
  appends would append again.
- The number of connections is limited. A command beyond the limit waits for a free connection.
- A connection whose server says that it is not a primary is closed, and the next command opens a new one, possibly to
  another server.
- The Sentinels are asked at each connection, and the server must confirm that it is a primary before any other command.
  If a Sentinel does not answer, or answers wrongly, the next one is asked.
- Once another server has confirmed that, no connection to the earlier one is used any more. Replicas are not used.
- A command whose reply is not awaited any more does not reach the server later, behind other commands: what the server
  has not received of it is discarded.
- While a name's look-up has no answer, another one begins every two seconds at most. It delays no other name, nor the
  end of the process.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar, Final, cast

import hiredis
import msgspec
from redis.asyncio import BlockingConnectionPool, Connection, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import HiredisRespSerializer
from redis.exceptions import AuthenticationError, MasterDownError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import TimeoutError as Unanswered
from redis.maint_notifications import MaintNotificationsConfig
from redis.typing import EncodableT

from poller.http.ssrf import SharedLookup, address_of
from poller.lifecycle import abandon, finished
from poller.redis.cluster import Address
from poller.redis.data_directory import foreign_peer
from poller.redis.errors import described
from poller.redis.url import StoreAddress

CONNECT_TIMEOUT: Final = timedelta(seconds=2)
CONNECTIONS: Final = 64
"""The most connections of one client to one server. A further command waits for a free one, as long as for a reply."""

# Errors of the program's own scripts name the key already.
_WRONG_TYPE: Final = re.compile(r"(?:^|\s-)WRONGTYPE Operation")
_NO_TYPES: Final[Mapping[str, str]] = MappingProxyType({})
_SUBCOMMANDED: Final = frozenset({"MEMORY", "XINFO", "XGROUP", "OBJECT"})
_SCRIPTED: Final = frozenset({"EVAL", "EVALSHA"})
_SEND_BUFFER: Final = 1024 * 1024  # bytes; the system may give less
_NEVER_WAITS: Final = 32 * 1024  # bytes that wait to be sent; the event loop takes twice as many without a pause
_NO_PRIMARY: Final = (ReadOnlyError, MasterDownError)
_WITHIN: Final = re.compile(r"(?:^|\s-)(?:READONLY|UNBLOCKED)\b")  # a script of Redis 6; a read that was waiting


def single_client(
    arguments: Mapping[str, Any],
    *,
    reply_timeout: timedelta,
    connections: int = CONNECTIONS,
    mixin: type[AbstractConnection] | None = None,
    pool: Callable[..., BlockingConnectionPool] | None = None,
    key_types: Mapping[str, str] = _NO_TYPES,
) -> Redis:
    """A client of one server that never repeats a command and returns bytes.

    Connects with its first command, and again with the next one after a failure. Close it with ``aclose()``.

    Args:
        arguments: of its connections, their class included (:func:`poller.redis.url.arguments`).
        reply_timeout: how long to wait for a reply, and for a turn.
        connections: how many it may have.
        mixin: base of its connections before redis-py's: :class:`OurConnection`, or a subclass.
        pool: makes the pool of its connections; None: an :class:`OurPool`.
        key_types: the type of a key by what follows its last colon, for errors about a key of another type.
    """
    settings: dict[str, Any] = {
        "client_name": "poller",
        "driver_info": None,  # two commands for each connection, which a user with few permissions may not send
        "decode_responses": False,
        "health_check_interval": 0,  # its PING would be one more reply to lose
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),  # unasked-for, and they move timeouts
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "socket_connect_timeout": CONNECT_TIMEOUT.total_seconds(),
        "socket_timeout": reply_timeout.total_seconds(),
    }
    taken = {"protocol": 2, **arguments, **settings}
    base = taken.get("connection_class", Connection)
    own = {"lookup": SharedLookup()} if issubclass(base, Connection) else {}  # a unix socket has no name to look up
    ours = type(f"Our{base.__name__}", (mixin or OurConnection, base), own)
    bounds = {"connection_class": ours, "max_connections": connections, "timeout": reply_timeout.total_seconds()}
    client = cast("KeyNamingClient", KeyNamingClient.from_pool((pool or OurPool)(**taken | bounds)))
    client.key_types = key_types
    return client


class KeyNamingClient(Redis):
    """A client whose errors about a key of another type say which key it is."""

    key_types: Mapping[str, str] = _NO_TYPES

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001 -- as in redis-py
        """Close all connections, although the task may be cancelled meanwhile.

        redis-py closes each in a task of its own, and a task that is cancelled before it starts closes nothing.
        """
        closing = asyncio.create_task(super().aclose(close_connection_pool))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await finished(closing, within=CONNECT_TIMEOUT.total_seconds())
            raise

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """As in redis-py; the server itself names neither the key nor its type."""
        try:
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # as above
        except ResponseError as error:
            if not _WRONG_TYPE.search(str(error)):
                raise
            raise ResponseError(f"WRONGTYPE {await self.mistyped(args)}") from error

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:  # noqa: FBT001, FBT002 -- as in redis-py
        """Commands that are sent together; their errors name a key of another type, too."""
        return _KeyNamingPipeline(self, transaction, shard_hint)

    async def mistyped(self, command: Sequence[Any]) -> str:
        """Which of the keys that a command names has another type, in words."""
        named = [key.decode() if isinstance(key, bytes) else str(key) for key in _keys(command)]
        types: list[Any] = [await self.type(key) for key in named]
        kinds = {key: kind.decode() for key, kind in zip(named, types, strict=True)}
        expected = {key: self.key_types.get(key.rpartition(":")[2]) for key in named}
        wrong = {key: kind for key, kind in kinds.items() if kind not in {"none", expected[key]}} or kinds
        found = " and ".join(f"{key} is a {kind}{_unlike(kind, expected[key])}" for key, kind in wrong.items())
        return f"{found}: another program uses this prefix; set another redis.prefix, or rename the key"


class _KeyNamingPipeline(Pipeline):
    """A pipeline whose errors about a key of another type say which key it is."""

    def __init__(self, client: KeyNamingClient, transaction: bool, shard_hint: str | None) -> None:  # noqa: FBT001 -- as there
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002 -- as there
        """As in redis-py; an error about a key of another type names the key and not the command."""
        commands = list(self.command_stack)
        answers: list[Any] = await super().execute(raise_on_error=False)
        for place, answer in enumerate(answers):
            if isinstance(answer, ResponseError) and _WRONG_TYPE.search(str(answer)):
                answers[place] = ResponseError(f"WRONGTYPE {await self._client.mistyped(commands[place][0])}")
                if raise_on_error:
                    raise answers[place] from answer
        if raise_on_error:
            self.raise_first_error(commands, answers)
        return answers


def _keys(command: Sequence[Any]) -> Sequence[Any]:
    """The keys that a command names."""
    name, *rest = command
    upper = [word.upper() if isinstance(word, str) else word for word in command]
    if str(name).upper().startswith("EVAL"):
        return rest[2 : 2 + int(rest[1])]
    for mark in ("STREAMS", b"STREAMS"):
        if mark in upper:
            streams = command[upper.index(mark) + 1 :]
            return streams[: len(streams) // 2]
    return rest[1:2] if " " not in str(name) and str(name).upper() in _SUBCOMMANDED else rest[:1]


def _unlike(kind: str, expected: str | None) -> str:
    return f", not a {expected}" if expected not in {None, kind} else ""


_AHEAD: Final = 40  # arguments of a script that may be of any type; most of the others are bytes
_MANY: Final = 100  # arguments
_KEPT_HEAD: Final = 4096  # bytes of an argument
_BREAK: Final = b"\r\n"


class _Heads(dict[int, bytes]):
    """What stands before an argument of a number of bytes, with the end of the one before it."""

    def __missing__(self, size: int) -> bytes:
        head = b"\r\n$%d\r\n" % size
        if size <= _KEPT_HEAD:
            self[size] = head
        return head


_head_of: Final = _Heads().__getitem__


class PackedArguments(msgspec.Struct, frozen=True, gc=False):
    """Arguments of a script that were packed while the server was busy, so that it does not wait for that.

    Only clients of :func:`single_client` can send them.

    Attributes:
        count: how many.
        content: as they are sent, but for the line break that ends the last one.
    """

    count: int
    content: bytes


def packed_arguments(values: Sequence[bytes]) -> PackedArguments:
    """These arguments, packed.

    Raises:
        TypeError: one of them is no bytes.
    """
    parts: list[bytes] = [b""] * (2 * len(values))
    parts[::2] = map(_head_of, map(len, values))
    parts[1::2] = values
    return PackedArguments(len(values), b"".join(parts))


def _packed(command: Sequence[Any]) -> list[bytes]:
    """A command as it is sent; many arguments in half of the time that hiredis takes.

    Raises:
        TypeError: an argument is neither text nor bytes nor an integer.
    """
    at = next((place for place, one in enumerate(command) if type(one) is PackedArguments), None)
    if at is not None:
        return _around(command[:at], command[at], command[at + 1 :])
    if len(command) > _MANY:
        with suppress(TypeError):
            return _around(command[:_AHEAD], packed_arguments(command[_AHEAD:]), ())
    return [hiredis.pack_command(tuple(command))]


def _around(before: Sequence[Any], packed: PackedArguments, behind: Sequence[Any]) -> list[bytes]:
    """A command with packed arguments between others."""
    count = len(before) + packed.count + len(behind)
    _, _, ahead = hiredis.pack_command(tuple(before)).partition(_BREAK)
    _, _, rest = hiredis.pack_command(tuple(behind)).partition(_BREAK) if behind else (b"", b"", b"")
    return [b"*%d\r\n%b" % (count, ahead.removesuffix(_BREAK)), packed.content, _BREAK + rest]


class OurConnection(AbstractConnection):
    """Mixed into redis-py's asyncio connection classes."""

    lookup: SharedLookup
    _address: str | None = None
    _pack: ClassVar[Callable[..., list[bytes]]] = HiredisRespSerializer().pack

    def pack_command(self, *args: EncodableT) -> list[bytes]:
        """By hiredis, as the blocking client does: packing in Python costs more than all the rest of a commit."""
        if args[0] in _SCRIPTED:  # a commit has hundreds of arguments, and redis-py looks at each first
            with suppress(TypeError):
                return _packed(args)
        return self._pack(*args)

    async def _connect(self) -> None:
        """Connect to the addresses of a name in turn, until one answers; each gets its share of the time."""
        connect = super()._connect  # type: ignore[safe-super]  # that of the class it is mixed into
        host: str | None = getattr(self, "host", None)  # a unix socket has none
        self._address = None
        if host is None or address_of(host):
            await connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
            self._enlarge_buffer()
            return
        limit = self.socket_connect_timeout
        async with asyncio.timeout(limit):
            *others, last = await self.lookup(host)
            share = None if limit is None else limit / (len(others) + 1)
            for self._address in others:
                with suppress(OSError):  # a timeout is one
                    async with asyncio.timeout(share):
                        await connect()  # type: ignore[no-untyped-call]  # as above
                    return
            self._address = last
            await connect()  # type: ignore[no-untyped-call]  # as above

    def _enlarge_buffer(self) -> None:
        """Let the system take a commit as a whole: the rest would wait while the next one is planned.

        The buffer of a unix socket keeps its size, which is that of 250 records; that of a TCP socket grows by itself.
        """
        own = self._writer.get_extra_info("socket") if self._writer is not None else None
        if own is not None and own.family == socket.AF_UNIX:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)

    def _connection_arguments(self) -> Mapping[str, Any]:
        """Those of redis-py with the address; the certificate is that of the name."""
        taken: Mapping[str, Any] = super()._connection_arguments()  # type: ignore[misc]  # as above
        if self._address is None:
            return taken
        name = {"server_hostname": taken["host"]} if taken.get("ssl") else {}
        return {**taken, **name, "host": self._address}

    async def send_packed_command(
        self,
        command: bytes | str | Iterable[bytes],
        check_health: bool = True,  # noqa: FBT001, FBT002 -- as there
    ) -> None:
        """Without ``asyncio.wait_for``, which before Python 3.12 swallows a cancellation now and then.

        Where nothing can be waited for, no timer is started: with thousands of feeds it would be seen.
        """
        limit, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(limit) if self._may_wait(command) else nullcontext():
                await super().send_packed_command(command, check_health=check_health)
        finally:
            self.socket_timeout = limit

    def _may_wait(self, command: bytes | str | Iterable[bytes]) -> bool:
        """Whether sending it may have to wait: for a connection, or until the server reads."""
        if not self.is_connected or self._writer is None or not isinstance(command, list):
            return True
        waiting: int = self._writer.transport.get_write_buffer_size()
        return waiting + sum(map(len, command)) > _NEVER_WAITS

    async def disconnect(self, nowait: bool = False, *args: Any, **options: Any) -> None:  # noqa: FBT001, FBT002 -- as there
        """Close the connection; ``nowait``: a command may have no reply, and must not be carried out later."""
        if nowait and self._writer is not None:
            abandon(self._writer.transport)
        await super().disconnect(nowait, *args, **options)

    async def can_read(self) -> bool:
        """A connection that was reset while it was idle is not fit for use either; redis-py looks for its end alone."""
        reader = self._reader
        return (reader is not None and reader.exception() is not None) or await super().can_read()

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """A connection to a server that is no primary any more is closed once all its replies are read."""
        try:
            return await super().read_response(*args, **kwargs)
        except ResponseError as error:
            if isinstance(error, _NO_PRIMARY) or _WITHIN.search(str(error)):
                self.mark_for_reconnect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
            raise


class OurPool(BlockingConnectionPool):
    """A pool that starts no timer for a connection that is free."""

    _waiting = 0  # commands that wait for one; they come first

    async def get_connection(self, *args: Any, **options: Any) -> AbstractConnection:
        """As in redis-py, which waits for a connection under a timer also where one is free."""
        if self._waiting or not self._available_connections:
            self._waiting += 1
            try:
                waited: AbstractConnection = await super().get_connection(*args, **options)  # type: ignore[no-untyped-call]
                return waited
            finally:
                self._waiting -= 1
        connection: AbstractConnection = self.get_available_connection()  # type: ignore[no-untyped-call]  # as there
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection


class EmbeddedConnection(OurConnection):
    """A connection to the embedded server. To a server of another user nothing is sent."""

    async def on_connect_check_health(self, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 -- as there
        """Check whose server answers before anything is sent: a directory may be replaced while the program runs."""
        peer = self._writer.get_extra_info("socket") if self._writer is not None else None
        try:
            user = None if peer is None else foreign_peer(peer)
        except OSError as error:
            raise Disconnected(f"the connection was closed before the server was known: {error}") from None
        if user is not None:
            raise Disconnected(f"the server on this socket is {user}'s; nothing was sent to it")
        await super().on_connect_check_health(check_health=check_health)


_ANSWER: Final = timedelta(milliseconds=500)
"""How long to wait for one Sentinel before the next is asked."""
_CONNECTIONS: Final = 4


class Sentinels:
    """The Sentinels of one service."""

    def __init__(self, place: StoreAddress) -> None:
        """Take where they are; nothing is connected."""
        self._service = place.service
        self._asked = [
            single_client(
                {**place.watching, "host": one.host, "port": one.port}, reply_timeout=_ANSWER, connections=_CONNECTIONS
            )
            for one in place.hosts
        ]
        self.verified: Address | None = None
        """The server that was named and confirmed as the primary most recently; None after a failure."""

    async def primary(self) -> Address:
        """The primary that the first answering Sentinel names.

        Raises:
            redis.exceptions.AuthenticationError: none answers, and one refuses the credentials.
            redis.exceptions.ConnectionError: none answers; the message says why.
        """
        reasons: list[str] = []
        refused: AuthenticationError | None = None
        for one in list(self._asked):
            try:
                async with asyncio.timeout(_ANSWER.total_seconds()):
                    return await self._answer_of(one)
            except (RedisError, OSError) as error:  # OSError: TimeoutError is one
                reasons.append(f"{_where(one)}: {described(error, _where(one))}")
                refused = error if isinstance(error, AuthenticationError) else refused
                self._last(one)
        if refused is not None:
            raise AuthenticationError("; ".join(reasons))
        raise Disconnected(f"no Sentinel names a primary of {self._service!r} ({'; '.join(reasons)})")

    def doubt(self) -> None:
        """Note that the last answer was wrong: another Sentinel is asked first."""
        self._last(self._asked[0])

    async def aclose(self) -> None:
        """Close all connections to them."""
        await asyncio.gather(*(one.aclose() for one in self._asked))

    async def _answer_of(self, one: Redis) -> Address:
        asking: Any = one.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        named = cast("Sequence[bytes] | None", await asking)
        if named is None:
            raise Disconnected("knows no such service")
        return Address(named[0].decode(), int(named[1]))

    def _last(self, one: Redis) -> None:
        self._asked.remove(one)
        self._asked.append(one)


def _where(one: Redis) -> str:
    place = one.connection_pool.connection_kwargs
    return str(Address(place["host"], place["port"]))


def sentinel_client(place: StoreAddress, *, reply_timeout: timedelta, key_types: Mapping[str, str]) -> Redis:
    """A client of the current primary; see :func:`poller.redis.single.single_client`."""
    sentinels = Sentinels(place)

    class OfSentinels(_OfSentinels):
        asked = sentinels

    def pool(**arguments: Any) -> BlockingConnectionPool:
        made = _PrimaryPool(**arguments)
        made.asked = sentinels
        made.place = f"{place.service} of {','.join(map(str, place.hosts))}"
        return made

    return single_client(
        place.arguments, reply_timeout=reply_timeout, mixin=OfSentinels, pool=pool, key_types=key_types
    )


class _OfSentinels(OurConnection):
    """A connection to the primary that the Sentinels name; goes before a TCP connection class."""

    asked: Sentinels

    async def _connect(self) -> None:
        ours = cast("Connection", self)
        ours.host, ours.port = await self.asked.primary()
        await super()._connect()

    async def on_connect_check_health(self, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 -- as there
        await super().on_connect_check_health(check_health=check_health)
        await self.send_command("ROLE", check_health=check_health)
        role = (await self.read_response())[0]
        if role != b"master":
            self.asked.doubt()
            raise Disconnected(f"{self._host_error()} was named as the primary and is a {role.decode()}")
        to = cast("Connection", self)
        self.asked.verified = Address(to.host, to.port)

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """After a failure the primary is unknown, and idle connections may lead to the same dead server."""
        try:
            return await super().read_response(*args, **kwargs)
        except (Disconnected, Unanswered):
            self.asked.verified = None
            raise


class _PrimaryPool(OurPool):
    """A pool that gives out no connection to a former primary."""

    asked: Sentinels
    place: str = ""

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        to = cast("Connection", connection)
        if connection.is_connected and (to.host, to.port) != self.asked.verified:
            await connection.disconnect(nowait=True)
        await super().ensure_connection(connection)

    async def aclose(self) -> None:
        await super().aclose()
        await self.asked.aclose()
