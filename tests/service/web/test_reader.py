"""Laws of :mod:`poller.service.web.reader` that need a store which fails in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from fakeredis import FakeAsyncRedis
from redis.exceptions import ConnectionError as Cut

from poller.service.web.news import News
from poller.service.web.places import BEGINNING, Places
from poller.service.web.reader import Reader
from poller.service.web.server_sent import AWAY, BEAT_COMMENT
from tests.harness.waiting import patience, turns

KEY, FEED = "{acme/a}:events", "acme/a"


class Unanswered(FakeAsyncRedis):
    """A store that does not answer one reading of a stream, and serves everything else."""

    failures = 1

    async def xrange(self, *args: Any, **how: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise Cut("no answer")
        return await super().xrange(*args, **how)


@asynccontextmanager
async def reading(client: FakeAsyncRedis, *, beat: float = 3600) -> AsyncIterator[AsyncGenerator[bytes]]:
    """The messages of a stream with one event, behind the greeting; nothing new comes."""
    await client.xadd(KEY, {"data": b'{"sequence":"1"}'})
    reader = Reader(
        client,
        News((KEY,)),
        {KEY: FEED},
        Places({FEED: BEGINNING}),
        types=None,
        from_now=False,
        beat_seconds=beat,
        clock=asyncio.get_running_loop().time,
        sleep=lambda _: turns(),
    )
    async with aclosing(reader.messages()) as messages, patience("the messages"):
        await anext(messages)
        yield messages
    await client.aclose()


async def test_a_stream_whose_reading_was_not_answered_is_read_again() -> None:
    """Law: what was there is given out after one lost answer, though nothing new comes that would wake the reader."""
    async with reading(Unanswered()) as messages:
        assert await anext(messages) == AWAY
        assert b'data: {"sequence":"1"}' in await anext(messages)


async def test_a_place_that_an_event_has_told_is_not_told_again() -> None:
    """Law: a beat after an event is a comment; a client that was sent the place with the event has it."""
    async with reading(FakeAsyncRedis(), beat=0.02) as messages:
        while b"data: {" not in await anext(messages):
            pass
        assert await anext(messages) == BEAT_COMMENT
