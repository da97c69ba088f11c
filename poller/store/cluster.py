"""A client of a Redis Cluster: each command goes to the primary that has its slot.

Law: a command is carried out once at most. ``MOVED``, ``ASK`` and ``TRYAGAIN`` say that nothing was carried out, so
they are followed, a few times; whatever else goes wrong is told at once, and whoever sent the command knows whether it
may be sent again.

redis-py's own RedisCluster keeps none of this: it sends again what failed, sends ``ASKING`` by whichever connection is
free, refuses a command that finds no free connection, and closes connections that others wait at.

Refuses to know replicas, but to ask them who is primary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NoReturn, TypeVar

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.commands.core import AsyncScript
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError
from redis.typing import ScriptTextT

from poller.store.cluster_nodes import ClusterNodes
from poller.store.routing import RoutedPipeline, RoutedScript, asked
from poller.store.slots import Address, slot_of

T = TypeVar("T")

_FOLLOWED: Final = 5
"""Redirections of one command, and waits for a slot that is between two servers."""
_FIRST_PAUSE: Final = 0.05  # seconds, while a slot is between two servers; doubles


class ClusterClient(Redis):
    """Connects with its first command. Close it with ``aclose()``."""

    def __init__(
        self,
        seeds: Sequence[Address],
        make: Callable[[Address], Redis],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take what it works with.

        Args:
            seeds: some of the servers.
            make: a client of one of them.
            sleep: waits for so many seconds.
        """
        super().__init__(connection_pool=_Nowhere(seeds))
        self.nodes = ClusterNodes(seeds, make)
        self._sleep = sleep

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command to where its first key is, or to any primary if it has none.

        Raises:
            redis.exceptions.RedisError: as :class:`redis.asyncio.Redis` does, and where redirections do not end.
        """

        async def send(node: Redis, asking: bool) -> Any:  # noqa: FBT001 -- the one thing that is to be known
            return await asked(node, (args, options), asking=asking)

        return await self.routed(slot_of(args), send)

    async def routed(self, slot: int | None, send: Callable[[Redis, bool], Awaitable[T]]) -> T:
        """What ``send`` gives, following redirections.

        Args:
            slot: None for any primary.
            send: to a server by its client; whether ASKING has to go before.
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
                await self._sleep(pause)
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
    """In the place of a pool: what goes by none of the servers' own clients goes nowhere."""

    def __init__(self, seeds: Sequence[Address]) -> None:
        super().__init__()
        self.place = ",".join(map(str, seeds))

    async def get_connection(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("a cluster is spoken to by execute_command and pipeline")


def _pointed(error: AskError, where: Address) -> Address:
    """Where a redirection leads; a server that does not know its own host leaves it out."""
    return Address(error.host or where.host, error.port)
