"""Laws of :mod:`poller.service.web.news`: whoever waits is woken by what comes, and one look serves all."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from structlog.testing import capture_logs

from poller.service.web.news import News
from poller.store.connection import commands
from tests.harness.waiting import patience, turns, until

if TYPE_CHECKING:
    from redis.asyncio import Redis

BLOCK = timedelta(milliseconds=200)
KEYS = ("{a}:events", "{b}:events")
AN_HOUR = 3600.0


async def connections(client: Redis) -> int:
    return int((await client.info("clients"))["blocked_clients"])


async def test_whoever_waits_is_woken(store_url: str, one_server: None) -> None:
    """By what comes, at once and not when the wait is over; told is the stream in which it came, to all who wait."""
    news = News(KEYS, block=BLOCK)
    async with commands(store_url) as client, news.followed(store_url), news.followed(store_url):
        await until(lambda: news.mark, "the first look")
        mark = news.mark
        waiting = [asyncio.create_task(news.beyond(mark, AN_HOUR)) for _ in range(2)]
        await until(lambda: connections(client), "the look to wait")
        assert await connections(client) == 1
        await client.xadd(KEYS[1], {"data": b"{}"})
        async with patience("both to be woken"):
            await asyncio.gather(*waiting)
        assert news.since(mark, KEYS) == [KEYS[1]]
        assert news.since(news.mark, KEYS) == []


async def test_nobody_looks_for_nobody(store_url: str, one_server: None) -> None:
    """The look ends with the last who follows, and begins anew with the next."""
    news = News(KEYS, block=BLOCK)
    for looks in (1, 2):
        async with news.followed(store_url):
            await until(partial(_beyond, news, looks - 1), "a look")
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("news")]


async def test_one_that_leaves_ends_the_look_of_nobody_else(store_url: str, one_server: None) -> None:
    """Law: it is looked for as long as one follows."""
    news = News(KEYS, block=BLOCK)
    async with commands(store_url) as client, news.followed(store_url):
        async with news.followed(store_url):
            pass
        await until(lambda: news.mark, "the first look")
        mark = news.mark
        await client.xadd(KEYS[0], {"data": b"{}"})
        await until(lambda: news.since(mark, KEYS), "the stream to be told")


async def test_one_that_comes_while_the_look_ends_has_its_own(store_url: str, one_server: None) -> None:
    """Law: the end of a look takes some turns of the loop; in each of them another one may come, who misses nothing."""

    async def follow(stop: asyncio.Event) -> None:
        async with news.followed(store_url):
            await stop.wait()

    async with commands(store_url) as client:
        for count in range(1, 5):
            news, stop = News(KEYS, block=BLOCK), asyncio.Event()
            leaving = asyncio.create_task(follow(stop))
            await until(partial(_beyond, news, 0), "the first look")
            stop.set()
            await turns(count)
            async with news.followed(store_url):
                await leaving
                mark = news.mark
                await client.xadd(KEYS[0], {"data": b"{}"})
                await until(partial(_beyond, news, mark), "the stream to be told")


async def test_what_came_before_the_wait_is_not_waited_for(store_url: str, one_server: None) -> None:
    """Law: who asks what is new and then waits sleeps through nothing that came between the two."""
    news = News(KEYS, block=BLOCK)
    async with news.followed(store_url):
        mark = news.mark
        await until(partial(_beyond, news, mark), "the first look")
        async with patience("the wait to end"):
            await news.beyond(mark, AN_HOUR)


async def test_a_store_that_refuses_is_told_once(store_url: str, one_server: None) -> None:
    """And asked again and again; there may be somebody at it."""
    asked = 0

    async def sleep(_: float) -> None:
        nonlocal asked
        asked += 1
        await turns()

    async with commands(store_url) as client:
        await client.set(KEYS[0], "no stream")
        with capture_logs() as lines:
            async with News(KEYS, block=BLOCK, sleep=sleep).followed(store_url):
                await until(lambda: asked >= 3, "the third look")
    assert [line["event"] for line in lines] == ["streams cannot be followed"]


def _beyond(news: News, mark: int) -> bool:
    return news.mark > mark
