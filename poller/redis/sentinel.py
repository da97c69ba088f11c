"""A client of the primary that Redis Sentinels name.

**Invariants**

- The Sentinels are asked at each connection, and the server must confirm that it is a primary before any other command.
- Once another server has confirmed that, no connection to the earlier one is used any more.
- If a Sentinel does not answer, or answers wrongly, the next one is asked.
- Everything else is as in :mod:`poller.redis.single`. Replicas are not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast

from redis.asyncio import BlockingConnectionPool, Connection, Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import TimeoutError as Unanswered

from poller.redis.cluster import Address
from poller.redis.single import OurConnection, single_client
from poller.redis.url import StoreAddress

_ANSWER: Final = timedelta(milliseconds=500)
"""For a Sentinel: one that is away may cost no more before the next is asked."""
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
                reasons.append(f"{_where(one)}: {str(error) or type(error).__name__}")
                refused = error if isinstance(error, AuthenticationError) else refused
                self._last(one)
        if refused is not None:
            raise AuthenticationError("; ".join(reasons))
        raise Unreachable(f"no Sentinel names a primary of {self._service!r} ({'; '.join(reasons)})")

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
            raise Unreachable("knows no such service")
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
        made = _Pool(**arguments)
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
        await super()._connect()  # type: ignore[no-untyped-call, safe-super]  # that of the class it is mixed into

    async def on_connect_check_health(self, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 -- as there
        await super().on_connect_check_health(check_health=check_health)
        await self.send_command("ROLE", check_health=check_health)
        role = (await self.read_response())[0]
        if role != b"master":
            self.asked.doubt()
            raise Unreachable(f"{self._host_error()} was named as the primary and is a {role.decode()}")
        to = cast("Connection", self)
        self.asked.verified = Address(to.host, to.port)

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """After a failure the primary is unknown, and connections that are idle may lead to the same silence."""
        try:
            return await super().read_response(*args, **kwargs)
        except (Unreachable, Unanswered):
            self.asked.verified = None
            raise


class _Pool(BlockingConnectionPool):
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
