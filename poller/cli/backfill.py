"""``poller backfill``: every live record once, as events; the daemon that delivers to the subscription does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from poller.cli.options import CommandLine, Feeds, GlobalOptions, Json, complete_subscriptions, named_feeds
from poller.cli.output import count, warn, write_json, write_line
from poller.errors import PollerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poller.clock import Clock
    from poller.control.backfill import BackfillControl, BackfillScope, RequestedBackfill

app = CommandLine()


@app.command(example="backfill rostering --wait")
async def backfill(
    options: GlobalOptions,
    subscription: Annotated[
        str, typer.Argument(metavar="SUBSCRIPTION", help="Its id.", autocompletion=complete_subscriptions)
    ],
    feeds: Feeds = None,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Show the progress until it is done.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the backfill in progress.")] = False,
    json: Json = False,
) -> bool:
    """Deliver every record that there is, once, as created events; then changes go on."""
    from poller.control.backfill import BackfillControl, backfill_scope
    from poller.store.session import ready_store

    if wait and cancel:
        raise options.usage_error("expected --wait or --cancel, not both")
    settings = options.settings()
    named = named_feeds(settings, feeds) if feeds else ()
    async with ready_store(settings) as store:
        scope = await backfill_scope(store.client, settings, subscription, named, is_begun=not cancel)
        control = BackfillControl(store.client, settings, scope)
        if cancel:
            await _cancel(control, subscription, json=json)
            return True
        found = await control.start(name=store.clock.random.randbytes(8).hex())
        _report(found, scope, json=json, wait=wait)
        if not await control.is_delivered():
            warn("no process delivers; the backfill begins with the next `poller run`")
        for one in found if wait else ():
            if one.id is not None:
                await _show_progress(control, one, store.clock, json=json)
    return any(one.id is not None for one in found)


async def _cancel(control: BackfillControl, subscription: str, *, json: bool) -> None:
    answer = await control.cancel()
    if json:
        write_json(answer)
        return
    for feed in answer.cancelled:
        write_line(f"{feed}: backfill cancelled")
    if not answer.cancelled:
        raise PollerError(f"no backfill of {subscription} is in progress")


def _report(found: Sequence[RequestedBackfill], scope: BackfillScope, *, json: bool, wait: bool) -> None:
    for one in found:
        if json:
            write_json(one)
        elif one.id is None:
            warn(f"{one.feed} was not read yet: it has no records to deliver. Try again after its first round")
        elif one.state == "under way":
            write_line(
                f"{one.feed}: a backfill is in progress and goes on, {one.done} of {one.total}; --cancel ends it"
            )
        else:
            write_line(f"{one.feed}: {count(one.total, 'record')} to deliver")
    if scope.pause is not None and not wait:
        warn(f"{scope.subscription} is paused; the records are delivered after it is resumed")


async def _show_progress(control: BackfillControl, one: RequestedBackfill, clock: Clock, *, json: bool) -> None:
    from msgspec.structs import replace

    shown = None
    async for done in control.progress(one, clock):
        if done != shown:
            if json:
                write_json(replace(one, state="under way", done=done))
            else:
                write_line(f"{one.feed}: {done} of {one.total}")
            shown = done
    if json:
        write_json(replace(one, state="completed", done=shown or 0))
        return
    write_line(f"{one.feed}: done")
    waiting = await control.parked(one.feed)
    if waiting:
        write_line(f"{one.feed}: {count(waiting, 'event')} waiting for the next attempt")
