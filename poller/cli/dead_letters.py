"""``poller dead-letters`` and its options. What the commands do stands in modules of their own, imported late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from poller.cli.help import CommandLine
from poller.cli.options import Asked, Config, Feeds, Format, Json, Verbosity

if TYPE_CHECKING:
    from poller.cli.letter_orders import Named

app = CommandLine(
    help="Records that could not be used, and events that were given up on: lists, shows, redelivers and drops them.",
)

_ID = "As list shows it: SOURCE/NAME:ENTRY, or SOURCE/NAME:SUBSCRIPTION:ENTRY."
_Letters = Annotated[list[str] | None, typer.Argument(metavar="ID", help=_ID, show_default=False)]
_Feed = Annotated[
    str | None, typer.Option(metavar="FEED", help="With --all: which. SOURCE/NAME or NAME.", show_default=False)
]
_Subscription = Annotated[str | None, typer.Option(metavar="ID", help="Events of this one alone.", show_default=False)]


@app.command("list")
def list_(
    context: typer.Context,
    feeds: Feeds = None,
    *,
    subscription: _Subscription = None,
    json: Json = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="So many at most, the newest.")] = 100,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Lists them, the newest last."""
    from poller.cli.letters import show_list  # noqa: PLC0415 -- late

    asked = Asked.by(context, config, log_format, log_level)
    show_list(asked, feeds, subscription=subscription, limit=limit, json=json)


@app.command()
def show(
    context: typer.Context,
    letter: Annotated[str, typer.Argument(metavar="ID", help=_ID)],
    *,
    raw: Annotated[bool, typer.Option("--raw", help="Write its bytes as they are, and nothing else.")] = False,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Shows one: why it is one, how it was tried, and what it holds."""
    from poller.cli.letters import show_one  # noqa: PLC0415 -- late

    show_one(Asked.by(context, config, log_format, log_level), letter, raw=raw)


@app.command()
def redeliver(
    context: typer.Context,
    letters: _Letters = None,
    *,
    subscription: _Subscription = None,
    feed: _Feed = None,
    all_: Annotated[bool, typer.Option("--all", help="All events of the subscription.")] = False,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Has events delivered once more, from their first attempt on."""
    from poller.cli.letter_orders import redeliver as command  # noqa: PLC0415 -- late

    named = _named(letters, subscription, feed, all_=all_)
    if named is None or (not named.letters and named.subscription is None):
        raise typer.BadParameter("expected ID..., or --subscription ID --all", context)
    command(Asked.by(context, config, log_format, log_level), named)


@app.command()
def drop(
    context: typer.Context,
    letters: _Letters = None,
    *,
    subscription: _Subscription = None,
    feed: _Feed = None,
    all_: Annotated[
        bool, typer.Option("--all", help="All events of the subscription, or all records of the feed.")
    ] = False,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Deletes them. A record that comes again is kept anew."""
    from poller.cli.letter_orders import drop as command  # noqa: PLC0415 -- late

    named = _named(letters, subscription, feed, all_=all_)
    if named is None:
        raise typer.BadParameter("expected ID..., --feed FEED --all, or --subscription ID --all", context)
    command(Asked.by(context, config, log_format, log_level), named)


def _named(letters: list[str] | None, subscription: str | None, feed: str | None, *, all_: bool) -> Named | None:
    """What is meant; None where that is not said, or said in two ways."""
    from poller.cli.letter_orders import Named  # noqa: PLC0415 -- late

    narrowed = subscription is not None or feed is not None
    if bool(letters) == all_ or narrowed != all_:
        return None
    return Named(tuple(letters or ()), subscription, feed)
