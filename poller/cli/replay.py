"""``poller replay``: delivers past events again; the daemon that delivers to the subscription does the work."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from poller.cli.options import CommandLine, Feeds, GlobalOptions, complete_subscriptions, named_feeds, utc_now
from poller.cli.output import count, warn, write_line
from poller.errors import ConfigurationError, PollerError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from poller.clock import Clock
    from poller.control.replay import PlannedReplay, ReplayControl

_ID: Final = re.compile(r"\d{1,20}(-\d{1,20})?", re.ASCII)
_LARGEST: Final = 2**64

app = CommandLine()


@app.command(example="replay rostering --from 2h --wait")
async def replay(
    options: GlobalOptions,
    subscription: Annotated[
        str, typer.Argument(metavar="SUBSCRIPTION", help="Its id.", autocompletion=complete_subscriptions)
    ],
    feeds: Feeds = None,
    *,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="ID|TIME|earliest",
            help="An entry id, RFC 3339, or how long ago (2h).",
            show_default=False,
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="ID|TIME", help="Default: everything that it has read.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show the progress until it is done; alone: of the replay in progress.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the replay in progress.")] = False,
) -> None:
    """Deliver past events again, with the same ids."""
    if cancel and start is None and end is None and not wait:
        await _cancel(options, subscription, feeds)
    elif start is not None and not cancel:
        await _replay(options, subscription, feeds, start=start, end=end, wait=wait)
    elif wait and not cancel and end is None:
        await _follow(options, subscription, feeds)
    else:
        raise options.usage_error("expected --from ID|TIME, --wait for a replay in progress, or --cancel alone")


@asynccontextmanager
async def _opened(
    options: GlobalOptions, subscription: str, names: list[str] | None
) -> AsyncIterator[tuple[ReplayControl, tuple[str, ...], bool, Clock]]:
    """The replays of a subscription, its feeds (those named, or all), whether it is paused, and the store's clock."""
    from poller.control.replay import ReplayControl, feeds_of, subscribed
    from poller.store.session import ready_store

    settings = options.settings()
    named: Sequence[str] = named_feeds(settings, names) if names else ()
    async with ready_store(settings) as store:
        all_of = await subscribed(store.client, settings, subscription)
        replays = ReplayControl(store.client, settings.redis.prefix, subscription)
        yield replays, tuple(feeds_of(all_of, named, subscription)), bool(all_of.paused), store.clock


async def _replay(
    options: GlobalOptions, subscription: str, names: list[str] | None, *, start: str, end: str | None, wait: bool
) -> None:
    from poller.control.replay import EARLIEST

    span_at = _span(start, end)
    span_at(utc_now())  # refuses what cannot be meant before the store is read
    async with _opened(options, subscription, names) as (replays, feeds, is_paused, clock):
        span = span_at(clock.now())
        name = clock.random.randbytes(8).hex()
        found = [await replays.planned(feed, *span, name=name) for feed in feeds]
        begun = await _start(replays, [one for one in found if one is not None])
        for one in begun:
            if span[0] == EARLIEST and one.first > 1:
                warn(f"{one.feed} begins at {one.since}; older events are gone")
        if is_paused and not wait:
            warn(f"{subscription} is paused; the events are delivered after it is resumed")
        if wait:
            for one in begun:
                await _show_progress(replays, one, clock)


async def _follow(options: GlobalOptions, subscription: str, names: list[str] | None) -> None:
    async with _opened(options, subscription, names) as (replays, feeds, _, clock):
        found = [await replays.under_way(feed) for feed in feeds]
        begun = [one for one in found if one is not None]
        if not begun:
            raise PollerError(f"no replay of {subscription} is in progress; --from begins one")
        for one in begun:
            write_line(f"{one.feed}: {count(one.events, 'event')} left to replay")
            await _show_progress(replays, one, clock)


async def _cancel(options: GlobalOptions, subscription: str, names: list[str] | None) -> None:
    async with _opened(options, subscription, names) as (replays, feeds, _, _):
        cancelled = await replays.cancel(feeds)
    for feed in cancelled:
        write_line(f"{feed}: replay cancelled")
    if not cancelled:
        raise PollerError(f"no replay of {subscription} is in progress")


async def _start(replays: ReplayControl, wanted: list[PlannedReplay]) -> list[PlannedReplay]:
    if not wanted:
        write_line("no events there")
        return []
    taken = await replays.start(wanted)
    begun = [one for one in wanted if one.feed not in taken]
    for one in begun:
        write_line(f"{one.feed}: {count(one.events, 'event')} to replay")
    if taken:
        raise PollerError(f"a replay of {', '.join(taken)} is in progress; poller replay SUBSCRIPTION --cancel ends it")
    return begun


async def _show_progress(replays: ReplayControl, one: PlannedReplay, clock: Clock) -> None:
    shown = None
    async for done in replays.progress(one, clock):
        if done != shown:
            write_line(f"{one.feed}: {done} of {one.events}")
            shown = done
    waiting = await replays.parked(one.feed)
    if waiting:
        write_line(f"{one.feed}: {count(waiting, 'event')} waiting for the next attempt")


def _span(start: str, end: str | None) -> Callable[[datetime], tuple[str, str]]:
    """The span that ``--from`` and ``--to`` mean at a moment."""
    from poller.control.replay import EARLIEST, LATEST
    from poller.store.stream import EntryId

    def at(now: datetime) -> tuple[str, str]:
        first = EARLIEST if start == "earliest" else entry_id_at(start, "--from", now)
        last = LATEST if end is None else entry_id_at(end, "--to", now, is_end=True)
        if first != EARLIEST and last != LATEST and EntryId.parse(first) > EntryId.parse(last):
            raise ConfigurationError(f"--from {start} is after --to {end}")
        return first, last

    return at


def is_entry_id(text: str) -> bool:
    """Whether this is the id of an entry, and not a moment."""
    return _ID.fullmatch(text) is not None and all(int(part) < _LARGEST for part in text.split("-"))


def entry_id_at(text: str, option: str, now: datetime, *, is_end: bool = False) -> str:
    """The entry id for an id, a moment in RFC 3339, or how long ago.

    Args:
        text: as given.
        option: its name, for the message.
        now: UTC.
        is_end: whether the last entry of a millisecond is meant, and not the first.

    Raises:
        ConfigurationError: it is none of these.
    """
    from poller.clock import milliseconds_of

    if is_entry_id(text):
        return text if "-" in text else _entry_id(int(text), is_end=is_end)
    moment = _moment(text, now)
    if moment is None:
        raise ConfigurationError(
            f'{option} is "{text}"; expected the id of a stream\'s entry such as 1735689600000-0, a moment such as '
            f"2026-03-02T08:15:00Z, or how long ago, such as 2h"
        )
    return _entry_id(max(milliseconds_of(moment), 0), is_end=is_end)


def _moment(text: str, now: datetime) -> datetime | None:
    from poller.config.types import parse_duration

    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.astimezone(UTC) if moment.tzinfo and moment.year > 1 else None


def _entry_id(milliseconds: int, *, is_end: bool) -> str:
    return f"{milliseconds}-{_LARGEST - 1 if is_end else 0}"
