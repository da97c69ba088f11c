"""The commands and their options. What each of them does stands in its own module, imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poller.cli import dead_letters, feed_orders, keys, subscriptions
from poller.cli.completing import subscriptions as subscription_ids
from poller.cli.help import CommandLine, GroupedCommands
from poller.cli.optional_seconds import OptionalSeconds
from poller.cli.options import Asked, Config, Document, Faults, Feeds, Format, Json, Profiles, Verbosity

app = CommandLine(
    cls=GroupedCommands,
    help="Turns a polled API into CloudEvents on Redis streams, exactly once, and webhooks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = CommandLine(help="The configuration file: prints a commented example.")


app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(keys.app, name="keys")
app.add_typer(config_app, name="config")
app.add_typer(feed_orders.app)
app.add_typer(feed_orders.feeds_app, name="feeds")


def _show_version(asked: bool) -> None:  # noqa: FBT001 -- typer calls it with the value alone
    if asked:
        from poller import __version__  # noqa: PLC0415 -- late: reads the package's metadata

        typer.echo(f"poller {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    *,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
    version: Annotated[  # noqa: ARG001 -- its callback does it
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    context.obj = Asked(config, log_format, log_level)


@app.command()
def demo(
    context: typer.Context,
    *,
    seconds: Annotated[float | None, typer.Option(min=0, help="Default: until Ctrl-C.", show_default=False)] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Leave a configuration, token, secret and receiver to go on with.", show_default=False
        ),
    ] = None,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """The whole system on one machine, webhooks included, nothing to configure."""
    from poller.cli.demo import demo as command  # noqa: PLC0415 -- late

    command(Asked.by(context, config, log_format, log_level), seconds=seconds, kept=keep)


@app.command()
def run(
    context: typer.Context,
    *,
    only: Annotated[
        str | None, typer.Option(metavar="ROLES", help="Some of poll,deliver,serve. Default: all that there are.")
    ] = None,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """The daemon: polls every feed and delivers to every subscription, until told to stop."""
    from poller.cli.ending import end_at_once_when_told  # noqa: PLC0415 -- late

    end_at_once_when_told()
    from poller.cli.run import run as command  # noqa: PLC0415 -- late

    command(Asked.by(context, config, log_format, log_level), only=only)


@app.command()
def once(
    context: typer.Context,
    feeds: Feeds = None,
    *,
    json: Json = False,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """One round for every feed, or those named. Exit code 1 if any failed."""
    from poller.cli.once import once as command  # noqa: PLC0415 -- late

    _exit(good=command(Asked.by(context, config, log_format, log_level), feeds, json=json))


@app.command()
def sandbox(
    context: typer.Context,
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0: any that is free.")] = 8090,
    records: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Records to begin with, of all resources together.")
    ] = 500,
    qualifications: Annotated[
        int | None, typer.Option(min=1, help="How many have achievements. Default: as befits the records.")
    ] = None,
    changes_per_second: Annotated[float, typer.Option(min=0, max=100_000, help="Changes made by itself.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same records and changes.")] = 1,
    token: Annotated[str, typer.Option(help="The bearer token that it asks for.")] = "sandbox",  # noqa: S107 -- public
    profile: Profiles = None,
    faults: Faults = None,
    show: Annotated[bool, typer.Option("--list", help="Show all profiles, and exit.")] = False,
    json: Json = False,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """The API, simulated over real HTTP."""
    from poller.cli.sandbox import sandbox as command  # noqa: PLC0415 -- late
    from poller.cli.sandbox import show_profiles  # noqa: PLC0415 -- late

    if show:
        show_profiles(json=json)
        return
    command(
        Asked.by(context, config, log_format, log_level),
        port=port,
        records=records,
        changes_per_second=changes_per_second,
        seed=seed,
        token=token,
        profiles=profile or (),
        faults=faults or (),
        qualifications=qualifications,
    )


@app.command()
def check(
    context: typer.Context, *, config: Config = None, log_format: Format = None, log_level: Verbosity = None
) -> None:
    """Says what is configured and whether it answers. Changes nothing."""
    from poller.cli.check import check_all  # noqa: PLC0415 -- late

    _exit(good=check_all(Asked.by(context, config, log_format, log_level)))


@app.command(cls=OptionalSeconds)
def status(
    context: typer.Context,
    feeds: Feeds = None,
    *,
    watch: Annotated[
        float | None,
        typer.Option(
            metavar="[SECONDS]", min=0.1, help="Again and again, every 2 s, until Ctrl-C.", show_default=False
        ),
    ] = None,
    json: Json = False,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Every feed and subscription: state, last round, lag, errors; details of the feeds that are named."""
    asked = Asked.by(context, config, log_format, log_level)
    if watch is not None:
        from poller.cli.watching import watch as again  # noqa: PLC0415 -- late

        again(asked, feeds, seconds=watch, json=json)
        return
    from poller.cli.status import status as command  # noqa: PLC0415 -- late

    command(asked, feeds, json=json)


