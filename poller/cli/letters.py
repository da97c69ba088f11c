"""``poller dead-letters list`` and ``show``: what could not be used and what was given up on, for people.

Law: nothing that a record, an event or an answer holds can steer the terminal; ``--raw`` alone writes what was received
or published, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from redis.asyncio import Redis

from poller.cli.escaping import escaped, legible
from poller.cli.loop import run
from poller.cli.options import Asked, named_feeds
from poller.cli.output import say, say_bytes, say_json, say_table, warn
from poller.config.settings import Settings
from poller.control.dead_letters import DeadEvent, DeadLetters
from poller.delivery.delivery_codec import Attempt, Overrun
from poller.errors import ConfigurationError, PollerError
from poller.store.dead_letters import DeadLetter, LetterId, Listed, Opened, letter_id
from poller.store.keys import remembered_key
from poller.store.recovery import known_feeds
from poller.store.session import STORE_PATIENCE, opened_store, until_ready
from poller.text import ago

LIST: Final = "poller dead-letters list"


def show_list(
    asked: Asked, names: list[str] | None, *, subscription: str | None = None, limit: int, json: bool
) -> None:
    """Show the newest dead letters of these feeds, and tell on standard error how many older ones there are.

    JSON: one object a line with the keys of :class:`~poller.store.dead_letters.DeadLetter`.

    Args:
        asked: the options of every command.
        names: the feeds; None for all.
        subscription: only its events; None for all, and the records.
        limit: so many at most.
        json: for programs.

    Raises:
        ConfigurationError: something is set up wrongly, or there is no such feed or subscription.
        StoreError: the store is away.
    """
    asked.set_up_logs("error")
    listed, now = run(_newest(asked.settings(), names, subscription, limit))
    if json:
        for letter in listed.letters:
            say_json(letter)
    elif listed.letters:
        _say_letters(listed.letters, now)
    else:
        say("no dead letters")
    if listed.hidden:
        warn(f"{listed.hidden} older not shown; --limit {len(listed.letters) + listed.hidden} shows all")


def show_one(asked: Asked, text: str, *, raw: bool) -> None:
    """Show why it is a dead letter and what it holds; ``raw``: only the latter, as it is.

    Raises:
        ConfigurationError: something is set up wrongly, or this is no id of a configured feed.
        PollerError: there is no such dead letter, or the store is away.
    """
    asked.set_up_logs("error")
    found = run(_opened(asked.settings(), text))
    if found is None:
        raise PollerError(unknown([text]))
    content = _content(found)
    if raw:
        say_bytes(content)
        return
    listed = found.listed if isinstance(found, DeadEvent) else found.letter
    say(f"id      {listed.id}")
    say(f"at      {listed.at}")
    if listed.type:
        say(f"type    {escaped(listed.type)}")
        say(f"subject {escaped(listed.subject or '-')}")
    say(f"reason  {escaped(listed.reason)}")
    say(f"bytes   {listed.bytes}{_cut(found)}")
    if isinstance(found, DeadEvent) and found.letter.overrun:
        _say_overrun(found.letter.overrun)
        return
    if isinstance(found, DeadEvent):
        _say_attempts(found.letter.attempts)
    say("")
    say(legible(content))


async def stored_feeds(client: Redis, settings: Settings) -> tuple[str, ...]:
    """The feeds that may have dead letters: those of the configuration, and those that the store still has.

    Raises:
        StoreError: the store is away.
    """
    known = await known_feeds(client, remembered_key(settings.redis.prefix))
    return tuple(dict.fromkeys([*settings.feed_ids, *known]))


def understood(settings: Settings, text: str, stored: Sequence[str] = ()) -> LetterId:
    """An id taken apart, with its feed by its full name.

    Args:
        settings: of the configuration.
        text: the id.
        stored: feeds by their full names that need not be in the configuration.

    Raises:
        ConfigurationError: this cannot be an id, or there is no such feed.
    """
    found = letter_id(text)
    if found is None:
        raise ConfigurationError(
            f'"{escaped(text)}" is no id of a dead letter; expected SOURCE/NAME:ENTRY or '
            f"SOURCE/NAME:SUBSCRIPTION:ENTRY as {LIST} shows it, such as acme/contractTypes:1735689600000-0"
        )
    if found.feed in stored:
        return found
    return found._replace(feed=named_feeds(settings, [found.feed])[0])


def unknown(texts: Sequence[str]) -> str:
    """That there are no such letters."""
    return f"there is no dead letter {', '.join(texts)} (any more); {LIST} shows what there is"


async def _newest(
    settings: Settings, names: list[str] | None, subscription: str | None, limit: int
) -> tuple[Listed, datetime]:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        stored = await stored_feeds(store.client, settings)
        feeds = dict.fromkeys(name if name in stored else named_feeds(settings, [name])[0] for name in names or stored)
        letters = DeadLetters(store.client, settings.redis.prefix)
        return await letters.newest(tuple(feeds), most=limit, subscription=subscription), store.clock.now()


async def _opened(settings: Settings, text: str) -> Opened | DeadEvent | None:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        wanted = understood(settings, text, await stored_feeds(store.client, settings))
        return await DeadLetters(store.client, settings.redis.prefix).opened(wanted)


def _content(found: Opened | DeadEvent) -> bytes:
    if isinstance(found, Opened):
        return found.raw
    return b"" if found.letter.overrun else bytes(found.letter.event)


def _say_overrun(overrun: Overrun) -> None:
    say(f"from    {overrun.first}")
    say(f"before  {overrun.left or '- (none was left)'}")


def _say_attempts(attempts: Sequence[Attempt]) -> None:
    for attempt in attempts:
        outcome = attempt.text or attempt.failure or f"status {attempt.status}"
        say(f"attempt {attempt.at}  {attempt.seconds:.3f} s  {escaped(outcome)}")
        if attempt.excerpt:
            say(f"        {escaped(attempt.excerpt)}")


def _say_letters(letters: Sequence[DeadLetter], now: datetime) -> None:
    rows = [(letter.id, _age(letter, now), *_event_of(letter), escaped(letter.reason)) for letter in letters]
    if any(letter.type for letter in letters):
        say_table(("id", "age", "type", "subject", "reason"), rows, numbers=("age",), unbroken=("id", "age"))
    else:
        rest = [(name, age, reason) for name, age, _, _, reason in rows]
        say_table(("id", "age", "reason"), rest, numbers=("age",), unbroken=("id", "age"))


def _event_of(letter: DeadLetter) -> tuple[str, str]:
    """What is known of its event: the record's kind and what became of it, and which record."""
    short = ".".join((letter.type or "").split(".")[-3:-1])
    return escaped(short or letter.type or "-"), escaped(letter.subject or "-")


def _age(letter: DeadLetter, now: datetime) -> str:
    return ago((now - datetime.fromisoformat(letter.at)).total_seconds())


def _cut(found: Opened | DeadEvent) -> str:
    if isinstance(found, DeadEvent) or found.whole:
        return ""
    return ", the first of more" if found.whole is False else ", perhaps the first of more"
