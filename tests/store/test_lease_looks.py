"""Laws of :mod:`poller.store.lease_looks`."""

from __future__ import annotations

from typing import Any

from fakeredis import FakeAsyncRedis, FakeRedis, FakeServer

from poller.store.lease_looks import Held, held_leases

LEASE = "poller:{acme/a}:lease"


class Ending(FakeAsyncRedis):
    """A store in which the lease ends between the questions for its owner and for its time."""

    pipelines = 0

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Any:
        self.pipelines += 1
        if self.pipelines > 1:
            FakeRedis(server=SERVER).delete(LEASE)
        return super().pipeline(transaction, shard_hint)


SERVER = FakeServer()


async def test_a_lease_that_ends_while_it_is_looked_at_is_free() -> None:
    """Law: it is free, not a stranger's without an end, which would be left alone for long."""
    async with Ending(server=SERVER) as client:
        await client.set(LEASE, "once-1-ab/nonce", px=60_000)
        assert await held_leases(client, [LEASE], known=()) == [Held(None)]
        assert client.pipelines == 2