@app.command()
def replay(
    context: typer.Context,
    subscription: Annotated[
        str, typer.Argument(metavar="SUBSCRIPTION", help="Its id.", autocompletion=subscription_ids)
    ],
    feeds: Feeds = None,
    *,
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="ID|TIME|earliest", help="An entry, RFC 3339, or so long ago (2h).", show_default=False
        ),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="ID|TIME", help="Default: all that it has been given.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show how far it is, until it is done; alone: one under way.")
    ] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the replay that is under way.")] = False,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Delivers past events once more, with the same ids."""
    from poller.cli.replay import cancel as stop  # noqa: PLC0415 -- late
    from poller.cli.replay import join  # noqa: PLC0415 -- late
    from poller.cli.replay import replay as command  # noqa: PLC0415 -- late

    asked = Asked.by(context, config, log_format, log_level)
    if cancel and start is None and end is None and not wait:
        stop(asked, subscription, feeds)
    elif start is not None and not cancel:
        command(asked, subscription, feeds, start=start, end=end, wait=wait)
    elif wait and not cancel and end is None:
        join(asked, subscription, feeds)
    else:
        raise typer.BadParameter(
            "expected --from ID|TIME, --wait for one that is under way, or --cancel alone", context
        )


@app.command()
def tail(
    context: typer.Context,
    feeds: Feeds = None,
    *,
    start: Annotated[
        str,
        typer.Option("--from", metavar="ID|TIME|now|earliest", help="After the entry ID, or since then: RFC 3339, 2h."),
    ] = "now",
    types: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="TYPE", help="A type, a pattern such as *.removed.v1, or created, modified, removed."
        ),
    ] = None,
    subjects: Annotated[
        list[str] | None,
        typer.Option("--subject", metavar="ID", help="A record's id, its first 8 characters, or a pattern."),
    ] = None,
    changed: Annotated[
        list[str] | None, typer.Option(metavar="POINTER", help="Where this, or something below it, has changed.")
    ] = None,
    operations: Annotated[
        bool, typer.Option("--operations", help="The daemon's own events; with FEED, these as well.")
    ] = False,
    json: Json = False,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """Follows the event streams until Ctrl-C. An option that is given several times means any of these."""
    from poller.cli.choosing import Choice  # noqa: PLC0415 -- late
    from poller.cli.tail import tail as command  # noqa: PLC0415 -- late

    command(
        Asked.by(context, config, log_format, log_level),
        feeds,
        start=start,
        json=json,
        choice=Choice(tuple(types or ()), tuple(subjects or ()), tuple(changed or ())),
        operations=operations,
    )


@app.command()
def schema(
    context: typer.Context,
    document: Annotated[
        Document, typer.Argument(metavar="[DOCUMENT]", help="asyncapi, events or config.")
    ] = Document.ASYNCAPI,
    *,
    config: Config = None,
    log_format: Format = None,
    log_level: Verbosity = None,
) -> None:
    """AsyncAPI 3 document, JSON Schemas of events or configuration."""
    from poller.cli.schema import schema as command  # noqa: PLC0415 -- late

    command(Asked.by(context, config, log_format, log_level), document.value)


@config_app.callback()
def _config() -> None:
    """Keep ``example`` a command of its own, though there is no other."""


@config_app.command("example")
def config_example(
    *,
    config: Config = None,  # noqa: ARG001 -- every command takes these
    log_format: Format = None,  # noqa: ARG001 -- likewise
    log_level: Verbosity = None,  # noqa: ARG001 -- likewise
) -> None:
    """Prints a commented poller.toml with every key."""
    from importlib.resources import files  # noqa: PLC0415 -- late

    typer.echo((files("poller") / "config" / "example.toml").read_text("utf-8"), nl=False)


def _exit(*, good: bool) -> None:
    if not good:
        raise typer.Exit(1)
