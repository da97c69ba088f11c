"""``poller tail``: the events as they come.

**Invariants**

- A choice that no event of the followed streams can meet is refused, with what was probably meant.
- Nobody waits without knowing for what: where no process polls, and where nothing has come yet, standard error says so.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from poller.cli.choosing import Choice
from poller.cli.lines import Unreadable, announced_line, compact, line_of, read_announced, read_event, understood
from poller.cli.loop import run
from poller.cli.options import Asked, named_feeds, utc_now
from poller.cli.output import say, say_styled, warn
from poller.cli.replay import place
from poller.config.event_types import type_test, unmatched
from poller.config.settings import Settings
from poller.control.feeds import keys_of
from poller.delivery.operational_events import Kind
from poller.errors import ConfigurationError, StoreError, StoreUnavailable
from poller.lifecycle import ended, stopped_by_signals
from poller.store.entry_id import EARLIEST, before
from poller.store.keys import MemberKeys, operations_key
from poller.store.members import members_now
from poller.store.session import STORE_PATIENCE, OpenStore, blocking_client, opened_store, until_ready
from poller.store.stream import Entry, followed, last_id

BLOCK: Final = timedelta(seconds=2)
NOW: Final = "now"
OPERATIONS: Final = "operations"
_NAMED: Final = 6  # feeds that a line names
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
        ConfigurationError: something is set up wrongly, there is no such feed, ``start`` is none of these, or no event
            can be what ``choice`` asks for.
        StoreError: the store is away at the start, or does not want us.
    """
    asked.set_up_logs("error")
    start_of(start, utc_now())  # what cannot be meant is told before the store is asked for its time
    settings = asked.settings()
    feeds = () if operations and not names else named_feeds(settings, names)
    refuse_impossible(choice, settings.types_of(feeds), list(Kind) if operations else ())
    streams = {keys_of(settings, feed_id).events: feed_id for feed_id in feeds}
    if operations:
        streams[operations_key(settings.redis.prefix)] = OPERATIONS
    shown = Shown(choice, json, max(map(len, streams.values()), default=0))
    run(_until_told(settings, streams, start, shown))


def refuse_impossible(choice: Choice, types: Collection[str], operations: Collection[str]) -> None:
    """Nothing, where some event can be what is asked for.

    Args:
        choice: which of the events.
        types: those that the followed feeds publish.
        operations: those of the daemon's own events, where these are followed.

    Raises:
        ConfigurationError: none can.
    """
    for _, entry, expected in unmatched(choice.types, {*types, *operations}):
        raise ConfigurationError(f'--type "{entry}": {expected}')
    wanted = type_test(choice.types) if choice.types else lambda _: True
    if choice.changed and not any(wanted(one) for one in types if one.endswith(".modified.v1")):
        raise ConfigurationError(
            "--changed: expected the type modified, and a feed: no other event says what has changed"
        )


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
        begun = start_of(start, store.clock.now())
        places = {key: await _place(store, key, begun) for key in streams}
        polled = await _polled(store, settings)
        if not polled:
            warn("no process polls now; new events come when `poller run` or `poller once` does")
        silent = True
        async with blocking_client(store.url, block=BLOCK) as client:
            async for entries in followed(client, places, block=BLOCK, away=_away):
                if silent and not entries:
                    silent = False  # said once is enough
                    warn(f"waiting for events of {_some(list(streams.values()))}{shown.choice}")
                for entry in entries:
                    if shown.choice.takes(entry.event):
                        silent = False
                        _show(entry, streams[entry.key], shown)


async def _polled(store: OpenStore, settings: Settings) -> bool:
    """Whether some process polls; True where it is not known."""
    with suppress(StoreError):  # who may only read the streams is not told
        members = await members_now(store.client, MemberKeys.of(settings.redis.prefix))
        return any("poll" in roles for roles in members.values())
    return True


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


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
