"""``poller replay``: past events once more, delivered by whoever delivers."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from poller.cli.loop import run
from poller.cli.options import Asked, named_feeds, utc_now
from poller.cli.output import say, warn
from poller.config.settings import Settings
from poller.config.types import parse_duration
from poller.control.replay import EARLIEST, LATEST, PlannedReplay, ReplayControl, feeds_of, subscribed
from poller.errors import ConfigurationError, PollerError
from poller.store.session import STORE_PATIENCE, opened_store, until_ready
from poller.store.subscriptions import milliseconds_of

_ID: Final = re.compile(r"\d{1,20}(-\d{1,20})?", re.ASCII)
_LARGEST: Final = 2**64
_LOOK_AGAIN: Final = 0.5  # seconds


def replay(
    asked: Asked, subscription: str, names: list[str] | None, *, start: str, end: str | None, wait: bool
) -> None:
    """Ask for a replay and say what it covers.

    Args:
        asked: the options of every command.
        subscription: its id.
        names: feeds of it; None for all.
        start: from where: an entry's id, a moment, how long ago, or ``earliest``.
        end: to where; None: all that was read for the subscription.
        wait: show how far it is until it is done.

    Raises:
        ConfigurationError: something is set up wrongly, or cannot be meant.
        PollerError: the stream does not go back so far, one is under way, the subscription that is waited for is or
            becomes paused, or the store is away.
    """
    asked.set_up_logs("error")

    def places(now: datetime) -> tuple[str, str]:
        first = EARLIEST if start == "earliest" else place(start, "--from", now)
        return first, LATEST if end is None else place(end, "--to", now, last=True)

    places(utc_now())  # what cannot be meant is told before the store is asked for its time
    settings = asked.settings()
    run(_replay(settings, subscription, named_feeds(settings, names) if names else (), places, wait=wait))


def join(asked: Asked, subscription: str, names: list[str] | None) -> None:
    """Show how far the replays of a subscription are that are under way, until they are done.

    Raises:
        ConfigurationError: something is set up wrongly.
        PollerError: there is none, it was cancelled, the subscription is or becomes paused, or the store is away.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    run(_join(settings, subscription, named_feeds(settings, names) if names else ()))


def cancel(asked: Asked, subscription: str, names: list[str] | None) -> None:
    """End the replays of a subscription that are under way.

    Raises:
        ConfigurationError: something is set up wrongly.
        PollerError: there is none, or the store is away.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    ended = run(_cancel(settings, subscription, named_feeds(settings, names) if names else ()))
    for feed in ended:
        say(f"{feed}: replay cancelled")
    if not ended:
        raise PollerError(f"no replay of {subscription} is under way")


def place(text: str, option: str, now: datetime, *, last: bool = False) -> str:
    """The entry id that is meant by an id, a moment in RFC 3339, or how long ago.

    Args:
        text: as given.
        option: its name, for the message.
        now: UTC.
        last: of several entries of one millisecond, whether the last is meant.

    Raises:
        ConfigurationError: it is none of these.
    """
    if _ID.fullmatch(text) and all(int(part) < _LARGEST for part in text.split("-")):
        return text if "-" in text else _entry(int(text), last=last)
    moment = _moment(text, now)
    if moment is None:
        raise ConfigurationError(
            f'{option} is "{text}"; expected the id of a stream\'s entry such as 1735689600000-0, a moment such as '
            f"2026-03-02T08:15:00Z, or how long ago, such as 2h"
        )
    return _entry(max(milliseconds_of(moment), 0), last=last)


def _moment(text: str, now: datetime) -> datetime | None:
    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo and moment.year > 1 else None


def _entry(milliseconds: int, *, last: bool) -> str:
    return f"{milliseconds}-{_LARGEST - 1 if last else 0}"


async def _replay(
    settings: Settings,
    subscription: str,
    named: Sequence[str],
    places_at: Callable[[datetime], tuple[str, str]],
    *,
    wait: bool,
) -> None:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        places = places_at(store.clock.now())
        all_of = await subscribed(store.client, settings, subscription)
        asking = ReplayControl(store.client, settings.redis.prefix, subscription)
        name = secrets.token_hex(8)
        feeds = feeds_of(all_of, named, subscription)
        found = [await asking.planned(feed, *places, name=name) for feed in feeds]
        begun = await _begun(asking, [one for one in found if one is not None])
        for one in begun:
            if places[0] == EARLIEST and one.first > 1:
                warn(f"{one.feed} begins at {one.since}; what was before that is gone")
        if all_of.paused and not wait:
            warn(f"{subscription} is paused: it gets them once it is resumed")
        if wait:
            for one in begun:
                await _shown(asking, one)


async def _begun(asking: ReplayControl, wanted: list[PlannedReplay]) -> list[PlannedReplay]:
    if not wanted:
        say("no events there")
        return []
    taken = await asking.begin(wanted)
    begun = [one for one in wanted if one.feed not in taken]
    for one in begun:
        say(f"{one.feed}: {one.events} event{'' if one.events == 1 else 's'} to be delivered once more")
    if taken:
        raise PollerError(f"a replay of {', '.join(taken)} is under way; poller replay SUBSCRIPTION --cancel ends it")
    return begun


async def _shown(asking: ReplayControl, one: PlannedReplay) -> None:
    shown = None
    async for done in asking.progress(one, lambda: asyncio.sleep(_LOOK_AGAIN)):
        if done != shown:
            say(f"{one.feed}: {done} of {one.events}")
            shown = done
    waiting = await asking.parked(one.feed)
    if waiting:
        say(f"{one.feed}: {waiting} event{' waits' if waiting == 1 else 's wait'} for the next attempt")


async def _join(settings: Settings, subscription: str, named: Sequence[str]) -> None:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        all_of = await subscribed(store.client, settings, subscription)
        asking = ReplayControl(store.client, settings.redis.prefix, subscription)
        found = [await asking.under_way(feed) for feed in feeds_of(all_of, named, subscription)]
        begun = [one for one in found if one is not None]
        if not begun:
            raise PollerError(f"no replay of {subscription} is under way; --from says from where one is to begin")
        for one in begun:
            say(f"{one.feed}: {one.events} event{'' if one.events == 1 else 's'} left of a replay")
            await _shown(asking, one)


async def _cancel(settings: Settings, subscription: str, named: Sequence[str]) -> list[str]:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        all_of = await subscribed(store.client, settings, subscription)
        asking = ReplayControl(store.client, settings.redis.prefix, subscription)
        return await asking.cancel(feeds_of(all_of, named, subscription))
