"""The checks of ``poller check``: the store, each feed, each sink, the HTTP service.

**Invariants**

- A check changes nothing: no lease is acquired, no state written, no embedded server started.
- A feed is checked by its first page, without a delta token; a sink by a request without an event.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import chain
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

import httpx
import msgspec
from redis.asyncio import Redis

from poller.auth.http_token import CLOSED, ServiceToken, admin_token, is_closed, read_token
from poller.changes.records import Record, Rejected, record_reader
from poller.clock import Clock
from poller.config.settings import ListenAddress, Settings
from poller.config.sources import SourceSettings
from poller.config.subscriptions import SubscriptionSettings
from poller.config.validation import decode_subscription
from poller.control.factories import client_of, feed_of, signing_secrets, sink_of
from poller.control.orphans import HERE, differences, orphaned_feeds, stated
from poller.control.problems import (
    NO_QUALIFICATION,
    held_text,
    not_delivering_text,
    paused_text,
    store_way_out,
    unlisted_text,
    unmatched_choices,
    way_out,
)
from poller.control.status import FeedStatus, SubscriptionStatus, feed_statuses, subscription_statuses
from poller.control.subscriptions import registry_of
from poller.delivery.handshake import Awaiting, Granted, origin_aside, request_of, state_after, stored_state, ungranted
from poller.delivery.sinks.base import UNANSWERED, Failure, Permission, PermissionRequest
from poller.errors import (
    AddressTaken,
    ConfigurationError,
    SourceError,
    SourceNotAsked,
    SourceUnavailable,
    StoreError,
    StoreUnavailable,
)
from poller.http.server import listener
from poller.lifecycle import in_turns
from poller.redis.client import shown
from poller.redis.data_directory import located
from poller.redis.embedded import SOCKET, EmbeddedServer, SocketState, disk_shortage, socket_state
from poller.redis.health import Severity, check_store, refused, weighed
from poller.source.client import ApiClient
from poller.source.feed import Feed
from poller.source.paging import Page, decode_page
from poller.store.keys import MemberKeys, sample_keys
from poller.store.members import MemberList, members_seen
from poller.store.session import command_client
from poller.store.subscriptions import Subscriptions


async def check(settings: Settings, environ: Mapping[str, str], *, clock: Clock) -> AsyncGenerator[CheckLine]:
    """Run all checks, and yield each result when it is known. ``clock``: of this process.

    Raises:
        ConfigurationError: ``redis.url``, or a file that it names, cannot be used.
    """
    kept = _StoredState()
    async with aclosing(_check_store(settings, kept, clock)) as findings:
        async for found in findings:
            yield found
    for found in await check_service(settings, environ, running=kept.running):
        yield found
    for source in settings.sources:
        async with aclosing(_check_source(source, environ, clock)) as findings:
            async for found in findings:
                text = None if found.severity == "error" else kept.not_polling.get(found.subject)
                yield _with_state(found, text)
    subscriptions = (*settings.subscriptions, *kept.added)
    for subscription in subscriptions:
        for found in check_choices(settings, subscription):
            yield found
    permissions = SinkPermissions(settings.http.public_url, kept.handshakes, kept.made_secrets)
    async with aclosing(check_sinks(subscriptions, environ, permissions, clock=clock)) as findings:
        async for found in findings:
            text = kept.not_delivering.get(found.subject.removeprefix("subscription "))
            yield _with_state(found, text if found.severity == "ok" else None)


def _with_state(found: CheckLine, text: str | None) -> CheckLine:
    """The result for a feed or a sink that answers; a warning if this says why nothing is read or delivered."""
    return found if text is None else CheckLine("warning", found.subject, f"{text}; {found.text}")


class _StoredState(msgspec.Struct):
    """Stored state that other checks need.

    Attributes:
        added: the subscriptions added at run time.
        handshakes: the permissions of sinks.
        made_secrets: how many signing secrets were made for a subscription, by id.
        not_delivering: why subscriptions are paused or failing, by id.
        not_polling: why feeds are paused or held, by their ids.
        running: whether a daemon polls or delivers with this store; None: unknown.
    """

    added: tuple[SubscriptionSettings, ...] = ()
    handshakes: Mapping[str, bytes] = {}
    made_secrets: Mapping[str, int] = {}
    not_delivering: Mapping[str, str] = {}
    not_polling: Mapping[str, str] = {}
    running: bool | None = None


async def _check_store(settings: Settings, kept: _StoredState, clock: Clock) -> AsyncGenerator[CheckLine]:
    """Check the store. State that other checks need goes to ``kept``."""
    url = settings.redis.url
    if url is None:
        directory = settings.embedded.data_dir.absolute()
        try:
            if await socket_state(located(directory) / SOCKET) is not SocketState.READY:
                kept.running = False
                yield _not_started(directory)
                return
            url = EmbeddedServer(directory, clock=clock).url
        except ConfigurationError as error:
            yield CheckLine("error", "store", str(error))
            return
    client = command_client(url, clock)  # an invalid URL is a wrong configuration, not an unavailable store
    try:
        async with client:
            findings = await check_store(client, process=clock)
            yield CheckLine("ok", "store", f"{shown(url)} answers")
            for finding in (weighed(one, settings.redis.durability) for one in findings):
                yield CheckLine(finding.severity, "store", finding.text)
            rights = await check_rights(client, settings, url)
            if rights is not None:
                yield rights
            registered = await registry_of(settings, client).all()
            kept.added, kept.handshakes = tuple(_added(registered)), registered.handshakes
            kept.made_secrets = {name: len(made) for name, made in registered.secrets.items()}
            now = clock.now()
            statuses = await subscription_statuses(client, settings, now=now, kept=registered)
            texts = {one.subscription: not_delivering_text(one, now) for one in statuses}
            kept.not_delivering = {name: text for name, text in texts.items() if text is not None}
            feeds = await feed_statuses(client, settings, now=now)
            kept.not_polling = {one.feed: text for one in feeds if (text := _not_polling_text(one)) is not None}
            for name, text in sorted(registered.unusable.items()):
                yield CheckLine("error", f"subscription {name}", text)
            for line in await _left_behind(client, settings, registered, statuses, now):
                yield line
            seen = await members_seen(client, MemberKeys.of(settings.redis.prefix))
            kept.running = bool(seen.roles)
            for line in _other_configurations(settings, seen):
                yield line
    except (StoreError, ConfigurationError) as error:
        out = await other_protocol(url) if isinstance(error, StoreUnavailable) else None
        out = out or store_way_out(str(error))
        yield CheckLine("error", "store", f"{error}; {out}" if out else str(error))


_NOT_HERE: Final = (
    "a running process has this feed, and this configuration has not: when all have this one, it is orphaned. To "
    "change its path or resource, keep its name; under another name all records are published again, as created"
)


def _other_configurations(settings: Settings, seen: MemberList) -> Iterator[CheckLine]:
    """What running processes have that this configuration has not or has otherwise; other sources are no matter."""
    sources = {source.name for source in settings.sources}
    for feed in sorted(frozenset(chain(*(one.feeds or () for one in seen.configurations.values())))):
        if feed not in settings.feed_ids and feed.partition("/")[0] in sources:
            yield CheckLine("warning", feed, _NOT_HERE)
    for difference in differences({HERE: stated(settings), **seen.configurations}):
        yield CheckLine("warning", "configuration", difference.text)


def _not_polling_text(one: FeedStatus) -> str | None:
    """Why a feed is paused or held; None: it is neither."""
    if one.state == "paused":
        return paused_text(one)
    return None if one.held_reason is None else held_text(one)


async def _left_behind(
    client: Redis, settings: Settings, kept: Subscriptions, statuses: Sequence[SubscriptionStatus], now: datetime
) -> list[CheckLine]:
    """Events that wait at feeds that no process, or their subscription, lists any more."""
    orphans = await orphaned_feeds(client, settings, now=now, kept=kept)
    unlisted = [(f"subscription {one.subscription}", unlisted_text(one)) for one in statuses]
    return [
        *(CheckLine("warning", one.feed, one.text) for one in orphans),
        *(CheckLine("warning", subject, text) for subject, text in unlisted if text is not None),
    ]


def _added(kept: Subscriptions) -> Iterator[SubscriptionSettings]:
    """The subscriptions added at run time, those that can be used."""
    for name, one in kept.registered.items():
        if one.origin == "run" and name not in kept.unusable:
            with suppress(ConfigurationError):
                yield decode_subscription(bytes(one.settings))


def _not_started(directory: Path) -> CheckLine:
    if directory.is_dir():
        here = f"embedded server on {directory}: not running"
        if shortage := disk_shortage(directory):
            return CheckLine("error", "store", f"{here}, and {shortage}: free some space")
        return CheckLine("ok", "store", f"{here}, it will be started")
    nearest = next((parent for parent in directory.parents if parent.exists()), Path("/"))
    if directory.exists() or not nearest.is_dir() or not os.access(nearest, os.W_OK):
        return CheckLine("error", "store", f"embedded server: {directory} cannot be made; set embedded.data_dir")
    return CheckLine("ok", "store", f"embedded server will be started in {directory}")


async def _check_source(source: SourceSettings, environ: Mapping[str, str], clock: Clock) -> AsyncGenerator[CheckLine]:
    """Check the feeds without substreams concurrently, then those with a substream per qualification."""
    try:
        client = client_of(source, environ, clock)
        feeds = [feed_of(source, feed) for feed in source.feeds]
    except ConfigurationError as error:
        yield CheckLine("error", f"source {source.name}", str(error))
        return
    yield CheckLine("ok", f"source {source.name}", f"configured, {source.base_url}; its answers are shown per feed")
    seen: dict[str, None] = {}
    async with client as api:
        own = [feed for feed in feeds if not feed.resource.per_qualification]
        pages = dict(zip(own, await asyncio.gather(*(_first_page(api, feed) for feed in own)), strict=True))
        unanswered = next((feed for feed, page in pages.items() if type(page) is SourceUnavailable), None)
        for feed, page in pages.items():
            yield _judged(feed, _result_of(page, unanswered), seen, proxied=source.proxy is not None)
        for feed in feeds:
            if feed.resource.per_qualification:
                is_unread = any(isinstance(page, SourceError) for page in pages.values())
                yield await _check_listings(
                    api, feed, seen, unanswered, why=_UNNAMED if is_unread else NO_QUALIFICATION
                )
        if apart := clock_apart(api.date, now=clock.now()):
            yield CheckLine("warning", f"source {source.name}", apart)


_UNNAMED: Final = "a feed of the source, which may name qualifications, could not be read, see there"


async def _check_listings(
    api: ApiClient, feed: Feed, seen: Mapping[str, None], unanswered: Feed | None, *, why: str
) -> CheckLine:
    qualifications = (*feed.qualifications, *(seen if feed.discover else ()))
    if not qualifications:
        return CheckLine("warning", feed.id, f"not asked: {why}")
    page = _result_of(await _first_page(api, feed, qualifications[0]), unanswered)
    return _judged(feed, page, {}, of=f" of qualification {qualifications[0]}")


async def _first_page(api: ApiClient, feed: Feed, qualification: str | None = None) -> Page | SourceError:
    try:
        return await in_turns(
            decode_page(await api.get(feed.resource.listing_path(qualification), feed.query.first(None)))
        )
    except SourceError as error:
        return error


def _result_of(page: Page | SourceError, unanswered: Feed | None) -> Page | SourceError:
    """The result of a feed that was not requested: the failure of the feed that stands for it."""
    if isinstance(page, SourceNotAsked) and unanswered is not None:
        return SourceNotAsked(f"not asked: the API has not answered for {unanswered.id}, see there")
    return page


def _judged(
    feed: Feed, page: Page | SourceError, seen: dict[str, None], *, of: str = "", proxied: bool = False
) -> CheckLine:
    if isinstance(page, SourceError):
        out = way_out(str(page), proxied=proxied)
        return CheckLine("error", feed.id, f"{page}; {out}" if out else str(page))
    read = record_reader(feed.id_field)
    records = [read(raw) for raw in page.records]
    seen.update((one.qualification, None) for one in records if isinstance(one, Record) and one.qualification)
    rejected = [one for one in records if isinstance(one, Rejected)]
    warnings = _warnings(feed, page, rejected)
    delta = "a delta token" if page.delta_token else "no delta token"
    more = "further pages" if page.page_token else "no further page"
    text = "; ".join((f"answers: {len(records)} records on the first page{of}, {delta}, {more}", *warnings))
    return CheckLine("warning" if warnings else "ok", feed.id, text)


def _warnings(feed: Feed, page: Page, rejected: Sequence[Rejected]) -> list[str]:
    warnings = []
    if rejected:
        warnings.append(f"{len(rejected)} cannot be used ({rejected[0].reason})")
    if feed.delta and page.delta_token is None and page.page_token is None:
        warnings.append("without a delta token each round reads everything")
    return warnings


CLOCK_APART: Final = 60.0
"""Seconds. ``Date`` has whole seconds, and a proxy may have cached the answer for a while."""


def clock_apart(date: str | None, *, now: datetime) -> str | None:
    """A warning if an answer's ``Date`` and this machine's clock differ much; None: they do not, or it is unknown."""
    try:
        sent = parsedate_to_datetime(date or "")
    except ValueError:
        return None
    seconds = ((sent if sent.tzinfo else sent.replace(tzinfo=UTC)) - now).total_seconds()
    if abs(seconds) <= CLOCK_APART:
        return None
    which = "ahead of" if seconds > 0 else "behind"
    return f"its clock is {abs(seconds):.0f} s {which} this machine's (by the Date of its answer): set both by NTP"


# Choices of a subscription that match nothing. In the file and in requests they are refused; in a stored subscription
# they are a warning, because it may be right for a process with another configuration.


def check_choices(settings: Settings, subscription: SubscriptionSettings) -> Iterator[CheckLine]:
    """One warning for each entry that matches nothing."""
    for text in unmatched_choices(settings, subscription):
        yield CheckLine("warning", f"subscription {subscription.id}", text)


class CheckLine(msgspec.Struct, frozen=True):
    """The result of a check: severity, subject, finding."""

    severity: Severity
    subject: str
    text: str


# The HTTP service: its address and its tokens. An address in use is correct if a daemon of this store uses it.

_SUBJECT: Final = "http"
_PROBE_SECONDS: Final = 2.0
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- where to ask a server that listens everywhere


async def check_service(
    settings: Settings, environ: Mapping[str, str], *, running: bool | None = None
) -> list[CheckLine]:
    """Check the HTTP service; no result if it is off and no token is set.

    Args:
        settings: the configuration.
        environ: the environment.
        running: whether a daemon polls or delivers with this store; None: unknown.
    """
    http = settings.http
    found = [] if http.bind is None else [await _address(http.bind, running=running)]
    tokens = {"read": read_token(http, environ), "admin": admin_token(http, environ)}
    texts = {name: _text(name, token, found) for name, token in tokens.items() if token}
    if texts.get("read") and texts.get("read") == texts.get("admin"):
        found.append(
            CheckLine("warning", _SUBJECT, "read token and admin token are the same: every reader may make changes")
        )
    if is_closed(http, environ):
        found.append(CheckLine("warning", _SUBJECT, f"reading on {http.bind} is refused: {CLOSED}"))
    elif http.open_reads and tokens["read"]:
        found.append(
            CheckLine("warning", _SUBJECT, "http.open_reads has no effect: a read token is set, so it is required")
        )
    elif http.open_reads:
        found.append(
            CheckLine("warning", _SUBJECT, "http.open_reads: everyone who reaches the port can read all records")
        )
    return found


def _text(name: str, token: ServiceToken, found: list[CheckLine]) -> str | None:
    """The token's text, or the finding that it cannot be read."""
    try:
        text = token.text()
    except SourceError as error:
        who = f"; it is read as user id {os.getuid()}" if hasattr(os, "getuid") else ""
        found.append(CheckLine("error", _SUBJECT, f"http.{name}_token_file: {error}{who}"))
        return None
    found.append(CheckLine("ok", _SUBJECT, f"the {name} token can be read"))
    return text


