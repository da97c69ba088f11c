"""What ``poller check`` finds out: does the store keep its promises, does each feed answer. Asks, and changes nothing.

No lease is taken, no state written, no embedded server started; a feed is asked for its first page, without a token, a
sink whether it is there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from poller.changes.records import Record, Rejected, record_reader
from poller.config.settings import Settings
from poller.config.sources import SourceSettings
from poller.config.subscribing import kept_subscription
from poller.config.subscriptions import SubscriptionSettings
from poller.errors import (
    ConfigurationError,
    SourceError,
    SourceNotAsked,
    SourceUnavailable,
    StoreError,
    StoreUnavailable,
)
from poller.service.assembly import client_of
from poller.service.checking_choices import check_choices
from poller.service.checking_rights import check_rights, other_protocol
from poller.service.checking_service import check_service
from poller.service.checking_sinks import Permissions, check_sinks
from poller.service.configurations import HERE, differences, stated
from poller.service.feed_values import feed_of
from poller.service.findings import Checked
from poller.service.orphans import orphaned_feeds
from poller.service.subscribing import registry_of
from poller.service.ways_out import clock_apart, way_out
from poller.source.client import ApiClient
from poller.source.envelope import Page, decode_page
from poller.source.feed import Feed
from poller.store.checks import check_store, weighed
from poller.store.connection import commands, shown
from poller.store.data_directory import located
from poller.store.embedded import EmbeddedServer
from poller.store.embedded_process import SOCKET
from poller.store.embedded_socket import SocketState, asked
from poller.store.keys import MemberKeys
from poller.store.members import members_seen
from poller.store.registrations import Subscriptions


async def check(settings: Settings, environ: Mapping[str, str]) -> AsyncGenerator[Checked]:
    """Everything that can be asked without changing anything, as it is found.

    Raises:
        ConfigurationError: ``redis.url`` cannot be used, or a file that it names.
    """
    kept = _Kept()
    async with aclosing(_check_store(settings, kept)) as findings:
        async for found in findings:
            yield found
    for found in await check_service(settings, environ, running=kept.running):
        yield found
    for source in settings.sources:
        async with aclosing(_check_source(source, environ)) as findings:
            async for found in findings:
                yield found
    subscriptions = (*settings.subscriptions, *kept.added)
    for subscription in subscriptions:
        for found in check_choices(settings, subscription):
            yield found
    permissions = Permissions(settings.http.public_url, kept.handshakes)
    async with aclosing(check_sinks(subscriptions, environ, permissions)) as findings:
        async for found in findings:
            yield found


class _Kept(msgspec.Struct):
    """What the store says of that is checked elsewhere.

    Attributes:
        added: subscriptions of run time.
        handshakes: whether their sinks have granted events.
        running: whether a daemon polls or delivers on the store; None where that is not known.
    """

    added: tuple[SubscriptionSettings, ...] = ()
    handshakes: Mapping[str, bytes] = {}
    running: bool | None = None


async def _check_store(settings: Settings, kept: _Kept) -> AsyncGenerator[Checked]:
    """What is found, and what else is to be known goes to ``kept``."""
    url = settings.redis.url
    if url is None:
        directory = settings.embedded.data_dir.absolute()
        try:
            if await asked(located(directory) / SOCKET) is not SocketState.READY:
                kept.running = False
                yield _not_started(directory)
                return
            url = EmbeddedServer(directory).url
        except ConfigurationError as error:
            yield Checked("error", "store", str(error))
            return
    client = commands(url)  # what is no URL is a wrong configuration, not a store that does not answer
    try:
        async with client:
            findings = await check_store(client, now=partial(datetime.now, UTC))
            yield Checked("ok", "store", f"{shown(url)} answers")
            for finding in findings:
                yield Checked(weighed(finding, settings.redis.durability).severity, "store", finding.text)
            rights = await check_rights(client, settings, url)
            if rights is not None:
                yield rights
            registered = await registry_of(settings, client).all()
            kept.added, kept.handshakes = tuple(_added(registered)), registered.handshakes
            for one in await orphaned_feeds(client, settings, now=datetime.now(UTC), kept=registered):
                yield Checked("warning", one.feed, one.text)
            seen = await members_seen(client, MemberKeys.of(settings.redis.prefix))
            kept.running = bool(seen.roles)
            for difference in differences({HERE: stated(settings), **seen.configurations}):
                yield Checked("warning", "configuration", difference.text)
    except (StoreError, ConfigurationError) as error:
        out = await other_protocol(url) if isinstance(error, StoreUnavailable) else None
        yield Checked("error", "store", f"{error}; {out}" if out else str(error))


def _added(kept: Subscriptions) -> list[SubscriptionSettings]:
    """Those that were added at run time."""
    return [kept_subscription(bytes(one.settings)) for one in kept.registered.values() if one.origin == "run"]


def _not_started(directory: Path) -> Checked:
    if directory.is_dir():
        return Checked("ok", "store", f"embedded server on {directory}: not running, it will be started")
    nearest = next((parent for parent in directory.parents if parent.exists()), Path("/"))
    if directory.exists() or not nearest.is_dir() or not os.access(nearest, os.W_OK):
        return Checked("error", "store", f"embedded server: {directory} cannot be made; set embedded.data_dir")
    return Checked("ok", "store", f"embedded server will be started in {directory}")


async def _check_source(source: SourceSettings, environ: Mapping[str, str]) -> AsyncGenerator[Checked]:
    """The feeds that stand for themselves side by side, then those that list by qualification."""
    try:
        client = client_of(source, environ)
        feeds = [feed_of(source, feed) for feed in source.feeds]
    except ConfigurationError as error:
        yield Checked("error", f"source {source.name}", str(error))
        return
    yield Checked("ok", f"source {source.name}", f"configured, {source.base_url}; what it answers, each feed says")
    seen: dict[str, None] = {}
    async with client as api:
        own = [feed for feed in feeds if not feed.resource.per_qualification]
        pages = dict(zip(own, await asyncio.gather(*(_first_page(api, feed) for feed in own)), strict=True))
        unanswered = next((feed for feed, page in pages.items() if type(page) is SourceUnavailable), None)
        for feed, page in pages.items():
            yield _judged(feed, _said_of(page, unanswered), seen, proxied=source.proxy is not None)
        for feed in feeds:
            if feed.resource.per_qualification:
                yield await _check_listings(api, feed, seen, unanswered)
        if apart := clock_apart(api.date, now=datetime.now(UTC)):
            yield Checked("warning", f"source {source.name}", apart)


async def _check_listings(api: ApiClient, feed: Feed, seen: Mapping[str, None], unanswered: Feed | None) -> Checked:
    qualifications = (*feed.qualifications, *(seen if feed.discover else ()))
    if not qualifications:
        return Checked("warning", feed.id, "not asked: no qualification is known so far")
    page = _said_of(await _first_page(api, feed, qualifications[0]), unanswered)
    return _judged(feed, page, {}, of=f" of qualification {qualifications[0]}")


async def _first_page(api: ApiClient, feed: Feed, qualification: str | None = None) -> Page | SourceError:
    try:
        return decode_page(await api.get(feed.resource.listing_path(qualification), feed.query.first(None)))
    except SourceError as error:
        return error


def _said_of(page: Page | SourceError, unanswered: Feed | None) -> Page | SourceError:
    """What is said of a feed that was not asked: whose failure stands for its own."""
    if isinstance(page, SourceNotAsked) and unanswered is not None:
        return SourceNotAsked(f"not asked: the API has not answered for {unanswered.id}, see there")
    return page


def _judged(
    feed: Feed, page: Page | SourceError, seen: dict[str, None], *, of: str = "", proxied: bool = False
) -> Checked:
    if isinstance(page, SourceError):
        out = way_out(str(page), proxied=proxied)
        return Checked("error", feed.id, f"{page}; {out}" if out else str(page))
    read = record_reader(feed.id_field)
    records = [read(raw) for raw in page.records]
    seen.update((one.qualification, None) for one in records if isinstance(one, Record) and one.qualification)
    rejected = [one for one in records if isinstance(one, Rejected)]
    warnings = _warnings(feed, page, rejected)
    delta = "a delta token" if page.delta_token else "no delta token"
    more = "further pages" if page.page_token else "no further page"
    text = "; ".join((f"answers: {len(records)} records on the first page{of}, {delta}, {more}", *warnings))
    return Checked("warning" if warnings else "ok", feed.id, text)


def _warnings(feed: Feed, page: Page, rejected: Sequence[Rejected]) -> list[str]:
    warnings = []
    if rejected:
        warnings.append(f"{len(rejected)} cannot be used ({rejected[0].reason})")
    if feed.delta and page.delta_token is None and page.page_token is None:
        warnings.append("without a delta token each round reads everything")
    return warnings
