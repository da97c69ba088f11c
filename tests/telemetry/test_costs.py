"""Laws of :mod:`poller.telemetry.costs`: what a round spends is its own, and that of the tasks that it starts."""

from __future__ import annotations

import asyncio

from poller.telemetry.costs import commit_timed, counted, requested, retried
from tests.harness.waiting import turns


async def test_rounds_side_by_side_pay_for_themselves() -> None:
    """Each for its own requests and commits, those of its tasks included; what nobody asked for counts for nobody."""

    async def spend(requests: int) -> dict[str, int | float]:
        with counted() as costs:
            for _ in range(requests):
                await asyncio.create_task(one_request())
            retried()
            commit_timed(0.25)
        return costs.public

    async def one_request() -> None:
        await turns()
        requested(0.5, 100)

    requested(9.0, 9)
    few, many = await asyncio.gather(spend(1), spend(3))
    shared = {"retries": 1, "commits": 1, "commit_seconds": 0.25}
    assert few == shared | {"requests": 1, "bytes": 100, "source_seconds": 0.5}
    assert many == shared | {"requests": 3, "bytes": 300, "source_seconds": 1.5}
    commit_timed(1.0)
    with counted() as costs:
        pass
    assert set(costs.public.values()) == {0}
