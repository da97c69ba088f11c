"""Status over HTTP: the page at ``/``, the feeds at ``/feeds``, and the commands to a feed.

**Invariants**

- On the page every value is escaped, and nothing runs: no script, one style, known by its hash.
- The page is made for each request and reloads itself after :data:`AGAIN` seconds; requests at the same moment share
  what was read.
- A command is left in the store. The process that polls the feed replies when it has carried the command out or has
  started to. Without a reply the command stays valid.
"""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from poller import __version__
from poller.clock import Clock
from poller.control.commands import CommandKind, run_command
from poller.control.problems import feed_problems, subscription_problems
from poller.control.status import FEED_VALUES, FeedStatus, SubscriptionStatus, feed_statuses, subscription_statuses
from poller.daemon.health import Readiness
from poller.errors import StoreError
from poller.text import ago, without_credentials
from poller.web.auth import Authorizer
from poller.web.context import AppContext
from poller.web.http import RequestRefused, as_json, at, body_of, reason_of, span_of

AGAIN: Final = 15
_STYLE: Final = """
:root{color-scheme:light dark}
body{font:1rem/1.5 system-ui,sans-serif;margin:0 auto;max-width:70rem;padding:1rem}
h1{font-size:1.4rem;margin:0}h2{font-size:1.1rem;margin:1.5rem 0 .25rem}
p,ul{margin:.25rem 0}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.25rem .75rem .25rem 0;border-bottom:1px solid #8886;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.bad{font-weight:600}.bad::before{content:"\\26a0\\fe0e  "}
td.why{min-width:14rem;overflow-wrap:anywhere}
"""
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""The page's Content-Security-Policy."""

_WELL: Final = frozenset({"ok", "active", "reading", "never read", "new"})
_Column = tuple[str, Callable[[Any], str]]


def page(seen: Overview) -> str:
    """The page, as HTML.

    Args:
        seen: how it is.
    """
    states: list[str] = [*(one.state for one in seen.feeds), *(one.state for one in seen.subscriptions)]
    problems = sum(state not in _WELL for state in states)
    title = "poller: " + (
        "not ready" if not seen.ready else f"{problems} problem{'s' * (problems > 1)}" if problems else "all is well"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="{AGAIN}"><title>{escape(title)}</title><style>{_STYLE}</style></head>'
        f"<body><main><h1>{escape(title)}</h1>\n"
        + "\n".join(_body(seen))
        + f"\n<p>poller {escape(__version__)}, {seen.at:%Y-%m-%d %H:%M:%S} UTC. "
        '<a href="/feeds">feeds</a>, <a href="/subscriptions">subscriptions</a>, '
        '<a href="/readyz">readiness</a>, <a href="/openapi.json">API</a></p></main></body></html>\n'
    )


def _body(seen: Overview) -> Iterator[str]:
    if seen.reasons:
        yield '<ul aria-label="Why it is not ready">' + "".join(_item(one) for one in seen.reasons) + "</ul>"
    if seen.feeds:
        yield _table("Feeds", _FEEDS, seen.feeds, left_out=seen.feeds_left_out)
    if seen.subscriptions:
        why = "problem", lambda one: "; ".join(subscription_problems(one, seen.at))
        columns = (*_SUBSCRIPTIONS, why)
        yield _table("Subscriptions", columns, seen.subscriptions, left_out=seen.subscriptions_left_out)
    elif not seen.reasons:
        yield "<p>No subscriptions.</p>"


def _item(text: str) -> str:
    return f'<li class="bad">{escape(text)}</li>'


