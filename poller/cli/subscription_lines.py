"""Subscriptions as lines for people: a table, and below it why those that do not deliver do not.

Law: foreign text (what a sink has answered) steers no terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from poller.cli.escaping import escaped
from poller.cli.output import say, say_table
from poller.service.subscription_status import SubscriptionStatus
from poller.spans import ago
from poller.store.backlogs import Backlog

_COUNTS = ("lag", "age", "parked", "dead letters")
_NUMBERS = (*_COUNTS, "dead")
_WHO = {"operator": "an operator", "sink": "its sink", "failures": "its failures", "removed": "the file"}


def say_subscriptions(found: Sequence[SubscriptionStatus], now: datetime) -> None:
    """How each does; see ``poller subscriptions list`` for where its events go."""
    rows = [(one.subscription, one.state, *_counts(one), str(one.dead_letters)) for one in found]
    say_table(("subscription", "state", *_COUNTS), rows, numbers=_COUNTS)
    say_reasons(found, now)


def say_list(found: Sequence[SubscriptionStatus], now: datetime) -> None:
    """All of them, with where their events go and which these are."""
    rows = [
        (one.subscription, one.origin, one.state, *_counts(one), str(one.dead_letters), _feeds(one), one.sink)
        for one in found
    ]
    headings = ("id", "from", "state", "lag", "age", "parked", "dead", "feeds", "sink")
    say_table(headings, rows, numbers=_NUMBERS, unbroken=("from", "state", "lag", "age", "parked", "dead"))
    say_reasons(found, now)


def say_reasons(found: Sequence[SubscriptionStatus], now: datetime) -> None:
    """Why those do not deliver that do not, one line each."""
    for one in found:
        for reason in reasons(one, now):
            say(f"{one.subscription}: {reason}")


def reasons(one: SubscriptionStatus, now: datetime) -> Iterator[str]:
    """What keeps it from delivering, in words."""
    since = "" if one.since is None else f" for {ago((now - datetime.fromisoformat(one.since)).total_seconds())}"
    if one.state == "paused":
        yield f"paused by {_WHO[one.paused_by or 'operator']}{since}: {escaped(one.reason or '')}"
    elif one.state == "failing":
        yield f"nothing but failures{since}"
    elif one.state == "new":
        yield "no daemon has been started with it yet"
    if one.lost:
        yield f"{one.lost} events went before they were delivered: poller dead-letters list"
    if one.until is not None:
        yield f"its sink wants nothing before {one.until}"
    if one.handshake not in {None, "granted"}:
        yield f"its sink has not granted events: {escaped(one.handshake or '')}"


def say_backlogs(feeds: Sequence[Backlog]) -> None:
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
    say_table(("feed", *_COUNTS, "delivered by"), rows, numbers=_COUNTS)


def _counts(one: SubscriptionStatus) -> tuple[str, str, str]:
    return _number(one.lag_entries), _age(one.lag_seconds), str(one.parked)


def _number(count: int | None) -> str:
    return "-" if count is None else str(count)


def _age(seconds: float | None) -> str:
    return "-" if not seconds else ago(seconds)


def _feeds(one: SubscriptionStatus) -> str:
    return "all" if one.all_feeds else ", ".join(feed.feed for feed in one.feeds)
