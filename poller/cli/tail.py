"""``poller tail``: follows the event streams.

**Invariants**

- Options that no event of the followed streams can match are refused, with what was probably meant.
- Standard error says when no process polls, and when nothing has come yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from poller.cli.options import CommandLine, Feeds, GlobalOptions, Json, named_feeds, utc_now
from poller.cli.output import warn, write_json_text, write_styled
from poller.cli.replay import entry_id_at, is_entry_id
from poller.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from poller.cli.event_lines import EventChoice
    from poller.config.settings import Settings
    from poller.store.session import OpenStore
    from poller.store.stream import Entry

_BLOCK: Final = timedelta(seconds=2)
_NOW: Final = "now"
_EARLIEST: Final = "earliest"
_OPERATIONS: Final = "operations"
_NAMED: Final = 6  # feeds that a line names

app = CommandLine()


@dataclass(frozen=True, slots=True)
class _Format:
    """Which events are shown, and how.

    Attributes:
        choice: of the events.
        json: whether as one compact JSON object a line, and not as a line for people.
        width: of the longest name of a stream.
    """

    choice: EventChoice
    json: bool
    width: int


@app.command(example="tail --from 2h --type removed")
async def tail(
    options: GlobalOptions,
    feeds: Feeds = None,
    *,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="ID|TIME|now|earliest", help="After an entry id, or since a time: RFC 3339, or 2h."
        ),
    ] = _NOW,
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="TYPE", help="A type, a pattern such as *.removed.v1, or created, modified, removed."
        ),
    ] = None,
    subjects: Annotated[
        list[str] | None,
        typer.Option("--subject", metavar="ID", help="A record's id, its first 8 characters, or a pattern."),
    ] = None,
    changed: Annotated[
        list[str] | None, typer.Option(metavar="POINTER", help="Where this member, or one below it, has changed.")
    ] = None,
    operations: Annotated[
        bool, typer.Option("--operations", help="The daemon's own events; with FEED, these as well.")
    ] = False,
    json: Json = False,
) -> None:
    """Follow the event streams until Ctrl-C. An option given several times matches any of its values."""
    import asyncio

    from poller.cli.event_lines import EventChoice
    from poller.control.factories import keys_of
    from poller.delivery.operational_events import OperationType
    from poller.lifecycle import ended, first_of, stopped_by_signals
    from poller.store.keys import operations_key

    start_of(start, utc_now())  # refuses what cannot be meant before the store is read
    settings = options.settings()
    choice = EventChoice(tuple(types or ()), tuple(subjects or ()), tuple(changed or ()))
    names = () if operations and not feeds else named_feeds(settings, feeds)
    _refuse_impossible(choice, settings.types_of(names), list(OperationType) if operations else ())
    streams = {keys_of(settings, feed_id).events: feed_id for feed_id in names}
    if operations:
        streams[operations_key(settings.redis.prefix)] = _OPERATIONS
    shown = _Format(choice, json, max(map(len, streams.values()), default=0))
    with stopped_by_signals() as stop:
        following = asyncio.create_task(_follow(settings, streams, start, shown), name="tail")
        try:
            await first_of(stop, following)
        finally:
            await ended(following)


def start_of(start: str, now: datetime) -> str:
    """What ``--from`` means: ``now``, ``earliest``, or the id of an entry to start after.

    Raises:
        ConfigurationError: it is none of these, and no moment.
    """
    from poller.store.stream import before

    if start in (_NOW, _EARLIEST):
        return start
    found = entry_id_at(start, "--from", now)
    return start if is_entry_id(start) else before(found)


def _refuse_impossible(choice: EventChoice, types: Collection[str], operations: Collection[str]) -> None:
    """Refuse a choice that no event can match.

    Args:
        choice: of the events.
        types: of the events of the followed feeds.
        operations: types of the daemon's own events, where these are followed.

    Raises:
        ConfigurationError: no event can match.
    """
    from poller.config.event_types import type_test, unmatched_types

    for _, entry, expected in unmatched_types(choice.types, {*types, *operations}):
        raise ConfigurationError(f'--type "{entry}": {expected}')
    is_chosen = type_test(choice.types) if choice.types else lambda _: True
    if choice.changed and not any(is_chosen(one) for one in types if one.endswith(".modified.v1")):
        raise ConfigurationError(
            "--changed chooses among the modified events of feeds: leave out --operations and other types"
        )


async def _follow(settings: Settings, streams: Mapping[str, str], start: str, shown: _Format) -> None:
    from poller.store.keys import MemberKeys
    from poller.store.members import is_any_there
    from poller.store.session import blocking_client, ready_store
    from poller.store.stream import followed

    async with ready_store(settings) as store:
        first = start_of(start, store.clock.now())
        positions = {key: await _position(store, key, first) for key in streams}
        if not await is_any_there(store.client, MemberKeys.of(settings.redis.prefix), role="poll"):
            warn("no process polls; new events come after `poller run` or `poller once`")
        silent = True
        async with blocking_client(store.url, block=_BLOCK, clock=store.clock) as client:
            following = followed(
                client,
                positions,
                block=_BLOCK,
                away=_warn_away,
                back=lambda key: warn(
                    f"the stream of {streams[key]} went back in the store and is shown from its start"
                ),
                clock=store.clock,
            )
            async for entries in following:
                if silent and not entries:
                    silent = False
                    warn(f"waiting for events of {_some(list(streams.values()))}{shown.choice}")
                for entry in entries:
                    if shown.choice.matches(entry.event):
                        silent = False
                        _write(entry, streams[entry.key], shown)


async def _position(store: OpenStore, key: str, start: str) -> str:
    from poller.store.stream import EARLIEST, last_id

    if start == _NOW:
        return await last_id(store.client, key)
    return EARLIEST if start == _EARLIEST else start


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _write(entry: Entry, name: str, shown: _Format) -> None:
    """Write an event; an entry that holds none is reported on standard error."""
    from poller.cli.event_lines import (
        Unreadable,
        compact,
        event_line,
        operational_event_line,
        read_event,
        read_operational_event,
        readable,
    )

    today = utc_now().date().isoformat()
    try:
        with readable(entry.event, feed=name, entry_id=entry.id):
            if shown.json:
                write_json_text(compact(entry.event))
            elif name == _OPERATIONS:
                event = read_operational_event(entry.event)
                write_styled(operational_event_line(event, name, feed_width=shown.width, today=today))
            else:
                write_styled(event_line(read_event(entry.event), name, feed_width=shown.width, today=today))
    except Unreadable as reason:
        warn(str(reason))


def _warn_away(error: StoreError) -> None:
    warn(f"store unavailable, retrying: {error}")
