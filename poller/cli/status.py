"""``poller status``: every feed and subscription, the processes that share the work, and the store.

**Invariants**

- A table fits the terminal. A problem is stated in words, with its remedy.
- Foreign text (an answer of a source or a sink, an operator's reason) cannot control the terminal.
- With ``--watch``, an unavailable store ends nothing: the last report stays, and a line says how old it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from poller.cli.options import CommandLine, Feeds, GlobalOptions, Json, WatchCommand, named_feeds, utc_now
from poller.cli.output import (
    Column,
    Line,
    console,
    escaped,
    listing,
    warn,
    width,
    wrapped,
    write_json,
    write_line,
    write_styled,
)
from poller.errors import StoreRefused, StoreUnavailable
from poller.text import ago, short_number, size

if TYPE_CHECKING:
    import asyncio

    from poller.config.settings import Settings
    from poller.control.orphans import ConfigurationDifference, OrphanedFeed
    from poller.control.status import FeedStatus, MemberStatus, StoreStatus, SubscriptionStatus
    from poller.store.session import OpenStore
    from poller.store.stats import Backlog

app = CommandLine()
T = TypeVar("T")

Unmatched = Mapping[str, Sequence[str]]
"""Sentences by the id of a subscription, see :func:`~poller.control.problems.unmatched_stored`."""

Show = Callable[["Report | None", str | None], None]
"""Shows the last report, if any, and the problem that keeps it from being updated, if any."""


@dataclass(frozen=True, slots=True)
class Report:
    """The status at one moment.

    Attributes:
        feeds: those that were named, or all.
        subscriptions: those of these feeds.
        members: the live processes.
        store: its state.
        at: the moment, by the store's clock, UTC.
        orphans: the feeds that no running configuration has.
        differences: settings that should be equal in all running processes, and are not.
        unmatched: what subscriptions choose that no feed of the configuration has, by id.
        detailed: whether feeds were named, so that everything known about them is shown.
        failure: why a part could not be read; None: all was.
    """

    feeds: Sequence[FeedStatus]
    subscriptions: Sequence[SubscriptionStatus]
    members: Sequence[MemberStatus]
    store: StoreStatus
    at: datetime
    orphans: Sequence[OrphanedFeed] = ()
    differences: Sequence[ConfigurationDifference] = ()
    unmatched: Unmatched = field(default_factory=dict)
    detailed: bool = False
    failure: StoreRefused | None = None


@app.command(cls=WatchCommand, example="status acme/contractTypes --watch 5")
async def status(
    options: GlobalOptions,
    feeds: Feeds = None,
    *,
    watch: Annotated[
        float | None,
        typer.Option(
            metavar="[SECONDS]", min=0.1, help="Repeat every SECONDS, by default 2, until Ctrl-C.", show_default=False
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show the state of feeds, subscriptions and processes. Feeds that are named are shown in detail."""
    from poller.store.session import ready_store

    settings = options.settings()
    only = named_feeds(settings, feeds) if feeds else None
    if watch is not None:
        await _watch(settings, only, watch, json=json)
        return
    async with ready_store(settings) as store:
        report = await read_report(store, settings, only)
    if json:
        write_report(report)
    else:
        for line in report_lines(report, width()):
            write_styled(line)
    if report.failure is not None:
        raise typer.Exit(1)


