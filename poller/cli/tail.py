"""``poller tail``: the events as they come."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from poller.cli.choosing import Choice
from poller.cli.lines import Unreadable, announced_line, compact, line_of, read_announced, read_event, understood
from poller.cli.loop import run
from poller.cli.options import Asked, named_feeds, utc_now
from poller.cli.output import say, say_styled, warn
from poller.cli.replay import place
from poller.config.settings import Settings
from poller.errors import StoreUnavailable
from poller.service.feed_values import keys_of
from poller.service.following import followed
from poller.service.opening import STORE_PATIENCE, OpenStore, opened_store, until_ready
from poller.stopping import ended, stopped_by_signals
from poller.store.connection import blocking
from poller.store.entry_ids import before
from poller.store.keys import operations_key
from poller.store.stream import EARLIEST, Entry, last_id

BLOCK: Final = timedelta(seconds=2)
NOW: Final = "now"
OPERATIONS: Final = "operations"
_ID: Final = re.compile(r"\d{1,20}(-\d{1,20})?", re.ASCII)


class Shown(msgspec.Struct, frozen=True):
    """Which events are shown, and how.

    Attributes:
        choice: of the events of the streams.
        json: one compact JSON object a line, else one line for people.
        width: of the longest name of a stream.
    """

    choice: Choice
    json: bool
    width: int = 0


def tail(
    asked: Asked, names: list[str] | None, *, start: str, json: bool, choice: Choice, operations: bool = False
) -> None:
    """Follow the streams of these feeds until SIGINT or SIGTERM, which is how it is meant to end.

    Args:
        asked: the options of every command.
        names: the feeds; None for all.
        start: ``now``, ``earliest``, the id of a stream's entry to start after, a moment, or how long ago.
        json: one compact JSON object a line, else one line for people.
        choice: which of the events.
        operations: follow the daemon's own events: with the feeds that are named, or alone.

    Raises:
        ConfigurationError: something is set up wrongly, there is no such feed, or ``start`` is none of these.
        StoreError: the store is away at the start, or does not want us.
    """
    asked.set_up_logs("error")
    start = start_of(start, utc_now())
    settings = asked.settings()
    streams = {} if operations and not names else _feed_streams(settings, names)
    if operations:
        streams[operations_key(settings.redis.prefix)] = OPERATIONS
    shown = Shown(choice, json, max(map(len, streams.values()), default=0))
    run(_until_told(settings, streams, start, shown))


def _feed_streams(settings: Settings, names: list[str] | None) -> dict[str, str]:
    return {keys_of(settings, feed_id).events: feed_id for feed_id in named_feeds(settings, names)}


def start_of(start: str, now: datetime) -> str:
    """What ``--from`` means: ``now``, ``earliest``, or the id of an entry to start after.

    Args:
        start: as given; an id stays as it is.
        now: UTC.

    Raises:
        ConfigurationError: it cannot be used.
    """
    if start in (NOW, "earliest"):
        return start
    found = place(start, "--from", now)
    return start if _ID.fullmatch(start) else before(found)


async def _until_told(settings: Settings, streams: Mapping[str, str], start: str, shown: Shown) -> None:
    with stopped_by_signals() as told:
        following = asyncio.create_task(_follow(settings, streams, start, shown), name="following")
        stopping = asyncio.create_task(told.wait())
        try:
            await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
        finally:
            await ended(following, stopping)


async def _follow(settings: Settings, streams: Mapping[str, str], start: str, shown: Shown) -> None:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        places = {key: await _place(store, key, start) for key in streams}
        async with blocking(store.url, block=BLOCK) as client:
            async for entries in followed(client, places, block=BLOCK, away=_away):
                for entry in entries:
                    if shown.choice.takes(entry.event):
                        _show(entry, streams[entry.key], shown)


async def _place(store: OpenStore, key: str, start: str) -> str:
    if start == NOW:
        return await last_id(store.client, key)
    return EARLIEST if start == "earliest" else start


def _show(entry: Entry, name: str, shown: Shown) -> None:
    """Write it; what is no event is told on standard error, and the next one comes."""
    try:
        with understood(entry.event, feed=name, entry_id=entry.id):
            if shown.json:
                say(compact(entry.event))
            elif name == OPERATIONS:
                say_styled(announced_line(read_announced(entry.event), name, feed_width=shown.width, today=_today()))
            else:
                say_styled(line_of(read_event(entry.event), name, feed_width=shown.width, today=_today()))
    except Unreadable as reason:
        warn(str(reason))


def _today() -> str:
    return utc_now().date().isoformat()


def _away(error: StoreUnavailable) -> None:
    warn(f"the store is away, waiting for it: {error}")
