"""Laws of :mod:`poller.service.first_look`: an empty store is told of, and a prefix that was changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

from fakeredis import FakeAsyncRedis
from structlog.testing import capture_logs

from poller.service.feed_values import keys_of
from poller.service.first_look import look_first, prefixes_of
from poller.store.keys import FeedKeys, PairKeys, remembered_key
from tests.service.subscribed import FEEDS, configured


async def test_an_empty_store_is_a_first_start(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """It is told as what it is, and is no warning; what others keep there does not matter."""
    await client.set("session:{a/b}:state", "of somebody else")
    with capture_logs() as said:
        await look_first(client, configured(tmp_path))
    assert [(line["event"], line["log_level"]) for line in said] == [
        ("first start: nothing is known of any feed", "info")
    ]


async def test_a_store_that_knows_a_feed_is_not_talked_about(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Neither one that knows it, nor one that only remembers it: then the round tells what is lost."""
    settings = configured(tmp_path)
    await client.hset(keys_of(settings, FEEDS[1]).state, "generation", "g")
    with capture_logs() as said:
        await look_first(client, settings)
        await client.flushall()
        await client.hset(remembered_key("poller"), FEEDS[0], "{}")
        await look_first(client, settings)
    assert said == []


async def test_the_feeds_under_another_prefix_are_named(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Who changed the prefix by mistake reads the one that it was."""
    await client.hset(FeedKeys.of("staging:one", FEEDS[0]).state, "generation", "g")
    await client.hset(PairKeys.of("other", FEEDS[0], "a").state, "place", "0-0")
    with capture_logs() as said:
        await look_first(client, configured(tmp_path))
    (line,) = said
    assert (line["log_level"], line["prefix"], line["others"]) == ("warning", "poller", ["staging:one"])


class Endless:
    """A store in which the search never comes to an end."""

    async def scan_iter(self, **_: object) -> AsyncIterator[bytes]:
        yield FeedKeys.of("there", FEEDS[0]).state.encode()
        await asyncio.Event().wait()


async def test_the_search_ends_in_time() -> None:
    """However much there is, it takes no longer than it may; what was found by then counts."""
    assert await prefixes_of(cast("Any", Endless()), FEEDS, within=0.01) == {"there"}
