"""``poller tail``: the events as they come."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Final

from poller.cli.lines import Unreadable, compact, line_of, read_event, understood
from poller.cli.loop import run
from poller.cli.options import Asked, named_feeds
from poller.cli.output import say, say_styled, warn
from poller.config.settings import Settings
from poller.errors import ConfigurationError, StoreUnavailable
from poller.service.assembly import keys_of
from poller.service.following import followed
from poller.service.once import STORE_PATIENCE
from poller.service.opening import OpenStore, opened_store, until_ready
from poller.stopping import ended, stopped_by_signals
from poller.store.connection import blocking
from poller.store.stream import EARLIEST, Entry, last_id

BLOCK: Final = timedelta(seconds=2)
NOW: Final = "now"
_ID: Final = re.compile(r"\d{1,20}(-\d{1,20})?")
_LARGEST: Final = 2**64


def tail(asked: Asked, names: list[str] | None, *, start: str, json: bool) -> None:
    """Follow the streams of these feeds until SIGINT or SIGTERM, which is how it is meant to end.

    Args:
        asked: the options of every command.
        names: the feeds; None for all.
        start: ``now``, ``earliest``, or the id of a stream's entry to start after.
        json: one compact JSON object a line, else one line for people.

    Raises:
        ConfigurationError: something is set up wrongly, there is no such feed, or ``start`` is none of these.
        StoreError: the store is away at the start, or does not want us.
    """
    asked.set_up_logs("error")
    check_start(start)
    settings = asked.settings()
    run(_until_told(settings, named_feeds(settings, names), start, json=json))


def check_start(start: str) -> None:
    """Look at ``--from``.

    Raises:
        ConfigurationError: it cannot be used.
    """
    if start in (NOW, "earliest"):
        return
    if not _ID.fullmatch(start) or any(int(part) >= _LARGEST for part in start.split("-")):
        raise ConfigurationError(
            f'--from is "{start}"; expected now, earliest, or the id of a stream\'s entry such as 1735689600000-0'
        )


async def _until_told(settings: Settings, feed_ids: tuple[str, ...], start: str, *, json: bool) -> None:
    with stopped_by_signals() as told:
        following = asyncio.create_task(_follow(settings, feed_ids, start, json=json), name="following")
        stopping = asyncio.create_task(told.wait())
        try:
            await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            await ended(following, stopping)


async def _follow(settings: Settings, feed_ids: tuple[str, ...], start: str, *, json: bool) -> None:
    feeds = {keys_of(settings, feed_id).events: feed_id for feed_id in feed_ids}
    width = max(map(len, feed_ids), default=0)
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        places = {key: await _place(store, key, start) for key in feeds}
        async with blocking(store.url, block=BLOCK) as client:
            async for entries in followed(client, places, block=BLOCK, away=_away):
                for entry in entries:
                    _show(entry, feeds[entry.key], width, json=json)


async def _place(store: OpenStore, key: str, start: str) -> str:
    if start == NOW:
        return await last_id(store.client, key)
    return EARLIEST if start == "earliest" else start


def _show(entry: Entry, feed_id: str, width: int, *, json: bool) -> None:
    """Write it; what is no event is told on standard error, and the next one comes."""
    try:
        with understood(entry.event, feed=feed_id, entry_id=entry.id):
            if json:
                say(compact(entry.event))
            else:
                say_styled(line_of(read_event(entry.event), feed_id, feed_width=width))
    except Unreadable as reason:
        warn(str(reason))


def _away(error: StoreUnavailable) -> None:
    warn(f"the store is away, waiting for it: {error}")