async def _address(address: ListenAddress, *, running: bool | None) -> CheckLine:
    host, port = address
    try:
        listener(host, port).close()
    except AddressTaken as taken:
        if running is not False and await _is_ours(_ANY.get(host, host), port):
            return CheckLine("ok", _SUBJECT, f"a poller listens on {host} port {port}")
        return CheckLine("warning", _SUBJECT, f'{taken}: set http.bind or POLLER_HTTP_BIND to another, or "off"')
    except ConfigurationError as error:
        return CheckLine("error", _SUBJECT, f"{error}: set http.bind or POLLER_HTTP_BIND to an address of this machine")
    return CheckLine("ok", _SUBJECT, f"{host} port {port} is free")


async def _is_ours(host: str, port: int) -> bool:
    """Whether the server at this address answers ``/livez`` and ``/readyz`` as a daemon does."""
    shown = f"[{host}]" if ":" in host else host
    try:
        async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(_PROBE_SECONDS):
            answer = await client.get(f"http://{shown}:{port}/readyz")
            return "reasons" in answer.json() or answer.status_code == httpx.codes.OK
    except (httpx.HTTPError, TimeoutError, ValueError):
        return False


# The permissions of the store's user, and ports with another protocol. Findings spell rules as ``ACL SETUSER`` does.

