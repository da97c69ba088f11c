"""``poller subscriptions`` and its options. What the commands do stands in modules of their own, imported late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poller.cli.completing import subscriptions as known
from poller.cli.help import CommandLine
from poller.cli.options import Asked, Config, Format, Json, Verbosity

app = CommandLine(help="Webhook subscriptions: who gets events, and how that goes.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The subscription's id.", autocompletion=known)]
_Texts = list[str] | None


@app.command("list")
def list_(
    context: typer.Context,
    *,
    json: Json = False,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Lists them: state, lag, what waits, where to."""
    from poller.cli.subscribed import show_list  # noqa: PLC0415 -- late

    show_list(Asked.by(context, config, log_format, log_level), json=json)


@app.command()
def show(
    context: typer.Context,
    subscription: Id,
    *,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Shows one: its settings, its state, and what waits at each feed."""
    from poller.cli.subscribed import show_one  # noqa: PLC0415 -- late

    show_one(Asked.by(context, config, log_format, log_level), subscription)


@app.command()
def add(
    context: typer.Context,
    subscription: Annotated[
        str | None, typer.Argument(metavar="ID", help="Lower-case letters, digits and -.", show_default=False)
    ] = None,
    sink: Annotated[
        str | None, typer.Argument(metavar="SINK", help="The URL to send events to.", show_default=False)
    ] = None,
    *,
    feed: Annotated[
        _Texts, typer.Option(metavar="FEED", help="Its events; may be repeated. Default: all.", show_default=False)
    ] = None,
    type_: Annotated[
        _Texts,
        typer.Option("--type", metavar="TYPE", help="These alone; may be repeated. Default: all.", show_default=False),
    ] = None,
    filter_: Annotated[
        _Texts,
        typer.Option(
            "--filter", metavar="JSON", help='Such as {"prefix": {"subject": "7"}}; all must hold.', show_default=False
        ),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="structured, binary or batch. Default: structured.", show_default=False)
    ] = None,
    start: Annotated[str | None, typer.Option(help="now or earliest. Default: now.", show_default=False)] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second. Default: unlimited.", show_default=False)
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests in flight. Default: 8.", show_default=False)] = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="The sink may be a private address, and http://.")
    ] = False,
    secret_file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Holds a signing secret. Default: one is made.", show_default=False),
    ] = None,
    no_secret: Annotated[bool, typer.Option("--no-secret", help="Requests are not signed.")] = False,
    header: Annotated[
        _Texts, typer.Option(metavar="NAME: VALUE", help="Goes with each request; may be repeated.", show_default=False)
    ] = None,
    from_json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-", help="Everything from a JSON object, keys as in the configuration.", show_default=False
        ),
    ] = None,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Adds one while the daemon runs; its signing secret is shown once."""
    from poller.cli.subscribing import Wanted, add_one  # noqa: PLC0415 -- late

    wanted = Wanted(
        {
            "id": subscription,
            "sink": sink,
            "types": type_ or None,
            "mode": mode,
            "start": start,
            "rate": rate,
            "concurrency": concurrency,
            "allow_private": allow_private or None,
        },
        feeds=feed or (),
        filters=filter_ or (),
        headers=header or (),
        secret_files=secret_file or (),
    )
    if from_json is not None and wanted.anything:
        raise typer.BadParameter("expected ID SINK and options, or --from-json FILE alone", context)
    asked = Asked.by(context, config, log_format, log_level)
    add_one(asked, wanted, from_json=from_json, unsigned=no_secret)


@app.command()
def remove(
    context: typer.Context,
    subscription: Id,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Deletes one that was added so, and all that waits for it."""
    from poller.cli.subscribing import remove_one  # noqa: PLC0415 -- late

    remove_one(Asked.by(context, config, log_format, log_level), subscription, sure=yes)


@app.command()
def pause(
    context: typer.Context,
    subscription: Id,
    *,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks.")] = "by command",
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Delivers nothing until it is resumed; its events wait."""
    from poller.cli.subscribing import pause_one  # noqa: PLC0415 -- late

    pause_one(Asked.by(context, config, log_format, log_level), subscription, reason=reason)


@app.command()
def resume(
    context: typer.Context,
    subscription: Id,
    *,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Goes on where it was, whatever had paused it."""
    from poller.cli.subscribing import resume_one  # noqa: PLC0415 -- late

    resume_one(Asked.by(context, config, log_format, log_level), subscription)


@app.command("test")
def sample(
    context: typer.Context,
    subscription: Id,
    *,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Sends one sample event and shows the exchange. Exit code 1 unless it was taken."""
    from poller.cli.sample import send_sample  # noqa: PLC0415 -- late

    if not send_sample(Asked.by(context, config, log_format, log_level), subscription):
        raise typer.Exit(1)
