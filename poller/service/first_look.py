"""What a process says of the store before its first round: that it knows nothing yet, or nothing under this prefix.

Law: an empty store is no error, and nobody should have to guess whether it was meant to be empty. Where it holds the
same feeds under another prefix, that is told with the prefix's name. The search for it is bounded by time, so that a
large store that serves others too delays nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Final

import structlog
from redis.asyncio import Redis

from poller.config.settings import Settings
from poller.errors import StoreRefused
from poller.service.feed_values import keys_of
from poller.store.connection import servers, translated
from poller.store.keys import remembered_key

SEARCH_SECONDS: Final = 1.0
_AT_ONCE: Final = 500
_EVERY_STATE: Final = "*:{*/*}:state"

_log = structlog.get_logger("poller.store")


async def look_first(client: Redis, settings: Settings) -> None:
    """Say it where none of the feeds is known.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    if await _known(client, settings):
        return
    prefix = settings.redis.prefix
    try:
        others = sorted(await prefixes_of(client, settings.feed_ids) - {prefix})
    except StoreRefused:  # a user who may not SCAN is not told of what lies elsewhere, and works all the same
        others = []
    if others:
        _log.warning(
            "nothing is known of any feed under this prefix, and something is under others",
            prefix=prefix,
            others=others,
            advice=f"is redis.prefix right? Under {prefix!r} all feeds are read for the first time",
        )
    else:
        _log.info("first start: nothing is known of any feed", prefix=prefix)


async def prefixes_of(
    client: Redis, feeds: Collection[str], *, within: float = SEARCH_SECONDS, at_once: int = 1000
) -> set[str]:
    """The prefixes under which one of these feeds is kept, as far as that is found in so many seconds.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    found: set[str] = set()
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            for one in await servers(client):
                with translated(one):
                    async for key in one.scan_iter(match=_EVERY_STATE, count=at_once):
                        prefix, _, rest = key.decode().rpartition(":{")
                        if rest.rpartition("}")[0] in feeds:
                            found.add(prefix)
    return found


async def _known(client: Redis, settings: Settings) -> bool:
    """Whether any of the feeds is known, or is remembered to have been."""
    with translated(client):
        if await client.exists(remembered_key(settings.redis.prefix)):
            return True
    states = [keys_of(settings, feed).state for feed in settings.feed_ids]
    for some in (states[at : at + _AT_ONCE] for at in range(0, len(states), _AT_ONCE)):
        with translated(client):
            asking = client.pipeline(transaction=False)
            for state in some:
                asking.exists(state)
            if any(await asking.execute()):
                return True
    return False
