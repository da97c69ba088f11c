"""``poller feeds forget``: the end of what the store keeps of a feed that no configuration has any more."""

from __future__ import annotations

import typer

from poller.cli.loop import run
from poller.cli.options import Asked
from poller.cli.output import say
from poller.config.settings import Settings
from poller.control.orphans import ForgottenFeed, OrphanedFeed, forget, forgettable
from poller.errors import ConfigurationError, PollerError
from poller.store.session import STORE_PATIENCE, opened_store, until_ready


def forget_feed(asked: Asked, feed: str, *, sure: bool) -> None:
    """Delete what is kept of it, if the operator agrees to what goes with it.

    Raises:
        ConfigurationError: something is set up wrongly, nothing is kept of it, the configuration at hand has it, or no
            terminal is there to ask.
        PollerError: a live process has it, the answer was no, or the store is away.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    would = run(_would_go(settings, feed))
    if not sure and would.subscriptions and not _confirmed(would):
        raise PollerError(f"{would.feed}: not forgotten")
    gone = run(_forgotten(settings, would.feed))
    went = f"{gone.stream_length} events went, {gone.undelivered} deliveries were still to be made"
    say(f"{would.feed}: forgotten; {went}")


async def _would_go(settings: Settings, feed: str) -> OrphanedFeed:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        return await forgettable(store.client, settings, feed, now=store.clock.now())


async def _forgotten(settings: Settings, feed: str) -> ForgottenFeed:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        return await forget(store.client, settings, feed, now=store.clock.now())


def _confirmed(would: OrphanedFeed) -> bool:
    letters = sum(one.dead_letters for one in would.subscriptions)
    names = ", ".join(one.subscription for one in would.subscriptions)
    what = f"{would.undelivered} deliveries that are still to be made and {letters} dead letters of {names}"
    try:
        return typer.confirm(f"{would.feed}: forget it, with {what}?", err=True)
    except typer.Abort as aborted:
        if not isinstance(aborted.__context__, EOFError):
            raise  # Ctrl-C at the prompt
        raise ConfigurationError(f"{would.feed}: {what} would go; --yes forgets it without asking") from None