_HELLO: Final = b"*1\r\n$4\r\nPING\r\n"
_PORT: Final = 6379


async def check_rights(client: Redis, settings: Settings, url: str) -> CheckLine | None:
    """Check the permissions of the store's user; None: the server cannot be asked.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    prefix = settings.redis.prefix
    found = await refused(client, sample_keys(prefix, next(iter(settings.feed_ids), "x/x")))
    if found is None:
        return None
    user = unquote(urlsplit(url).username or "") or "default"
    if found.keys:
        text = f"user {user} may touch no key of {prefix}:*: ACL SETUSER {user} ~{prefix}:*"
    else:
        rules = " ".join(f"+{name}" for name in found.commands)
        text = f"user {user} may not {', '.join(found.commands)}: ACL SETUSER {user} {rules}"
    return CheckLine("error", "store", f"{text}; add it to the ACL file as well, as in deploy/redis/users.acl")


async def other_protocol(url: str) -> str | None:
    """The finding that the port uses TLS and the URL does not, or the reverse; None: they agree."""
    parts = urlsplit(url)
    if parts.scheme not in {"redis", "rediss"} or not parts.hostname:
        return None
    meant: Literal["TLS", "plain"] = "TLS" if parts.scheme == "rediss" else "plain"
    speaks = await _speaks(parts.hostname, parts.port or _PORT)
    if speaks is None or speaks == meant:
        return None
    if speaks == "TLS":
        return "this port speaks TLS: redis.url is rediss://…"
    return "this port speaks no TLS: redis.url is redis://…, or name the port that does (tls-port)"


async def _speaks(host: str, port: int) -> Literal["TLS", "plain"] | None:
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_PROBE_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(_HELLO)
                answer = await reader.read(1)
            finally:
                writer.close()
        if answer in {b"+", b"-"}:
            return "plain"
    return "TLS" if await _shakes_hands(host, port) else None


async def _shakes_hands(host: str, port: int) -> bool:
    """Whether the port completes a TLS handshake; no certificate is sent."""
    any_peer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    any_peer.check_hostname = False
    any_peer.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=any_peer)
            writer.close()
    except ssl.SSLError as error:
        return "ALERT" in str(error).upper()  # the server requires a client certificate, so it uses TLS
    except (OSError, TimeoutError):
        return False
    return True


# Sinks are checked with OPTIONS, which carries no event. Any answer is good, because many sinks answer 404 or 405. If
# ``validate`` requires permission, it is requested without a callback, and nothing is stored.

_MAY_TAKE_EVENTS = "poller subscriptions test {id} sends one event and shows whether it takes those"
_ADVICE = {
    Failure.ADDRESS: "if this address is intended, set allow_private = true or allow_hosts",
    Failure.DNS: "check the name, and that this machine can resolve it",
    Failure.REFUSED: "no server listens there: start the receiver, or correct sink",
    **dict.fromkeys(UNANSWERED, _MAY_TAKE_EVENTS),
}


class SinkPermissions(msgspec.Struct, frozen=True):
    """What is stored of subscriptions and their sinks.

    Attributes:
        public_url: for callbacks of sinks.
        kept: the stored handshake of each subscription.
        made_secrets: how many signing secrets were made for a subscription, beside those of its files.
    """

    public_url: str | None = None
    kept: Mapping[str, bytes] = {}
    made_secrets: Mapping[str, int] = {}


_UNKNOWN: Final = SinkPermissions()


async def check_sinks(
    subscriptions: Sequence[SubscriptionSettings],
    environ: Mapping[str, str],
    permissions: SinkPermissions = _UNKNOWN,
    *,
    clock: Clock,
) -> AsyncGenerator[CheckLine]:
    """Check all sinks concurrently: one result per subscription."""
    for asking in [asyncio.create_task(_checked(one, environ, permissions, clock)) for one in subscriptions]:
        yield await asking


async def _checked(
    settings: SubscriptionSettings, environ: Mapping[str, str], permissions: SinkPermissions, clock: Clock
) -> CheckLine:
    subject = f"subscription {settings.id}"
    try:
        secrets = len(signing_secrets(settings.secret_files)) + permissions.made_secrets.get(settings.id, 0)
        request = request_of(settings, await origin_aside(permissions.public_url))
        async with sink_of(settings, environ, clock=clock) as sink:
            said = await sink.verify(request if settings.handshake else None)
    except (ConfigurationError, SourceError) as error:
        return CheckLine("error", subject, str(error))
    if said.failure is not None:
        advice = _ADVICE.get(said.failure)
        return CheckLine("error", subject, said.text + (f"; {advice.format(id=settings.id)}" if advice else ""))
    if refused := _refused(settings, said, request, permissions):
        return refused
    signed = f"signed with {secrets} secret{'s' if secrets > 1 else ''}" if secrets else "not signed"
    signed = f", {signed}" if settings.is_signed else ""
    granted = ", and grants events" if settings.handshake else ""
    return CheckLine("ok", subject, f"the sink is there ({said.text}){signed}{granted}")


def _refused(
    settings: SubscriptionSettings, said: Permission, request: PermissionRequest, permissions: SinkPermissions
) -> CheckLine | None:
    """The reason why a sink gets no events; None: it gets them."""
    subject = f"subscription {settings.id}"
    if not settings.handshake:
        return None if said.state == "granted" else CheckLine("error", subject, said.text)
    kept = stored_state(permissions.kept.get(settings.id))
    if isinstance(kept, Granted) and kept.origin == request.origin:
        return None
    state = state_after(said, request, before=kept)
    if isinstance(state, Granted):
        return None
    if said.may_grant_later and permissions.public_url:
        waits = ungranted(kept) if isinstance(kept, Awaiting) else "the daemon offers it a callback at its start"
        return CheckLine("warning", subject, f"the sink has not granted events yet: {waits}")
    return CheckLine("error", subject, f"the sink does not grant events: {ungranted(state)}")