async def read_report(store: OpenStore, settings: Settings, only: Sequence[str] | None) -> Report:
    """The status now; of these feeds alone, where some are named.

    A part that the store refuses, as one whose key is of another type, is left out.

    Raises:
        StoreError: the store is unavailable.
    """
    from poller.control.orphans import differences, orphaned_feeds
    from poller.control.problems import unmatched_stored
    from poller.control.status import feed_statuses, member_statuses, store_status, subscription_statuses
    from poller.control.subscriptions import registry_of
    from poller.store.keys import MemberKeys
    from poller.store.members import members_seen

    failures: list[StoreRefused] = []

    async def read(part: Awaitable[T]) -> T | None:
        try:
            return await part
        except StoreRefused as error:
            failures.append(error)
            return None

    with suppress(StoreRefused):  # a user without permission to read its clock
        await store.clock.ask(store.client)
    now = store.clock.now()
    all_feeds = await feed_statuses(store.client, settings, now=now)
    kept = await read(registry_of(settings, store.client).all())
    subscribed = await subscription_statuses(store.client, settings, now=now, kept=kept) if kept else []
    seen = await read(members_seen(store.client, MemberKeys.of(settings.redis.prefix)))
    orphans = await read(orphaned_feeds(store.client, settings, now=now, seen=seen, kept=kept)) if seen and kept else []
    feeds = {one.feed: one for one in all_feeds}
    whole = Report(
        all_feeds,
        subscribed,
        member_statuses(seen.roles if seen else {}, all_feeds, subscribed),
        await store_status(store, settings.redis.durability),
        now,
        [one for one in orphans or () if only is None or one.feed in only],
        differences(seen.configurations if seen else {}),
        unmatched_stored(settings, kept) if kept else {},
        failure=failures[0] if failures else None,
    )
    if only is None:
        return whole
    theirs = [one for one in subscribed if any(feed.feed in only for feed in one.feeds)]
    return replace(whole, feeds=[feeds[name] for name in only], subscriptions=theirs, detailed=True)


def write_report(report: Report) -> None:
    """Write it as JSON, one object a line.

    First the feeds (:class:`~poller.control.status.FeedStatus`), then the subscriptions
    (:class:`~poller.control.status.SubscriptionStatus`), then ``{"members": […]}``
    (:class:`~poller.control.status.MemberStatus`) while daemons run, ``{"orphaned_feeds": […]}``
    (:class:`~poller.control.orphans.OrphanedFeed`) and ``{"configuration_differences": […]}``
    (:class:`~poller.control.orphans.ConfigurationDifference`) where there are some, last ``{"store": …}``
    (:class:`~poller.control.status.StoreStatus`).
    """
    for line in (*report.feeds, *report.subscriptions, *([{"members": report.members}] if report.members else ())):
        write_json(line)
    if report.orphans:
        write_json({"orphaned_feeds": report.orphans})
    if report.differences:
        write_json({"configuration_differences": report.differences})
    write_json({"store": report.store})
    if report.failure is not None:
        warn(f"a part cannot be read: {report.failure}")


def report_lines(report: Report, columns: int) -> Iterator[Line]:
    """The report as lines of at most ``columns`` cells."""
    if report.detailed:
        for one in report.feeds:
            yield from detail_lines(one, columns)
            yield []
    else:
        yield from feed_lines(report.feeds, report.subscriptions, columns)
        yield []
    if report.subscriptions:
        yield from subscription_lines(report.subscriptions, report.at, columns, report.unmatched)
        yield []
    if report.members or report.failure is None:
        yield from _member_lines(report.members, columns)
    orphans = (f"{one.feed}: {one.text}" for one in report.orphans)
    failures = () if report.failure is None else (f"a part cannot be read: {report.failure}",)
    differing = (one.text for one in report.differences)
    for text in (*orphans, *differing, *_store_texts(report.store), *failures):
        for line in wrapped(text, columns):
            yield [(line, "")]


def _member_lines(members: Sequence[MemberStatus], columns: int) -> Iterator[Line]:
    if not members:
        yield [("no daemon is running", "")]
        return
    yield from listing(_MEMBERS, members, columns)


def _store_texts(store: StoreStatus) -> Iterator[str]:
    problems = [one for one in store.checks if one.severity != "ok"]
    yield f"store {store.url}: {store.version or 'version unknown'}{'' if problems else ', no problems'}"
    for one in problems:
        yield f"store {one.severity}: {one.text}"


def feed_lines(found: Sequence[FeedStatus], subscribed: Iterable[SubscriptionStatus], width: int) -> Iterator[Line]:
    """A table of the feeds, one of their streams, and the problems."""
    lags = _lags(subscribed)
    lag = Column("lag", right=True, leave=4, cell=lambda one: _age(lags.get(one.feed)))
    yield from listing((*_FEEDS, lag), found, width)
    if any(one.round is not None or one.stream_length for one in found):
        yield []
        yield from listing(_STREAMS, found, width)
    from poller.control.problems import feed_problems

    problems = [f"{one.feed}: {text}" for one in found for text in feed_problems(one)]
    quarantining = [one.feed for one in found if one.quarantined]
    if quarantining:
        which = f" {quarantining[0]}" if len(quarantining) == 1 else ""
        problems.append(f"quarantined records: poller dead-letters list{which}")
    if problems:
        yield []
    for text in problems:
        for line in wrapped(escaped(text), width):
            yield [(line, "")]


