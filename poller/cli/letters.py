"""``poller dead-letters``: what could not be used, listed, shown and dropped.

Law: nothing that a record holds can steer the terminal; ``--raw`` alone writes what was received, byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from poller.cli.escaping import escaped, legible
from poller.cli.loop import run
from poller.cli.options import Asked, named_feeds, utc_now
from poller.cli.output import say, say_bytes, say_json, say_table, warn
from poller.cli.spans import ago
from poller.config.settings import Settings
from poller.errors import ConfigurationError, PollerError
from poller.service.assembly import keys_of
from poller.service.once import STORE_PATIENCE
from poller.service.opening import opened_store, until_ready
from poller.store import dead_letters
from poller.store.dead_letters import DeadLetter, LetterId, Listed, Opened

_LIST = "poller dead-letters list"


def show_list(asked: Asked, names: list[str] | None, *, limit: int, json: bool) -> None:
    """Show the newest dead letters of these feeds, and tell on standard error how many older ones there are.

    JSON: one object a line with the keys of :class:`~poller.store.dead_letters.DeadLetter`.

    Raises:
        ConfigurationError: something is set up wrongly, or there is no such feed.
        StoreError: the store is away.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    listed = run(_newest(settings, named_feeds(settings, names), limit))
    if json:
        for letter in listed.letters:
            say_json(letter)
    elif listed.letters:
        _say_letters(listed.letters, utc_now())
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
    settings = asked.settings()
    found = run(_opened(settings, _understood(settings, text)))
    if found is None:
        raise PollerError(_unknown([text]))
    if raw:
        say_bytes(found.raw)
        return
    letter = found.letter
    say(f"id      {letter.id}")
    say(f"at      {letter.at}")
    say(f"reason  {escaped(letter.reason)}")
    say(f"bytes   {letter.bytes}{_cut(found)}")
    say("")
    say(legible(found.raw))


def drop_some(asked: Asked, texts: Sequence[str]) -> None:
    """Drop those that are named, each once, and say how many.

    Raises:
        ConfigurationError: something is set up wrongly, or one of them is no id of a configured feed; none is dropped.
        PollerError: some are not there, the others are dropped; or the store is away.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    wanted = {_understood(settings, text): text for text in texts}
    missing = run(_drop(settings, list(wanted)))
    _say_dropped(len(wanted) - len(missing))
    if missing:
        raise PollerError(_unknown([wanted[one] for one in missing]))


def drop_all(asked: Asked, name: str) -> None:
    """Drop all of a feed, and say how many.

    Raises:
        ConfigurationError: something is set up wrongly, or there is no such feed.
        StoreError: the store is away.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    (feed,) = named_feeds(settings, [name])
    _say_dropped(run(_drop_all(settings, feed)))


async def _newest(settings: Settings, feeds: Sequence[str], limit: int) -> Listed:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        return await dead_letters.newest(store.client, {feed: keys_of(settings, feed) for feed in feeds}, most=limit)


async def _opened(settings: Settings, wanted: LetterId) -> Opened | None:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        return await dead_letters.opened(store.client, wanted.feed, keys_of(settings, wanted.feed), wanted.entry)


async def _drop(settings: Settings, wanted: Sequence[LetterId]) -> list[LetterId]:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        return [
            one for one in wanted if not await dead_letters.drop(store.client, keys_of(settings, one.feed), one.entry)
        ]


async def _drop_all(settings: Settings, feed: str) -> int:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        return await dead_letters.drop_all(store.client, keys_of(settings, feed))


def _understood(settings: Settings, text: str) -> LetterId:
    found = dead_letters.letter_id(text)
    if found is None:
        raise ConfigurationError(
            f'"{escaped(text)}" is no id of a dead letter; expected SOURCE/NAME:ENTRY as {_LIST} shows it, '
            "such as acme/contractTypes:1735689600000-0"
        )
    return found._replace(feed=named_feeds(settings, [found.feed])[0])


def _unknown(texts: Sequence[str]) -> str:
    return f"there is no dead letter {', '.join(texts)} (any more); {_LIST} shows what there is"


def _say_dropped(count: int) -> None:
    say(f"{count} dead letter{'' if count == 1 else 's'} dropped")


def _say_letters(letters: Sequence[DeadLetter], now: datetime) -> None:
    rows = [(letter.id, _age(letter, now), escaped(letter.reason)) for letter in letters]
    say_table(("id", "age", "reason"), rows, numbers=("age",), unbroken=("id", "age"))


def _age(letter: DeadLetter, now: datetime) -> str:
    return ago((now - datetime.fromisoformat(letter.at)).total_seconds())


def _cut(found: Opened) -> str:
    if found.whole:
        return ""
    return ", the first of more" if found.whole is False else ", perhaps the first of more"
