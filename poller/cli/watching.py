"""``poller status --watch``: the status again and again, in place on a terminal, one below the other elsewhere.

Law: a store that goes away ends nothing; what was seen last stays, and a line says that it is old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from poller.cli.loop import run
from poller.cli.options import Asked, named_feeds, utc_now
from poller.cli.output import console, say, say_styled, warn, width
from poller.cli.status import Report, read_report, report_lines, say_report
from poller.cli.tables import Line, wrapped
from poller.config.settings import Settings
from poller.errors import StoreUnavailable
from poller.lifecycle import ended, stopped_by_signals, unless
from poller.store.session import OpenStore, opened_store
from poller.text import ago

Show = Callable[[Report | None, str | None], None]
"""Shows what was seen last, if anything was, and why that is not new, if it is not."""


def watch(asked: Asked, names: list[str] | None, *, seconds: float, json: bool) -> None:
    """Show the status every so many seconds until SIGINT or SIGTERM, which is how it is meant to end.

    Raises:
        ConfigurationError: something is set up wrongly, or there is no such feed.
        StoreRefused: the store does not want us.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    only = named_feeds(settings, names) if names else None
    with _shown_as_json() if json else _shown() as show:
        run(_until_told(settings, only, timedelta(seconds=seconds), show))


async def _until_told(settings: Settings, only: Sequence[str] | None, every: timedelta, show: Show) -> None:
    with stopped_by_signals() as told:
        watching = asyncio.create_task(_watch(settings, only, every, show, told), name="watching")
        stopping = asyncio.create_task(told.wait())
        try:
            await asyncio.wait({watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            await ended(watching, stopping)


async def _watch(
    settings: Settings, only: Sequence[str] | None, every: timedelta, show: Show, told: asyncio.Event
) -> None:
    clock = asyncio.get_running_loop().time
    last, seen_at = None, clock()
    async with opened_store(settings) as store:
        while not told.is_set():
            try:
                last, seen_at = await _read(store, settings, only), clock()
                show(last, None)
            except StoreUnavailable as error:
                since = "" if last is None else f"; this is from {ago(clock() - seen_at)} ago"
                show(last, f"the store is away, waiting for it: {error}{since}")
            await unless(told, every.total_seconds())


async def _read(store: OpenStore, settings: Settings, only: Sequence[str] | None) -> Report:
    return await read_report(store, settings, only)


@contextmanager
def _shown() -> Iterator[Show]:
    terminal = console()
    if terminal is None:
        yield _below
        return
    from rich.live import Live  # noqa: PLC0415 -- late, and only for terminals
    from rich.text import Text  # noqa: PLC0415 -- likewise

    with Live(console=terminal, auto_refresh=False, screen=False, vertical_overflow="crop") as live:

        def in_place(report: Report | None, away: str | None) -> None:
            lines = [Text.assemble(*line) for line in _lines(report, away, width())]
            live.update(Text("\n", no_wrap=True, end="").join(lines), refresh=True)

        yield in_place


@contextmanager
def _shown_as_json() -> Iterator[Show]:
    def show(report: Report | None, away: str | None) -> None:
        if away is not None:
            warn(away)
        elif report is not None:
            say_report(report)

    yield show


def _below(report: Report | None, away: str | None) -> None:
    for line in _lines(None if away else report, away, width()):
        say_styled(line)
    say("")


def _lines(report: Report | None, away: str | None, columns: int) -> Iterator[Line]:
    for text in wrapped(f"{utc_now():%Y-%m-%d %H:%M:%S} UTC" + (f": {away}" if away else ""), columns):
        yield [(text, "bold red" if away else "dim")]
    yield []
    if report is not None:
        yield from report_lines(report, columns)
