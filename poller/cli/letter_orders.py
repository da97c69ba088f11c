"""``poller dead-letters redeliver`` and ``drop``: what becomes of dead letters.

Law: each that is named is looked at before any is touched; what cannot be done is told, and the rest is done.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from poller.cli.letters import LIST, stored_feeds, understood, unknown
from poller.cli.loop import run
from poller.cli.options import Asked, named_feeds
from poller.cli.output import say
from poller.config.settings import Settings
from poller.control.dead_letters import DeadLetters, RedeliveryResult
from poller.errors import ConfigurationError, PollerError
from poller.store.dead_letters import LetterId
from poller.store.session import STORE_PATIENCE, opened_store, until_ready


class Named(msgspec.Struct, frozen=True):
    """Which dead letters are meant: those of these ids, or all events of a subscription, or all records of a feed.

    Attributes:
        letters: ids as they were given.
        subscription: its id.
        feed: with a subscription: its events of this feed alone.
    """

    letters: tuple[str, ...] = ()
    subscription: str | None = None
    feed: str | None = None


def redeliver(asked: Asked, named: Named) -> None:
    """Have them delivered once more, and say how many.

    Raises:
        ConfigurationError: something is set up wrongly, or one of them is no id of an event; none is touched.
        PollerError: some could not be redelivered, the others are; or the store is away.
    """
    asked.set_up_logs("error")
    became = run(_redeliver(asked.settings(), named))
    say(f"{_counted(became.moved)} to be delivered once more")
    if problems := "; ".join(_not_redelivered(became)):
        raise PollerError(problems)


def drop(asked: Asked, named: Named) -> None:
    """Drop them, each once, and say how many.

    Raises:
        ConfigurationError: something is set up wrongly, or one of them is no id of a configured feed; none is dropped.
        PollerError: some are not there, the others are dropped; or the store is away.
    """
    asked.set_up_logs("error")
    count, missing = run(_drop(asked.settings(), named))
    say(f"{_counted(count)} dropped")
    if missing:
        raise PollerError(unknown([one.text for one in missing]))


async def _redeliver(settings: Settings, named: Named) -> RedeliveryResult:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        letters, stored = DeadLetters(store.client, settings.redis.prefix), await stored_feeds(store.client, settings)
        wanted: Sequence[LetterId] = _wanted(settings, named.letters, stored)
        records = [one.text for one in wanted if one.subscription is None]
        if records:
            raise ConfigurationError(
                f"{', '.join(records)}: a record that could not be used; only events can be delivered once more "
                f"(drop it, and it is read anew when it comes again)"
            )
        if named.subscription is not None:
            wanted = await letters.all_of(named.subscription, _feeds(settings, named, stored))
        return await letters.redeliver(wanted)


async def _drop(settings: Settings, named: Named) -> tuple[int, list[LetterId]]:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        letters, stored = DeadLetters(store.client, settings.redis.prefix), await stored_feeds(store.client, settings)
        wanted, feeds = _wanted(settings, named.letters, stored), _feeds(settings, named, stored)
        if named.subscription is not None:
            return await letters.drop_events(await letters.all_of(named.subscription, feeds)), []
        if named.feed is not None:
            return await letters.drop_records(feeds[0]), []
        missing = [one for one in wanted if not await letters.drop(one)]
        return len(wanted) - len(missing), missing


def _wanted(settings: Settings, texts: Sequence[str], stored: Sequence[str]) -> list[LetterId]:
    return list(dict.fromkeys(understood(settings, text, stored) for text in texts))


def _feeds(settings: Settings, named: Named, stored: Sequence[str]) -> Sequence[str]:
    if named.feed is None:
        return stored
    return (named.feed,) if named.feed in stored else named_feeds(settings, [named.feed])


def _not_redelivered(became: RedeliveryResult) -> list[str]:
    problems = []
    if became.absent:
        problems.append(unknown([one.text for one in became.absent]))
    if became.empty:
        problems.append(f"{', '.join(one.text for one in became.empty)}: its event is not kept any more")
    if became.overruns:
        problems.append(
            f"{', '.join(one.text for one in became.overruns)}: these events went with the oldest of their stream and "
            f"are kept nowhere; the source knows what their records are now (drop it when that is dealt with)"
        )
    if became.full:
        problems.append(
            f"{_counted(len(became.full))} left where they are, for a thousand deliveries of theirs wait already; "
            f"give the order again when these are done ({LIST} shows what is left)"
        )
    return problems


def _counted(count: int) -> str:
    return f"{count} dead letter{'' if count == 1 else 's'}"
