"""``poller dead-letters``: events given up on, and records that could not be used.

**Invariants**

- Foreign text (a record, an event, an answer) cannot control the terminal; ``--raw`` alone writes what was received or
  published, byte for byte.
- ``redeliver`` and ``drop`` read every id before they change anything. What cannot be done is reported, and the rest is
  done.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from poller.cli.options import CommandLine, Feeds, GlobalOptions, Json, named_feeds
from poller.cli.output import count, escaped, legible, warn, write_bytes, write_json, write_line, write_table
from poller.errors import ConfigurationError, PollerError
from poller.text import ago

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from poller.config.settings import Settings
    from poller.control.dead_letters import DeadEvent, RedeliveryResult
    from poller.delivery.delivery_codec import Attempt
    from poller.store.dead_letters import DeadLetterId, DeadLetterSummary, Opened

_LIST: Final = "poller dead-letters list"
_NAMED: Final = 3  # ids that a message names
_ID: Final = "As list shows it: SOURCE/NAME:ENTRY, or SOURCE/NAME:SUBSCRIPTION:ENTRY."
_Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help=_ID, show_default=False)]
_Feed = Annotated[
    str | None, typer.Option(metavar="FEED", help="With --all: of this feed. SOURCE/NAME or NAME.", show_default=False)
]
_Subscription = Annotated[
    str | None, typer.Option(metavar="ID", help="Events of this subscription only.", show_default=False)
]

app = CommandLine(
    name="dead-letters",
    help="List, show, redeliver and drop dead letters: events given up on and records that could not be used.",
)


class _Selection(NamedTuple):
    """Dead letters by their ids, or all events of a subscription, or all records of a feed.

    Attributes:
        ids: as given.
        subscription: its id.
        feed: with a subscription: its events of this feed only.
    """

    ids: tuple[str, ...] = ()
    subscription: str | None = None
    feed: str | None = None


@app.command("list", example="dead-letters list --subscription rostering")
async def list_(
    options: GlobalOptions,
    feeds: Feeds = None,
    *,
    subscription: _Subscription = None,
    json: Json = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="At most this many, the newest.")] = 100,
) -> None:
    """List them, the newest last."""
    from poller.control.dead_letters import DeadLetters
    from poller.store.session import ready_store

    settings = options.settings()
    async with ready_store(settings) as store:
        stored = await _stored_feeds(store.client, settings)
        found = (name if name in stored else named_feeds(settings, [name])[0] for name in feeds or stored)
        letters = DeadLetters(store.client, settings.redis.prefix)
        listed = await letters.newest(tuple(dict.fromkeys(found)), most=limit, subscription=subscription)
        now = store.clock.now()
    if json:
        for letter in listed.letters:
            write_json(letter)
    elif listed.letters:
        _write_letters(listed.letters, now)
    else:
        write_line("no dead letters")
    if listed.hidden:
        warn(f"{listed.hidden} older not shown; --limit {len(listed.letters) + listed.hidden} shows all")


@app.command(example="dead-letters show acme/contractTypes:1735689600000-0 --raw")
async def show(
    options: GlobalOptions,
    letter: Annotated[str, typer.Argument(metavar="ID", help=_ID)],
    *,
    raw: Annotated[bool, typer.Option("--raw", help="Write its bytes as they are, and nothing else.")] = False,
) -> None:
    """Show one: the reason, the attempts, and the content."""
    from poller.control.dead_letters import DeadEvent, DeadLetters
    from poller.store.session import ready_store

    settings = options.settings()
    async with ready_store(settings) as store:
        wanted = _parsed(settings, letter, await _stored_feeds(store.client, settings))
        found = await DeadLetters(store.client, settings.redis.prefix).opened(wanted)
    if found is None:
        raise PollerError(_unknown([letter]))
    event = found.letter if isinstance(found, DeadEvent) else None
    if isinstance(found, DeadEvent):
        content = b"" if found.letter.overrun else bytes(found.letter.event)
    else:
        content = found.raw
    if raw:
        write_bytes(content)
        return
    _write_head(found.listed if isinstance(found, DeadEvent) else found.letter, _cut(found))
    if event is not None and event.overrun:
        write_line(f"from    {event.overrun.first}")
        write_line(f"before  {event.overrun.left or '- (the stream is empty)'}")
        return
    if event is not None:
        _write_attempts(event.attempts)
    write_line("")
    write_line(legible(content))


@app.command(example="dead-letters redeliver --subscription rostering --all")
async def redeliver(
    options: GlobalOptions,
    letters: _Ids = None,
    *,
    subscription: _Subscription = None,
    feed: _Feed = None,
    all_: Annotated[bool, typer.Option("--all", help="All events of the subscription.")] = False,
) -> None:
    """Deliver events again, starting with their first attempt."""
    from poller.control.dead_letters import DeadLetters
    from poller.store.session import ready_store

    selection = _selection(letters, subscription, feed, all_=all_)
    if selection is None or (not selection.ids and selection.subscription is None):
        raise options.usage_error("expected ID..., or --subscription ID --all")
    settings = options.settings()
    async with ready_store(settings) as store:
        dead_letters = DeadLetters(store.client, settings.redis.prefix)
        stored = await _stored_feeds(store.client, settings)
        wanted: Sequence[DeadLetterId] = _all_parsed(settings, selection.ids, stored)
        records = [one.text for one in wanted if one.subscription is None]
        if records:
            raise ConfigurationError(
                f"{', '.join(records)}: a record that could not be used; only events can be redelivered "
                "(drop it, and the record is read again when it comes again)"
            )
        if selection.subscription is not None:
            wanted = await dead_letters.all_of(selection.subscription, _feeds(settings, selection, stored))
        result = await dead_letters.redeliver(wanted, settings.feed_ids)
    write_line(f"{count(result.moved, 'dead letter')} scheduled for redelivery")
    if problems := "; ".join(_not_redelivered(result)):
        raise PollerError(problems)


@app.command(example="dead-letters drop --feed acme/contractTypes --all")
async def drop(
    options: GlobalOptions,
    letters: _Ids = None,
    *,
    subscription: _Subscription = None,
    feed: _Feed = None,
    all_: Annotated[
        bool, typer.Option("--all", help="All events of the subscription, or all records of the feed.")
    ] = False,
) -> None:
    """Delete them. A record that comes again unusable is kept again."""
    from poller.control.dead_letters import DeadLetters
    from poller.store.session import ready_store

    selection = _selection(letters, subscription, feed, all_=all_)
    if selection is None:
        raise options.usage_error("expected ID..., --feed FEED --all, or --subscription ID --all")
    settings = options.settings()
    missing: list[DeadLetterId] = []
    async with ready_store(settings) as store:
        dead_letters = DeadLetters(store.client, settings.redis.prefix)
        stored = await _stored_feeds(store.client, settings)
        wanted, feeds = _all_parsed(settings, selection.ids, stored), _feeds(settings, selection, stored)
        if selection.subscription is not None:
            dropped = await dead_letters.drop_events(await dead_letters.all_of(selection.subscription, feeds))
        elif selection.feed is not None:
            dropped = await dead_letters.drop_records(feeds[0])
        else:
            missing = [one for one in wanted if not await dead_letters.drop(one)]
            dropped = len(wanted) - len(missing)
    write_line(f"{count(dropped, 'dead letter')} dropped")
    if missing:
        raise PollerError(_unknown([one.text for one in missing]))


def _selection(ids: list[str] | None, subscription: str | None, feed: str | None, *, all_: bool) -> _Selection | None:
    """What the arguments select; None where they select nothing, or twice."""
    is_narrowed = subscription is not None or feed is not None
    if bool(ids) == all_ or is_narrowed != all_:
        return None
    return _Selection(tuple(ids or ()), subscription, feed)


async def _stored_feeds(client: Redis, settings: Settings) -> tuple[str, ...]:
    """Feeds that may have dead letters: those of the configuration and those of the store."""
    from poller.store.keys import remembered_key
    from poller.store.recovery import known_feeds

    known = await known_feeds(client, remembered_key(settings.redis.prefix))
    return tuple(dict.fromkeys([*settings.feed_ids, *known]))


def _all_parsed(settings: Settings, texts: Sequence[str], stored: Sequence[str]) -> list[DeadLetterId]:
    return list(dict.fromkeys(_parsed(settings, text, stored) for text in texts))


def _parsed(settings: Settings, text: str, stored: Sequence[str]) -> DeadLetterId:
    """The id with its feed by its full name.

    Args:
        settings: the configuration.
        text: the id.
        stored: full names of feeds that need not be in the configuration.

    Raises:
        ConfigurationError: this is no id, or there is no such feed.
    """
    from poller.store.dead_letters import letter_id

    found = letter_id(text)
    if found is None:
        raise ConfigurationError(
            f'"{escaped(text)}" is no id of a dead letter; expected SOURCE/NAME:ENTRY or '
            f"SOURCE/NAME:SUBSCRIPTION:ENTRY as {_LIST} shows it, such as acme/contractTypes:1735689600000-0"
        )
    if found.feed in stored:
        return found
    return found._replace(feed=named_feeds(settings, [found.feed])[0])


def _feeds(settings: Settings, selection: _Selection, stored: Sequence[str]) -> Sequence[str]:
    if selection.feed is None:
        return stored
    return (selection.feed,) if selection.feed in stored else named_feeds(settings, [selection.feed])


def _some(texts: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(texts) - _NAMED
    return ", ".join(texts) if more <= 0 else f"{', '.join(texts[:_NAMED])} and {more} more"


def _unknown(texts: Sequence[str]) -> str:
    return f"there is no dead letter {_some(texts)} (any more); {_LIST} shows those that exist"


def _not_redelivered(result: RedeliveryResult) -> list[str]:
    problems = []
    if result.absent:
        problems.append(_unknown([one.text for one in result.absent]))
    if result.empty:
        problems.append(f"{_some([one.text for one in result.empty])}: the event is not stored any more")
    if result.overruns:
        problems.append(
            f"{_some([one.text for one in result.overruns])}: these events were trimmed from their stream and are "
            "stored nowhere; only the source knows the present state of their records (then drop the dead letter)"
        )
    if result.unlisted:
        feeds = ", ".join(sorted({one.feed for one in result.unlisted}))
        problems.append(
            f"{_some([one.text for one in result.unlisted])}: not redelivered, because the feeds of the subscription "
            f"do not list {feeds} any more; list it again, then repeat the command"
        )
    if result.full:
        problems.append(
            f"{count(len(result.full), 'dead letter')} not redelivered, because a thousand deliveries of theirs wait "
            f"already; repeat the command when these are done ({_LIST} shows what is left)"
        )
    return problems


def _write_head(letter: DeadLetterSummary, cut: str) -> None:
    write_line(f"id      {letter.id}")
    write_line(f"at      {letter.at}")
    if letter.type:
        write_line(f"type    {escaped(letter.type)}")
        write_line(f"subject {escaped(letter.subject or '-')}")
    write_line(f"reason  {escaped(letter.reason)}")
    write_line(f"bytes   {letter.bytes}{cut}")


def _write_attempts(attempts: Sequence[Attempt]) -> None:
    for attempt in attempts:
        outcome = attempt.text or attempt.failure or f"status {attempt.status}"
        write_line(f"attempt {attempt.at}  {attempt.seconds:.3f} s  {escaped(outcome)}")
        if attempt.excerpt:
            write_line(f"        {escaped(attempt.excerpt)}")


def _write_letters(letters: Sequence[DeadLetterSummary], now: datetime) -> None:
    rows = [(letter.id, _age(letter, now), *_event_of(letter), escaped(letter.reason)) for letter in letters]
    if any(letter.type for letter in letters):
        write_table(("id", "age", "type", "subject", "reason"), rows, numbers=("age",), unbroken=("id", "age"))
    else:
        rest = [(name, age, reason) for name, age, _, _, reason in rows]
        write_table(("id", "age", "reason"), rest, numbers=("age",), unbroken=("id", "age"))


def _event_of(letter: DeadLetterSummary) -> tuple[str, str]:
    """The type (resource and kind of change) and subject of its event."""
    short = ".".join((letter.type or "").split(".")[-3:-1])
    return escaped(short or letter.type or "-"), escaped(letter.subject or "-")


def _age(letter: DeadLetterSummary, now: datetime) -> str:
    return ago((now - datetime.fromisoformat(letter.at)).total_seconds())


def _cut(found: Opened | DeadEvent) -> str:
    """Whether what is stored is the whole record."""
    is_whole = getattr(found, "whole", True)
    if is_whole is None:
        return ", perhaps the first of more"
    return "" if is_whole else ", the first of more"
