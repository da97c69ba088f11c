"""``poller dead-letters`` and its options. What the commands do stands in :mod:`poller.cli.letters`, imported late."""

from __future__ import annotations

from typing import Annotated

import typer

from poller.cli.options import Asked, Config, Feeds, Format, Json, Verbosity

app = typer.Typer(help="Records that could not be used: lists, shows and drops them.", rich_markup_mode=None)

_ID = "As list shows it: SOURCE/NAME:ENTRY."


@app.command("list")
def list_(
    context: typer.Context,
    feeds: Feeds = None,
    *,
    json: Json = False,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="So many at most, the newest.")] = 100,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Lists them, the newest last."""
    from poller.cli.letters import show_list  # noqa: PLC0415 -- late

    show_list(Asked.by(context, config, log_format, log_level), feeds, limit=limit, json=json)


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
    """Shows one: why it could not be used, and what was received."""
    from poller.cli.letters import show_one  # noqa: PLC0415 -- late

    show_one(Asked.by(context, config, log_format, log_level), letter, raw=raw)


@app.command()
def drop(
    context: typer.Context,
    letters: Annotated[list[str] | None, typer.Argument(metavar="ID", help=_ID, show_default=False)] = None,
    *,
    feed: Annotated[
        str | None, typer.Option(metavar="FEED", help="With --all: whose. SOURCE/NAME or NAME.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All that the feed has.")] = False,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Deletes them. What comes again is kept anew."""
    from poller.cli.letters import drop_all, drop_some  # noqa: PLC0415 -- late

    asked = Asked.by(context, config, log_format, log_level)
    if letters and feed is None and not all_:
        drop_some(asked, letters)
    elif feed is not None and all_ and not letters:
        drop_all(asked, feed)
    else:
        raise typer.BadParameter("expected ID..., or --feed FEED --all", context)
