"""``poller pause``, ``resume``, ``resync`` and ``release`` and their options. What they do is imported late."""

from __future__ import annotations

from typing import Annotated

import typer

from poller.cli.help import CommandLine
from poller.cli.options import Asked, Config, Feed, Format, Verbosity, Wait

app = CommandLine()
feeds_app = CommandLine(help="Feeds that the configuration has no more.")


@app.command()
def pause(
    context: typer.Context,
    feed: Feed,
    *,
    reason: Annotated[str, typer.Option(help="Why; the status shows it.", show_default=False)] = "",
    wait: Wait = None,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Polls a feed no more, in any process, until it is resumed."""
    _give(Asked.by(context, config, log_format, log_level), feed, "pause", wait=wait, reason=reason)


@app.command()
def resume(
    context: typer.Context,
    feed: Feed,
    *,
    wait: Wait = None,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Polls a paused feed again, at once."""
    _give(Asked.by(context, config, log_format, log_level), feed, "resume", wait=wait)


@app.command()
def release(
    context: typer.Context,
    feed: Feed,
    *,
    wait: Wait = None,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Publishes what a round has held: removals, or what differs at another base_url."""
    _give(Asked.by(context, config, log_format, log_level), feed, "release", wait=wait)


@app.command()
def resync(
    context: typer.Context,
    feed: Feed,
    *,
    anew: Annotated[bool, typer.Option("--anew", help="Forget what is known of it, and publish all of it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --anew: do not ask.")] = False,
    wait: Wait = None,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Reads a feed again in full. Publishes nothing unless something differs."""
    asked = Asked.by(context, config, log_format, log_level)
    if anew and not yes:
        from poller.cli.orders import is_confirmed  # noqa: PLC0415 -- late

        if not is_confirmed(asked, feed):
            raise typer.Exit(1)
    _give(asked, feed, "anew" if anew else "resync", wait=wait)


@feeds_app.callback()
def _feeds() -> None:
    pass


@feeds_app.command()
def forget(
    context: typer.Context,
    feed: Annotated[str, typer.Argument(metavar="OLD", help="As status names it: SOURCE/NAME.", show_default=False)],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Deletes what is kept of a feed that no configuration has: its stream, and what waits there."""
    from poller.cli.feed_removal import forget_feed  # noqa: PLC0415 -- late

    forget_feed(Asked.by(context, config, log_format, log_level), feed, sure=yes)


def _give(asked: Asked, feed: str, word: str, *, wait: bool | None, reason: str = "") -> None:
    from poller.cli.orders import order  # noqa: PLC0415 -- late
    from poller.control.commands import Order  # noqa: PLC0415 -- late

    if not order(asked, feed, Order(word), wait=wait, reason=reason):
        raise typer.Exit(1)