def _table(name: str, columns: Sequence[_Column], items: Iterable[object], *, left_out: int) -> str:
    headings = [heading for heading, _ in columns]
    numbers = [one.startswith("#") for one in headings]
    head = "".join(
        f'<th scope="col"{_NUMBER if number else ""}>{escape(one.removeprefix("#"))}</th>'
        for one, number in zip(headings, numbers, strict=True)
    )
    body = "".join(_row([cell(item) for _, cell in columns], numbers) for item in items)
    more = f"<p>{left_out} more are left out here.</p>" if left_out else ""
    return (
        f'<h2 id="{name.lower()}">{name}</h2>{more}<div class="wide" role="region" tabindex="0" '
        f'aria-labelledby="{name.lower()}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _row(row: Sequence[str], numbers: Sequence[bool]) -> str:
    name, state, *counts, why = row
    cells = [f'<th scope="row">{escape(name)}</th>', f"<td{_BAD if state not in _WELL else ''}>{escape(state)}</td>"]
    cells += [
        f"<td{_NUMBER if number else ''}>{escape(one)}</td>" for one, number in zip(counts, numbers[2:-1], strict=True)
    ]
    return f'<tr>{"".join(cells)}<td class="why">{escape(why)}</td></tr>'


def _feed_why(one: FeedStatus) -> str:
    unusable = [f"{one.quarantined} records that cannot be used"] if one.quarantined else []
    return "; ".join([*feed_problems(one), *unusable])


def _waiting(one: SubscriptionStatus) -> str:
    return "-" if one.lag_entries is None else str(one.lag_entries + one.parked)


_NUMBER: Final = ' class="n"'
_BAD: Final = ' class="bad"'
# A heading that begins with # is that of a column of numbers.
_FEEDS: Final[Sequence[_Column]] = (
    ("feed", lambda one: one.feed),
    ("state", lambda one: one.state),
    *(("#" * value.right + value.name, value.page) for value in FEED_VALUES if value.page),
    ("problem", _feed_why),
)
_SUBSCRIPTIONS: Final[Sequence[_Column]] = (
    ("subscription", lambda one: one.subscription),
    ("state", lambda one: one.state),
    ("#waiting", _waiting),
    ("#oldest", lambda one: ago(one.lag_seconds) if one.lag_seconds else "-"),
    ("#dead letters", lambda one: str(one.dead_letters)),
    ("#to backfill", lambda one: str(one.backfill_records) if one.backfill_text else "-"),
)


def page_routes(backing: AppContext, readiness: Readiness, *, clock: Clock) -> list[Route]:
    """The route.

    Args:
        backing: what it stands on.
        readiness: of this process.
        clock: of this process.
    """
    glances = OverviewCache(backing, readiness, clock=clock)

    async def shown(_: Request) -> Response:
        """GET: the page."""
        return HTMLResponse(page(await glances.latest()), headers={"content-security-policy": POLICY})

    return [at("/", GET=shown)]


# Data of the page: the store is read once in :data:`FRESH` seconds, and a bounded part of it. A store that is away is
# shown as a reason like any other.

FRESH: Final = 2.0
MOST: Final = 100
"""The most feeds, and the most subscriptions, on the page."""


class Overview(msgspec.Struct, frozen=True):
    """The data of the page.

    Attributes:
        at: when this was read, UTC.
        ready: whether this process is ready.
        reasons: why it is not ready, or why nothing is shown.
        feeds: the status of each feed shown.
        subscriptions: likewise.
        feeds_left_out: the number of further feeds.
        subscriptions_left_out: the number of further subscriptions.
    """

    at: datetime
    ready: bool
    reasons: tuple[str, ...] = ()
    feeds: tuple[FeedStatus, ...] = ()
    subscriptions: tuple[SubscriptionStatus, ...] = ()
    feeds_left_out: int = 0
    subscriptions_left_out: int = 0


class OverviewCache:
    """The latest overview, shared by simultaneous requests."""

    def __init__(self, backing: AppContext, readiness: Readiness, *, clock: Clock) -> None:
        """Take what is read, and the clock of this process."""
        self._backing = backing
        self._readiness = readiness
        self._clock = clock
        self._turn = asyncio.Lock()
        self._seen: tuple[float, Overview] | None = None

    async def latest(self) -> Overview:
        """The overview, at most :data:`FRESH` seconds old."""
        async with self._turn:
            if self._seen is None or self._clock.monotonic() - self._seen[0] >= FRESH:
                seen = await self._read()
                self._seen = self._clock.monotonic(), seen
            return self._seen[1]

    async def _read(self) -> Overview:
        report, now = await self._readiness.report(), self._backing.clock.now()
        reasons = tuple(f"{one.name}: {one.text}" for one in report.reasons)
        try:
            feeds, more_feeds = await self._feeds(now)
            subscriptions, more = await self._subscriptions(now)
        except StoreError as error:
            return Overview(now, report.ready, reasons or (f"store: {without_credentials(str(error))}",))
        return Overview(now, report.ready, reasons, tuple(feeds), tuple(subscriptions), more_feeds, more)

    async def _feeds(self, now: datetime) -> tuple[Sequence[FeedStatus], int]:
        names = self._backing.settings.feed_ids
        found = await feed_statuses(self._backing.client, self._backing.settings, now=now, feeds=names[:MOST])
        return found, max(len(names) - MOST, 0)

    async def _subscriptions(self, now: datetime) -> tuple[Sequence[SubscriptionStatus], int]:
        settings = self._backing.settings
        kept = await self._backing.registry.all()
        names = sorted({*kept.registered, *(one.id for one in settings.subscriptions)})
        found = await subscription_statuses(self._backing.client, settings, now=now, only=names[:MOST], kept=kept)
        return found, max(len(names) - MOST, 0)


# ``/feeds``.

_ONE: Final = "/feeds/{source}/{name}"
_BY: Final = "an operator, by HTTP"
_PATIENCE: Final = timedelta(seconds=2)  # for a daemon to reply; it looks once a second at least


def feed_routes(backing: AppContext, admission: Authorizer) -> list[Route]:
    """The routes."""

    async def listed(request: Request) -> Response:
        """GET: the status of every feed, by name."""
        span, names = span_of(request), backing.settings.feed_ids
        async with backing.listing:
            found = await _statuses(backing, span.of(names))
        return as_json(found, headers=span.links("/feeds", names))

    async def one(request: Request) -> Response:
        """GET: the status of one."""
        (found,) = await _statuses(backing, [_named(request, backing)])
        return as_json(found)

    async def resynced(request: Request) -> Response:
        """POST: read the feed in full; with ``?anew=true``, after discarding what is known of it."""
        anew = request.query_params.get("anew", "false")
        if anew not in {"true", "false"}:
            raise RequestRefused(400, "anew: expected true or false")
        return await _ordered(request, backing, CommandKind.ANEW if anew == "true" else CommandKind.RESYNC)

    async def released(request: Request) -> Response:
        """POST: approve what a round has held."""
        return await _ordered(request, backing, CommandKind.RELEASE)

    async def paused(request: Request) -> Response:
        """POST: pause the feed."""
        return await _ordered(request, backing, CommandKind.PAUSE, await reason_of(request))

    async def resumed(request: Request) -> Response:
        """POST: resume the feed, and poll it immediately."""
        return await _ordered(request, backing, CommandKind.RESUME)

    return [
        at("/feeds", GET=listed),
        at(_ONE, GET=one),
        at(f"{_ONE}/pause", POST=admission.only(paused)),
        at(f"{_ONE}/resume", POST=admission.only(resumed)),
        at(f"{_ONE}/resync", POST=admission.only(resynced)),
        at(f"{_ONE}/release", POST=admission.only(released)),
    ]


def _named(request: Request, backing: AppContext) -> str:
    feed = f"{request.path_params['source']}/{request.path_params['name']}"
    if feed not in backing.settings.feed_ids:
        raise RequestRefused(404, f"there is no such feed; there are {', '.join(backing.settings.feed_ids[:20])}")
    return feed


async def _statuses(backing: AppContext, feeds: list[str]) -> list[FeedStatus]:
    return await feed_statuses(backing.client, backing.settings, now=backing.clock.now(), feeds=feeds)


async def _ordered(request: Request, backing: AppContext, order: CommandKind, reason: str = "") -> Response:
    """200: done; 202: accepted; 409: the command would have no effect. A second pause or resume is no error."""
    if order is not CommandKind.PAUSE and await body_of(request):
        raise RequestRefused(400, "expected no body; use the query parameter ?anew=true")
    answer = await run_command(
        backing.client,
        backing.settings,
        _named(request, backing),
        order,
        clock=backing.clock,
        by=_BY,
        reason=reason,
        patience=_PATIENCE,
    )
    if answer.outcome == "senseless" and order not in {CommandKind.PAUSE, CommandKind.RESUME}:
        raise RequestRefused(409, f"{answer.feed}: {answer.text}")
    return as_json(answer, 200 if answer.outcome in {"done", "senseless"} else 202)
