"""Subscriptions as lines for people: a table that fits, and below it why those that do not deliver do not.

Law: foreign text (what a sink has answered) steers no terminal.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from poller.cli.escaping import escaped
from poller.cli.tables import Column, Line, table, wrapped
from poller.control.status import SubscriptionStatus
from poller.store.stats import Backlog
from poller.text import ago

_STATES: Final = {"active": "green", "failing": "red", "paused": "yellow", "new": "cyan"}
_COUNTS: Final = (
    Column("lag", right=True),
    Column("age", right=True, leave=1),
    Column("parked", right=True, leave=2),
    Column("dead", right=True, leave=3),
)
_HOW: Final = (Column("subscription", least=12), Column("state", styles=_STATES), *_COUNTS)
_LIST: Final = (
    Column("id", least=10),
    Column("from", leave=5),
    Column("state", styles=_STATES),
    *_COUNTS,
    Column("feeds", least=5, leave=4),
    Column("sink", least=14, leave=6),
)
_BACKLOGS: Final = (Column("feed", least=12), *_COUNTS, Column("delivered by", least=12, leave=4))
_WHO: Final = {"operator": "an operator", "sink": "its sink", "failures": "its failures", "removed": "the file"}


def subscription_lines(found: Sequence[SubscriptionStatus], now: datetime, width: int) -> Iterator[Line]:
    """How each does; see ``poller subscriptions list`` for where its events go."""
    rows = [(one.subscription, one.state, *_counts(one)) for one in found]
    yield from table(_HOW, rows, width)
    yield from _reason_lines(found, now, width)


def list_lines(found: Sequence[SubscriptionStatus], now: datetime, width: int) -> Iterator[Line]:
    """All of them, with where their events go and which these are."""
    rows = [(one.subscription, one.origin, one.state, *_counts(one), _feeds(one), escaped(one.sink)) for one in found]
    yield from table(_LIST, rows, width)
    yield from _reason_lines(found, now, width)


def reasons(one: SubscriptionStatus, now: datetime) -> Iterator[str]:
    """What keeps it from delivering, in words."""
    since = "" if one.since is None else f" for {ago((now - datetime.fromisoformat(one.since)).total_seconds())}"
    if one.state == "paused":
        yield f"paused by {_WHO[one.paused_by or 'operator']}{since}: {escaped(one.reason or '')}"
    elif one.state == "failing" and _is_ungranted(one):
        yield f"its sink has not granted events{since} ({one.handshake}): {escaped(one.error or '')}"
    elif one.state == "failing":
        yield f"nothing but failures{since}" + (f"; the last: {escaped(one.error)}" if one.error else "")
    elif one.state == "new":
        yield "no daemon has been started with it yet"
    if one.lost:
        yield f"{one.lost} events went before they were delivered: poller dead-letters list"
    if one.until is not None:
        yield f"its sink wants nothing before {one.until}"


def _is_ungranted(one: SubscriptionStatus) -> bool:
    return one.handshake not in {None, "granted"}


def backlog_lines(feeds: Sequence[Backlog], width: int) -> Iterator[Line]:
    """What waits, feed by feed."""
    rows = [
        (
            one.feed,
            _number(one.entries),
            _age(one.seconds),
            str(one.parked),
            str(one.dead_letters),
            one.owner or "nobody",
        )
        for one in feeds
    ]
    yield from table(_BACKLOGS, rows, width)


def _reason_lines(found: Sequence[SubscriptionStatus], now: datetime, width: int) -> Iterator[Line]:
    for one in found:
        for reason in reasons(one, now):
            for line in wrapped(f"{one.subscription}: {reason}", width):
                yield [(line, "")]


def _counts(one: SubscriptionStatus) -> tuple[str, str, str, str]:
    return _number(one.lag_entries), _age(one.lag_seconds), str(one.parked), str(one.dead_letters)


def _number(count: int | None) -> str:
    return "-" if count is None else str(count)


def _age(seconds: float | None) -> str:
    return "-" if not seconds else ago(seconds)


def _feeds(one: SubscriptionStatus) -> str:
    return "all" if one.all_feeds else ", ".join(feed.feed for feed in one.feeds)
