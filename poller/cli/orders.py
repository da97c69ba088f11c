"""``poller pause``, ``resume``, ``resync`` and ``release``: orders to a feed, answered by the process that polls it."""

from __future__ import annotations

import getpass
import socket
import sys
from datetime import timedelta
from typing import Final

import typer

from poller.cli.escaping import escaped
from poller.cli.loop import run
from poller.cli.options import Asked
from poller.cli.output import say, warn
from poller.config.settings import Settings
from poller.control.commands import PATIENCE, Answer, Order
from poller.control.commands import asked as asked_of
from poller.errors import ConfigurationError, PollerError
from poller.store.session import STORE_PATIENCE, opened_store, until_ready

_LEFT: Final = {
    Order.PAUSE: "paused; no round begins until `poller resume {feed}`",
    Order.RESUME: "is polled again",
    Order.RELEASE: "its next round publishes what was held",
    Order.RESYNC: "its next round reads it in full; nothing is published unless something differs",
    Order.ANEW: "its next round forgets what is known of it and publishes all its records as a baseline",
}
# Where no daemon polls, these hold all the same: nobody is left to carry them out.
_AT_ONCE: Final = {
    Order.PAUSE: _LEFT[Order.PAUSE],
    Order.RESUME: "not paused any more; the next daemon polls it, none runs now",
}


def order(asked: Asked, name: str, wanted: Order, *, wait: bool | None = None, reason: str = "") -> bool:
    """Leave the order and show the answer; False: the round that carried it out has failed.

    Args:
        asked: the options of every command.
        name: the feed.
        wanted: the order.
        wait: True: until it is carried out; False: for nobody; None: until a daemon says that it has begun.
        reason: of a pause.

    Raises:
        ConfigurationError: there is no such feed.
        PollerError: the order makes no sense, or the store does not answer.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    source, feed = settings.find_feed(name)
    return _show(run(_ask(settings, source.feed_id(feed), wanted, wait=wait, reason=reason)), wait=wait)


def is_confirmed(asked: Asked, name: str) -> bool:
    """Ask on the terminal whether all records of a feed are to be published again.

    Raises:
        ConfigurationError: there is no such feed, or no terminal.
    """
    source, feed = asked.settings().find_feed(name)
    what = f"{source.feed_id(feed)}: forget what is known of it and publish all its records to every subscription again"
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{what}: add --yes to do so, for there is no terminal to ask on")
    return typer.confirm(f"{what}?", err=True)


async def _ask(settings: Settings, feed_id: str, wanted: Order, *, wait: bool | None, reason: str) -> Answer:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        return await asked_of(
            store.client,
            settings,
            feed_id,
            wanted,
            now=store.clock.now,
            by=_who(),
            reason=reason,
            patience=timedelta() if wait is False else PATIENCE,
            wait=bool(wait),
        )


def _show(answer: Answer, *, wait: bool | None) -> bool:
    feed = answer.feed
    if answer.outcome == "senseless":
        return _senseless(answer)
    in_force = answer.outcome == "no daemon" and answer.order in _AT_ONCE
    left = (_AT_ONCE if in_force else _LEFT)[answer.order].format(feed=feed)
    if answer.before is not None:
        left += f"; it had been {escaped(answer.before.text)}"
    say(f"{feed}: {left}")
    if answer.outcome in {"done", "begun"}:
        say(f"{answer.member}: {escaped(answer.text)}")
    elif wait is not False and not in_force:
        warn(f"{feed}: {answer.text}")
    if answer.round is not None:
        return _shown_round(feed, answer.round)
    return not wait or in_force or answer.outcome == "done"


def _senseless(answer: Answer) -> bool:
    """Two of them are as they are wanted."""
    if answer.order is Order.PAUSE and answer.before is not None:
        say(f"{answer.feed}: was {escaped(answer.before.text)}")
        return True
    if answer.order is Order.RESUME:
        say(f"{answer.feed}: {answer.text}")
        return True
    raise PollerError(f"{answer.feed}: {answer.text}")


def _shown_round(feed: str, told: dict[str, str | int | float | bool | None]) -> bool:
    changes = f"+{told.get('created')} ~{told.get('modified')} -{told.get('removed')}"
    ended = f"{told.get('mode')}, {told.get('records')} read, {changes}, {told.get('seconds')} s"
    say(f"{feed}: {ended}" + ("" if told.get("ok") else f"; failed: {escaped(str(told.get('error')))}"))
    return bool(told.get("ok"))


def _who() -> str:
    """Who sits at this terminal, as far as the system tells."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = "an operator"
    return f"{user} on {socket.gethostname()}"
