"""``poller pause``, ``resume``, ``resync``, ``release`` and ``feeds forget``: commands to one feed.

The process that polls the feed handles a command and replies; if no daemon runs, pausing and resuming take effect all
the same. ``forget`` deletes the stored data of a feed that no configuration has any more.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from poller.cli.options import CommandLine, Feed, GlobalOptions, Yes, confirm, operator, run_loop, text_of
from poller.cli.output import count, escaped, warn, write_line
from poller.errors import ConfigurationError, PollerError

if TYPE_CHECKING:
    from poller.config.settings import Settings
    from poller.control.commands import CommandResult
    from poller.control.orphans import ForgottenFeed, OrphanedFeed

_EFFECTS: Final = {
    "pause": "paused; no round begins until `poller resume {feed}`",
    "resume": "resumed",
    "release": "the next round publishes what was held",
    "resync": "the next round reads it in full; nothing is published unless something differs",
    "anew": (
        "the next round discards all that is known of it and publishes all its records as a baseline; "
        "`poller replay SUBSCRIPTION {feed} --from 10m` (or --from earliest, if the stream begins later) delivers "
        "that to a subscription"
    ),
}
# These take effect even if no daemon polls.
_IMMEDIATE: Final = {
    "pause": f"{_EFFECTS['pause']}; no daemon polls now",
    "resume": "resumed; the next daemon polls it, none runs now",
}

Wait = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        help="Wait until it is done, or not at all. Default: until a daemon has begun, at most 5 s.",
        show_default=False,
    ),
]

app = CommandLine()
feeds_app = CommandLine(name="feeds", help="Delete feeds that no configuration has any more.")


@app.command(example='pause acme/contractTypes --reason "API is moving"')
async def pause(
    options: GlobalOptions,
    feed: Feed,
    *,
    reason: Annotated[str, typer.Option(help="Shown by poller status.", show_default=False)] = "",
    wait: Wait = None,
) -> bool:
    """Pause a feed in all processes until resumed."""
    return await _submit(options, feed, "pause", wait=wait, reason=text_of(reason))


@app.command(example="resume acme/contractTypes")
async def resume(options: GlobalOptions, feed: Feed, *, wait: Wait = None) -> bool:
    """Resume a paused feed and poll it immediately."""
    return await _submit(options, feed, "resume", wait=wait)


@app.command(example="release acme/contractTypes")
async def release(options: GlobalOptions, feed: Feed, *, wait: Wait = None) -> bool:
    """Approve removals held by the safety limit. Also approves changes held after a new base_url."""
    return await _submit(options, feed, "release", wait=wait)


@app.command(example="resync acme/contractTypes --wait")
def resync(
    options: GlobalOptions,
    feed: Feed,
    *,
    anew: Annotated[
        bool, typer.Option("--anew", help="Discard all that is known of it and publish all of it on its stream.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --anew: do not ask for confirmation.")] = False,
    wait: Wait = None,
) -> bool:
    """Read a feed again in full. Publishes only what differs."""
    if anew and not yes and not _is_confirmed(options, feed):
        raise PollerError(f"{feed}: nothing was changed")
    return run_loop(_submit(options, feed, "anew" if anew else "resync", wait=wait))


def _is_confirmed(options: GlobalOptions, name: str) -> bool:
    source, feed = options.settings().find_feed(name)
    what = (
        f"{source.feed_id(feed)}: discard what is known of it and publish all its records again on its stream "
        "(a subscription gets them by poller replay)"
    )
    without_terminal = f"{what}: add --yes to do so, for there is no terminal to ask on"
    if not sys.stdin.isatty():
        raise ConfigurationError(without_terminal)
    return confirm(f"{what}?", without_terminal)


async def _submit(options: GlobalOptions, name: str, word: str, *, wait: bool | None, reason: str = "") -> bool:
    """Submit a command and show the reply; False: the round that handled it has failed.

    Args:
        options: the global options.
        name: of the feed.
        word: the command.
        wait: True: until it is done; False: not at all; None: until a daemon has begun.
        reason: of a pause.

    Raises:
        ConfigurationError: there is no such feed.
        PollerError: the command has no effect on the feed as it is, or the store does not answer.
    """
    from datetime import timedelta

    from poller.control.commands import PATIENCE, CommandKind, run_command
    from poller.store.session import ready_store

    settings = options.settings()
    source, feed = settings.find_feed(name)
    async with ready_store(settings) as store:
        reply = await run_command(
            store.client,
            settings,
            source.feed_id(feed),
            CommandKind(word),
            clock=store.clock,
            by=operator(),
            reason=reason,
            patience=timedelta() if wait is False else PATIENCE,
            wait=bool(wait),
        )
    return _show_reply(reply, wait=wait)


def _show_reply(reply: CommandResult, *, wait: bool | None) -> bool:
    if reply.outcome == "senseless":
        return _show_no_effect(reply)
    feed, word = reply.feed, reply.order.value
    is_immediate = reply.outcome == "no daemon" and word in _IMMEDIATE
    effect = (_IMMEDIATE if is_immediate else _EFFECTS)[word].format(feed=feed)
    if reply.before is not None:
        effect += f"; it had been {escaped(reply.before.text)}"
    write_line(f"{feed}: {effect}")
    if reply.outcome in {"done", "begun"}:
        write_line(f"{reply.member}: {escaped(reply.text)}")
    elif wait is not False and not is_immediate:
        warn(f"{feed}: {reply.text}")
    if reply.round is not None:
        return _show_round(feed, reply.round)
    return not wait or is_immediate or reply.outcome == "done"


def _show_no_effect(reply: CommandResult) -> bool:
    """A feed that is already paused, or already polled, as the command wants it, is no failure."""
    if reply.order.value == "pause" and reply.before is not None:
        write_line(f"{reply.feed}: was {escaped(reply.before.text)}")
        return True
    if reply.order.value == "resume":
        write_line(f"{reply.feed}: {reply.text}")
        return True
    raise PollerError(f"{reply.feed}: {reply.text}")


def _show_round(feed: str, result: dict[str, str | int | float | bool | None]) -> bool:
    changes = f"+{result.get('created')} ~{result.get('modified')} -{result.get('removed')}"
    summary = f"{result.get('mode')}, {result.get('records')} read, {changes}, {result.get('seconds')} s"
    failure = "" if result.get("ok") else f"; failed: {escaped(str(result.get('error')))}"
    write_line(f"{feed}: {summary}{failure}")
    return bool(result.get("ok"))


@feeds_app.callback()
def _feeds() -> None:
    pass


@feeds_app.command(example="feeds forget acme/contractTypes")
def forget(
    options: GlobalOptions,
    feed: Annotated[
        str, typer.Argument(metavar="OLD", help="As poller status shows it: SOURCE/NAME.", show_default=False)
    ],
    *,
    yes: Yes = False,
) -> None:
    """Delete what is stored of a feed that no configuration has any more: stream, pending deliveries, dead letters."""
    settings = options.settings()
    found = run_loop(_forgettable(settings, feed))
    if not yes and found.subscriptions and not _forget_confirmed(found):
        raise PollerError(f"{found.feed}: nothing was deleted")
    forgotten = run_loop(_forget(settings, found.feed))
    pending = count(forgotten.undelivered, "pending delivery", "pending deliveries")
    write_line(f"{found.feed}: forgotten; {count(forgotten.stream_length, 'event')} and {pending} deleted")


async def _forgettable(settings: Settings, feed: str) -> OrphanedFeed:
    from poller.control.orphans import forgettable
    from poller.store.session import ready_store

    async with ready_store(settings) as store:
        return await forgettable(store.client, settings, feed, now=store.clock.now())


async def _forget(settings: Settings, feed: str) -> ForgottenFeed:
    from poller.control.orphans import forget as forget_feed
    from poller.store.session import ready_store

    async with ready_store(settings) as store:
        return await forget_feed(store.client, settings, feed, clock=store.clock)


def _forget_confirmed(found: OrphanedFeed) -> bool:
    dead_letters = sum(one.dead_letters for one in found.subscriptions)
    names = ", ".join(one.subscription for one in found.subscriptions)
    pending = count(found.undelivered, "pending delivery", "pending deliveries")
    stream = f"its stream of {count(found.stream_length, 'event')}"
    what = f"{stream}, {pending} and {count(dead_letters, 'dead letter')} of {names}"
    question = f"{found.feed}: delete {what}?"
    return confirm(question, f"{found.feed}: {what} would be deleted; --yes deletes them without asking")