def detail_lines(one: FeedStatus, width: int) -> Iterator[Line]:
    """All that is known about a feed, one value a line."""
    for name, text in _details(one):
        first, *more = wrapped(escaped(text), max(width - 16, 8), indent="")
        yield [(f"{name:<14}  ", "dim"), (first, _FEED_STATES.get(text, "") if name == "state" else "")]
        for line in more:
            yield [(" " * 16 + line, "")]


def _lags(subscribed: Iterable[SubscriptionStatus]) -> dict[str, float]:
    """The longest lag of a subscription at each feed, in seconds."""
    lags: dict[str, float] = {}
    for one in subscribed:
        for feed in one.feeds:
            lags[feed.feed] = max(lags.get(feed.feed, 0.0), feed.seconds or 0.0)
    return lags


def _details(one: FeedStatus) -> Iterator[tuple[str, str]]:
    from poller.control.problems import feed_problems
    from poller.control.status import FEED_VALUES

    yield "feed", one.feed
    yield "state", one.state
    for text in feed_problems(one):
        yield "", text
    for value in FEED_VALUES:
        detail = value.detail(one) if value.detail else None
        if detail is not None:
            yield value.name, detail


def subscription_lines(
    found: Sequence[SubscriptionStatus], now: datetime, width: int, unmatched: Unmatched
) -> Iterator[Line]:
    """A table of their states, and the problems."""
    yield from listing(_SUBSCRIPTIONS, found, width)
    yield from _problem_lines(found, now, width, unmatched)


def list_lines(found: Sequence[SubscriptionStatus], now: datetime, width: int, unmatched: Unmatched) -> Iterator[Line]:
    """A table of their states, feeds and sinks, and the problems."""
    yield from listing(_LIST, found, width)
    yield from _problem_lines(found, now, width, unmatched)


def backlog_lines(feeds: Sequence[Backlog], width: int) -> Iterator[Line]:
    """A table of what waits at each feed."""
    yield from listing(_BACKLOGS, feeds, width)


def _problem_lines(
    found: Sequence[SubscriptionStatus], now: datetime, width: int, unmatched: Unmatched
) -> Iterator[Line]:
    from poller.control.problems import subscription_problems

    for one in found:
        backfills = [f"backfill in progress: {one.backfill_text}"] if one.backfill_text else []
        for text in (*subscription_problems(one, now), *unmatched.get(one.subscription, ()), *backfills):
            for line in wrapped(escaped(f"{one.subscription}: {text}"), width):
                yield [(line, "")]


# Cells, and the columns of the tables.


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _age(seconds: float | None) -> str:
    return "-" if not seconds else ago(seconds)


def _size(one: FeedStatus) -> str:
    return "-" if one.stream_bytes is None else size(one.stream_bytes)


def _feeds(one: SubscriptionStatus) -> str:
    return "all" if one.all_feeds else ", ".join(feed.feed for feed in one.feeds)


