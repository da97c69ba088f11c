"""``poller pause``, ``resume``, ``resync`` and ``release`` and their options. What they do is imported late."""

from __future__ import annotations

from typing import Annotated

import typer

from poller.cli.options import Asked, Config, Feed, Format, Verbosity, Wait

app = typer.Typer(rich_markup_mode=None)


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
    """Lets the removals through that a round has held."""
    _give(Asked.by(context, config, log_format, log_level), feed, "release", wait=wait)


@app.command()
def resync(
    context: typer.Context,
    feed: Feed,
    *,
    anew: Annotated[bool, typer.Option("--anew", help="Forget what is known of it, and publish all of it.")] = False,
    wait: Wait = None,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Reads a feed again in full. Publishes nothing unless something differs."""
    _give(Asked.by(context, config, log_format, log_level), feed, "anew" if anew else "resync", wait=wait)


def _give(asked: Asked, feed: str, word: str, *, wait: bool | None, reason: str = "") -> None:
    from poller.cli.orders import order  # noqa: PLC0415 -- late
    from poller.service.ordering import Order  # noqa: PLC0415 -- late

    if not order(asked, feed, Order(word), wait=wait, reason=reason):
        raise typer.Exit(1)
