"""The servers of a cluster: a client of each, and who has which slots.

Law: who has which slots is asked at first, and again once somebody doubts it: by one at a time, ten times a second at
most, of one server after the other until one answers. What was known before holds as long as nobody answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, ClusterDownError, RedisError, ResponseError
from redis.exceptions import ConnectionError as Unreachable

from poller.store.slots import Address, Slots, slots_of

_ANSWER: Final = 1.0  # seconds for one server to say who has which slots
_BETWEEN_LOOKS: Final = 0.1  # seconds


class ClusterNodes:
    """What a client of a cluster knows of it."""

    def __init__(
        self,
        seeds: Sequence[Address],
        make: Callable[[Address], Redis],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take some of the servers, what makes a client of one, and seconds that only go forward."""
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
            redis.exceptions.ClusterDownError: nobody has it.
            redis.exceptions.RedisError: nobody says who has which slots.
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
            redis.exceptions.RedisError: nobody says who they are.
        """
        self._doubted = True
        return [self[one] for one in (await self._known()).primaries]

    def moved(self, to: Address) -> None:
        """A server has said that another one has a slot: that one is asked first."""
        self._doubted, self._knowing = True, to

    def failed(self, address: Address) -> None:
        """A server does not do what it should: the others may know why."""
        self._doubted, self._failed = True, address

    async def aclose(self) -> None:
        """Close all connections."""
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(one.aclose() for one in clients))

    async def _known(self) -> Slots:
        if self._slots is None or self._look_again():
            async with self._looking:
                if self._look_again():
                    await self._look()
                if self._slots is None:
                    raise (self._failure or Unreachable("nobody was asked")).with_traceback(None)
        return self._slots

    def _look_again(self) -> bool:
        rested = self._clock() - self._looked_at >= _BETWEEN_LOOKS
        return rested and (self._doubted or self._slots is None)

    async def _look(self) -> None:
        """Ask until one answers; what is doubted meanwhile is looked at again."""
        self._doubted = False
        try:
            self._slots = await self._told()
        except RedisError as error:
            self._doubted, self._failure = True, error
        except BaseException:  # cancelled: whoever is next looks at once
            self._doubted = True
            raise
        else:
            self._knowing = None
        self._looked_at = self._clock()
        await self._drop_others()

    async def _told(self) -> Slots:
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
                reasons.append(f"{one}: {str(error) or type(error).__name__}")
        raise refused or Unreachable(f"nobody says who has which slots ({'; '.join(reasons)})")

    def _in_turn(self) -> Iterator[Address]:
        """Whoever was said to know, then all others, whoever failed last."""
        known = [] if self._slots is None else self._slots.known
        knowing = [] if self._knowing is None else [self._knowing]
        order = dict.fromkeys([*knowing, *known, *self._seeds])
        yield from sorted(order, key=lambda one: one == self._failed)

    async def _drop_others(self) -> None:
        """Close the clients of servers that are not of the cluster any more, unless they are in use."""
        known = self._clients if self._slots is None else self._slots.known
        for address in self._clients.keys() - {*known, *self._seeds}:
            if not _in_use(self._clients[address]):
                with suppress(Exception):  # it is gone, whatever it says
                    await self._clients.pop(address).aclose()


def _in_use(client: Redis) -> bool:
    _, (used, _) = client.connection_pool.get_connection_count()
    return bool(used)