_FEED_STATES: Final = {"ok": "green", "failing": "red", "held": "yellow", "paused": "yellow", "reading": "cyan"}
_FEEDS: Final = (
    Column("feed", least=12, cell=lambda one: one.feed),
    Column("state", styles=_FEED_STATES, cell=lambda one: one.state),
    Column("mode", leave=2, cell=lambda one: one.mode or "-"),
    Column(
        "age", right=True, leave=1, cell=lambda one: "-" if one.good_age_seconds is None else ago(one.good_age_seconds)
    ),
    Column("next", right=True, leave=3, cell=lambda one: one.next_text),
    Column("records", right=True, leave=5, cell=lambda one: short_number(one.records)),
)
_STREAMS: Final = (
    Column("stored of", least=12, cell=lambda one: one.feed),
    Column("last round", leave=1, cell=lambda one: one.round_text),
    Column("events", right=True, leave=2, cell=lambda one: short_number(one.events)),
    Column("in stream", right=True, leave=3, cell=lambda one: short_number(one.stream_length)),
    Column("size", right=True, leave=4, cell=_size),
)
_STATES: Final = {"active": "green", "failing": "red", "paused": "yellow", "new": "cyan"}
_PARKED: Final = Column("parked", right=True, leave=2, cell=lambda one: str(one.parked))
_DEAD: Final = Column("dead", right=True, leave=3, cell=lambda one: str(one.dead_letters))
_COUNTS: Final = (
    Column("lag", right=True, cell=lambda one: _or_dash(one.lag_entries)),
    Column("age", right=True, leave=1, cell=lambda one: _age(one.lag_seconds)),
    _PARKED,
    _DEAD,
)
_STATE: Final = Column("state", styles=_STATES, cell=lambda one: one.state)
_SUBSCRIPTIONS: Final = (Column("subscription", least=12, cell=lambda one: one.subscription), _STATE, *_COUNTS)
_LIST: Final = (
    Column("id", least=24, cell=lambda one: one.subscription),
    Column("from", leave=5, cell=lambda one: one.origin),
    _STATE,
    *_COUNTS,
    Column("feeds", least=5, leave=4, cell=_feeds),
    Column("sink", least=14, leave=6, cell=lambda one: escaped(one.sink)),
)
_BACKLOGS: Final = (
    Column("feed", least=12, cell=lambda one: one.feed),
    Column("lag", right=True, cell=lambda one: _or_dash(one.entries)),
    Column("age", right=True, leave=1, cell=lambda one: _age(one.seconds)),
    _PARKED,
    _DEAD,
    Column("delivered by", least=12, leave=4, cell=lambda one: one.owner or "no process"),
)
_MEMBERS: Final = (
    Column("process", least=12, cell=lambda one: one.member),
    Column("roles", leave=1, cell=lambda one: ", ".join(one.roles) or "leaving"),
    Column("feeds", right=True, cell=lambda one: str(one.feeds)),
    Column("deliveries", right=True, leave=2, cell=lambda one: str(one.deliveries)),
)


# --watch


async def _watch(settings: Settings, only: Sequence[str] | None, seconds: float, *, json: bool) -> None:
    """Show the status repeatedly until SIGINT or SIGTERM."""
    import asyncio

    from poller.lifecycle import ended, first_of, stopped_by_signals

    with stopped_by_signals() as stop, _json_screen() if json else _screen() as show:
        watching = asyncio.create_task(_refresh(settings, only, seconds, show, stop), name="status")
        try:
            await first_of(stop, watching)
        finally:
            await ended(watching)


async def _refresh(
    settings: Settings, only: Sequence[str] | None, seconds: float, show: Show, stop: asyncio.Event
) -> None:
    from poller.clock import Clock
    from poller.store.session import clock_of, opened_store

    clock = clock_of(settings, Clock())
    last, read_at = None, clock.monotonic()
    async with opened_store(settings, clock=clock) as store:
        while not stop.is_set():
            try:
                last, read_at = await read_report(store, settings, only), clock.monotonic()
                show(last, None)
            except StoreUnavailable as error:
                age = "" if last is None else f"; last read {ago(clock.monotonic() - read_at)} ago"
                show(last, f"store unavailable, retrying: {error}{age}")
            await clock.wait(stop, seconds)


@contextmanager
def _screen() -> Iterator[Show]:
    terminal = console()
    if terminal is None:
        yield _write_below
        return
    from rich.live import Live
    from rich.text import Text

    with Live(console=terminal, auto_refresh=False, screen=False, vertical_overflow="crop") as live:

        def in_place(report: Report | None, problem: str | None) -> None:
            lines = [Text.assemble(*line) for line in _watch_lines(report, problem, width())]
            live.update(Text("\n", no_wrap=True, end="").join(lines), refresh=True)

        yield in_place


@contextmanager
def _json_screen() -> Iterator[Show]:
    def show(report: Report | None, problem: str | None) -> None:
        if problem is not None:
            warn(problem)
        elif report is not None:
            write_report(report)

    yield show


def _write_below(report: Report | None, problem: str | None) -> None:
    for line in _watch_lines(None if problem else report, problem, width()):
        write_styled(line)
    write_line("")


def _watch_lines(report: Report | None, problem: str | None, columns: int) -> Iterator[Line]:
    for text in wrapped(f"{utc_now():%Y-%m-%d %H:%M:%S} UTC" + (f": {problem}" if problem else ""), columns):
        yield [(text, "bold red" if problem else "dim")]
    yield []
    if report is not None:
        yield from report_lines(report, columns)
