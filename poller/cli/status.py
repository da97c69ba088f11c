"""``poller status``: every feed and every subscription, how it does, and which processes share the work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec

from poller.cli.feed_lines import detail_lines, feed_lines
from poller.cli.loop import run
from poller.cli.options import Asked, named_feeds, utc_now
from poller.cli.output import say_json, say_styled, width
from poller.cli.subscription_lines import subscription_lines
from poller.cli.tables import Column, Line, table, wrapped
from poller.config.settings import Settings
from poller.control.orphans import ConfigurationDifference, OrphanedFeed, differences, orphaned_feeds
from poller.control.status import (
    FeedStatus,
    MemberStatus,
    StoreStatus,
    SubscriptionStatus,
    feed_statuses,
    member_statuses,
    store_status,
    subscription_statuses,
)
from poller.errors import StoreRefused
from poller.store.keys import MemberKeys
from poller.store.members import members_seen
from poller.store.session import STORE_PATIENCE, OpenStore, opened_store, until_ready

_MEMBERS: Final = (
    Column("process", least=12),
    Column("does", leave=1),
    Column("feeds", right=True),
    Column("deliveries", right=True, leave=2),
)


class Report(msgspec.Struct, frozen=True):
    """What was found.

    Attributes:
        feeds: those that were asked for.
        subscriptions: all, or those of these feeds.
        members: the processes that are there.
        store: how it does.
        at: when that was so, by the store's clock, UTC.
        orphans: the feeds that no running configuration has.
        differences: what must be equal in all running processes, and is not.
        detailed: whether some feeds were named, and all that is known of them is wanted.
    """

    feeds: Sequence[FeedStatus]
    subscriptions: Sequence[SubscriptionStatus]
    members: Sequence[MemberStatus]
    store: StoreStatus
    at: datetime
    orphans: Sequence[OrphanedFeed] = ()
    differences: Sequence[ConfigurationDifference] = ()
    detailed: bool = False


def status(asked: Asked, names: list[str] | None, *, json: bool) -> None:
    """Show the status of every feed and of every subscription; of those feeds in detail that are named.

    JSON: one object a line, first the feeds with the keys of :class:`~poller.control.status.FeedStatus`, then the
    subscriptions with those of :class:`~poller.control.status.SubscriptionStatus`; then, while daemons
    run, ``{"members": […]}`` with those of :class:`~poller.control.status.MemberStatus`; where there are some,
    ``{"orphaned_feeds": […]}`` with those of :class:`~poller.control.orphans.OrphanedFeed` and
    ``{"configuration_differences": […]}`` with those of
    :class:`~poller.control.orphans.ConfigurationDifference`; last the store, as ``{"store": …}`` with those of
    :class:`~poller.control.status.StoreStatus`.

    Raises:
        ConfigurationError: something is set up wrongly, or there is no such feed.
        StoreError: the store is away.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    only = named_feeds(settings, names) if names else None
    report = run(_read(settings, only))
    if json:
        say_report(report)
        return
    for line in report_lines(report, width()):
        say_styled(line)


async def read_report(store: OpenStore, settings: Settings, only: Sequence[str] | None) -> Report:
    """What is true now; of these feeds alone, where some are named.

    Raises:
        StoreError: the store is away.
    """
    with suppress(StoreRefused):  # it lets nobody see its clock
        await store.clock.ask(store.client)
    now = store.clock.now()
    all_feeds = await feed_statuses(store.client, settings, now=now)
    subscribed = await subscription_statuses(store.client, settings, now=now)
    seen = await members_seen(store.client, MemberKeys.of(settings.redis.prefix))
    members = await member_statuses(store.client, settings.redis.prefix, all_feeds, subscribed)
    found = await orphaned_feeds(store.client, settings, now=now, seen=seen)
    orphans = [one for one in found if only is None or one.feed in only]
    differing = differences(seen.configurations)
    shown = await store_status(store, settings.redis.durability, now=utc_now)
    if only is None:
        return Report(all_feeds, subscribed, members, shown, now, orphans, differing)
    theirs = [one for one in subscribed if any(feed.feed in only for feed in one.feeds)]
    feeds = {one.feed: one for one in all_feeds}
    return Report([feeds[name] for name in only], theirs, members, shown, now, orphans, differing, detailed=True)


def say_report(report: Report) -> None:
    """Write it as JSON; see :func:`status`."""
    for line in (*report.feeds, *report.subscriptions, *([{"members": report.members}] if report.members else ())):
        say_json(line)
    if report.orphans:
        say_json({"orphaned_feeds": report.orphans})
    if report.differences:
        say_json({"configuration_differences": report.differences})
    say_json({"store": report.store})


def report_lines(report: Report, columns: int) -> Iterator[Line]:
    """It for people, on a terminal of so many columns."""
    if report.detailed:
        for one in report.feeds:
            yield from detail_lines(one, columns)
            yield []
    else:
        yield from feed_lines(report.feeds, report.subscriptions, columns)
        yield []
    if report.subscriptions:
        yield from subscription_lines(report.subscriptions, report.at, columns)
        yield []
    yield from _member_lines(report.members, columns)
    orphans = (f"{one.feed}: {one.text}" for one in report.orphans)
    for text in (*orphans, *(one.text for one in report.differences), *_store_texts(report.store)):
        for line in wrapped(text, columns):
            yield [(line, "")]


def _member_lines(members: Sequence[MemberStatus], columns: int) -> Iterator[Line]:
    if not members:
        yield [("no daemon is running", "")]
        return
    rows = [(one.member, ", ".join(one.roles) or "leaving", str(one.feeds), str(one.deliveries)) for one in members]
    yield from table(_MEMBERS, rows, columns)


def _store_texts(store: StoreStatus) -> Iterator[str]:
    amiss = [one for one in store.checks if one.severity != "ok"]
    yield f"store {store.url}: {store.version or 'version unknown'}{'' if amiss else ', all is well'}"
    for one in amiss:
        yield f"store {one.severity}: {one.text}"


async def _read(settings: Settings, only: Sequence[str] | None) -> Report:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        return await read_report(store, settings, only)
