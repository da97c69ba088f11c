"""Who has which slots is asked seldom, of whoever may know, by one at a time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import ClusterDownError
from redis.exceptions import ConnectionError as Unreachable

from poller.store.cluster_nodes import ClusterNodes
from poller.store.slots import Address
from tests.harness.waiting import turns

A, B, C = (Address("127.0.0.1", port) for port in (1, 2, 3))


@dataclass
class Told:
    """Servers that tell what they are told to, and write down who was asked and who was closed."""

    answers: dict[Address, object]
    asked: list[Address] = field(default_factory=list)
    closed: list[Address] = field(default_factory=list)
    used: set[Address] = field(default_factory=set)

    def client(self, address: Address) -> Redis:
        async def execute_command(*_: str) -> object:
            self.asked.append(address)
            await turns()
            answer = self.answers[address]
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def aclose() -> None:
            self.closed.append(address)

        def counts() -> list[tuple[int, object]]:
            return [(1, {}), (int(address in self.used), {})]

        pool = SimpleNamespace(get_connection_count=counts)
        made: Any = SimpleNamespace(execute_command=execute_command, aclose=aclose, connection_pool=pool, at=address)
        return cast("Redis", made)


def slots(*primaries: Address) -> list[list[object]]:
    return [[place, place, [one.host.encode(), one.port]] for place, one in enumerate(primaries)]


async def test_many_at_once_ask_once() -> None:
    """All wait for the one answer, and what is not doubted is not asked again."""
    told = Told({A: slots(A, B)})
    nodes = ClusterNodes([A], told.client)
    assert await asyncio.gather(*(nodes.primary_of(place % 2) for place in range(100))) == [A, B] * 50
    assert told.asked == [A]


async def test_doubts_are_looked_into_ten_times_a_second() -> None:
    """However often somebody doubts; meanwhile what was known holds."""
    told = Told({A: slots(A), B: slots(B)})
    times = [number / 100 for number in range(12)]
    now = times[0]
    nodes = ClusterNodes([A], told.client, clock=lambda: now)
    found = []
    for now in times:  # noqa: B007 -- the clock's
        found.append(await nodes.primary_of(0))
        nodes.moved(B)
    assert found == [A] * 10 + [B] * 2
    assert told.asked == [A, B]  # whoever was said to have it is asked, not the one that was wrong


async def test_whoever_failed_is_asked_last() -> None:
    """And where nobody else answers, what was known holds."""
    told = Told({A: slots(A, B), B: Unreachable("away"), C: Unreachable("away")})
    nodes = ClusterNodes([A, C], told.client, clock=map(float, count()).__next__)
    await nodes.primary_of(0)
    told.answers[A] = Unreachable("away")
    nodes.failed(A)
    assert await nodes.primary_of(0) == A
    assert told.asked == [A, B, C, A]
    assert await nodes.primary_of(None) == B


async def test_a_slot_of_nobody_is_down() -> None:
    """Which may be better the next time."""
    nodes = ClusterNodes([A], Told({A: slots(A)}).client)
    with pytest.raises(ClusterDownError):
        await nodes.primary_of(7)


async def test_whoever_has_left_is_closed() -> None:
    """Unless somebody still waits for its answer; then with a later look."""
    told = Told({A: slots(B, C), B: slots(B)}, used={C})
    nodes = ClusterNodes([A], told.client, clock=map(float, count()).__next__)
    assert [getattr(one, "at", None) for one in await nodes.primaries()] == [B, C]
    told.answers[A] = slots(B)
    for closed in ([], [C]):
        assert len(await nodes.primaries()) == 1
        assert told.closed == closed
        told.used.clear()
    await nodes.aclose()
    assert set(told.closed) == {A, B, C}
