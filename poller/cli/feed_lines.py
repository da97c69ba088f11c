"""Feeds as lines for people: a table that fits, a second one of what is kept of them, and below it what is amiss.

Law: foreign text steers no terminal. What is amiss is told in words, with what can be done about it.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from poller.cli.escaping import escaped
from poller.cli.tables import Column, Line, table, wrapped
from poller.control.diagnostics import way_out
from poller.control.status import FeedStatus, SubscriptionStatus
from poller.text import ago, size

_STATES: Final = {"ok": "green", "failing": "red", "held": "yellow", "paused": "yellow", "reading": "cyan"}
_MILLION: Final = 1_000_000
_SHOWN_FOR: Final = 7 * 86400  # seconds that a loss is news
_HOW: Final = (
    Column("feed", least=12),
    Column("state", styles=_STATES),
    Column("mode", leave=2),
    Column("age", right=True, leave=1),
    Column("next", right=True, leave=3),
    Column("records", right=True, leave=5),
    Column("lag", right=True, leave=4),
)
_KEPT: Final = (
    Column("kept of", least=12),
    Column("last round", least=9, leave=1),
    Column("events", right=True, leave=2),
    Column("in stream", right=True, leave=3),
    Column("size", right=True, leave=4),
)


def feed_lines(found: Sequence[FeedStatus], subscribed: Iterable[SubscriptionStatus], width: int) -> Iterator[Line]:
    """How each does."""
    lags = _lags(subscribed)
    yield from table(_HOW, [_how(one, lags) for one in found], width)
    if any(one.round is not None or one.stream_length for one in found):
        yield []
        yield from table(_KEPT, [_kept(one) for one in found], width)
    amiss = [f"{one.feed}: {text}" for one in found for text in amiss_with(one)]
    quarantining = [one.feed for one in found if one.quarantined]
    if quarantining:
        which = f" {quarantining[0]}" if len(quarantining) == 1 else ""
        amiss.append(f"quarantined records: poller dead-letters list{which}")
    if amiss:
        yield []
    for text in amiss:
        for line in wrapped(text, width):
            yield [(line, "")]


def detail_lines(one: FeedStatus, width: int) -> Iterator[Line]:
    """All that is known of one, a line each."""
    for name, text in _details(one):
        first, *more = wrapped(escaped(text), max(width - 16, 8), indent="")
        yield [(f"{name:<14}  ", "dim"), (first, _STATES.get(text, "") if name == "state" else "")]
        for line in more:
            yield [(" " * 16 + line, "")]


def amiss_with(one: FeedStatus) -> Iterator[str]:
    """What is not as it should be, and what can be done, a sentence each."""
    if one.state == "paused":
        reason = f": {escaped(one.paused_reason)}" if one.paused_reason else ""
        since = f" for {ago(one.paused_age_seconds or 0)}"
        yield f"paused by {escaped(one.paused_by or '?')}{since}{reason}; poller resume {one.feed}"
    if one.held_reason is not None:
        since = "" if one.held_age_seconds is None else f" for {ago(one.held_age_seconds)}"
        yield f"held{since}: {escaped(one.held_reason)}"
    if one.error is not None and one.error != one.held_reason:
        out = way_out(one.error)
        yield escaped(one.error) + (f" ({out})" if out else "")
    if one.unidentified:
        yield without_ids(one)
    yield from filter(None, (one.under_way, one.confirmation))
    if one.held_versions:
        yield (
            f"{count(one.held_versions)} versions older than the known ones are held back until two full readings "
            'a minute apart show them (versions = "newest")'
        )
    if one.held_by is not None:
        yield f"{escaped(one.held_by)} needs events that are older than retention.age"
    if one.lost is not None and one.lost_age_seconds is not None and one.lost_age_seconds < _SHOWN_FOR:
        yield f"lost {ago(one.lost_age_seconds)} ago: {one.lost}"


def without_ids(one: FeedStatus) -> str:
    """What records whose id cannot be read mean for the others, and what can be done."""
    many = f"{one.unidentified} records" if one.unidentified > 1 else "a record"
    return (
        f"the last full reading held {many} whose id cannot be read, so nothing was removed: any record that was "
        f"absent may be meant; see poller dead-letters list {one.feed}, and have the source mended"
    )


def count(number: int) -> str:
    """``12345``, ``1.2 M``."""
    return str(number) if number < _MILLION else f"{number / _MILLION:.1f} M"


def _how(one: FeedStatus, lags: Mapping[str, float]) -> tuple[str, ...]:
    lag = lags.get(one.feed)
    return (
        one.feed,
        one.state,
        one.mode or "-",
        "-" if one.good_age_seconds is None else ago(one.good_age_seconds),
        _next(one),
        count(one.records),
        "-" if not lag else ago(lag),
    )


def _next(one: FeedStatus) -> str:
    if one.next_seconds is None:
        return "-"
    return ago(one.next_seconds) if one.next_seconds > 0 else "now"


def _in(one: FeedStatus) -> str:
    return _next(one) if (one.next_seconds or 0) <= 0 else f"in {_next(one)}"


def _kept(one: FeedStatus) -> tuple[str, ...]:
    return (
        one.feed,
        _round(one),
        count(one.events),
        count(one.stream_length),
        "-" if one.stream_bytes is None else size(one.stream_bytes),
    )


def _round(one: FeedStatus) -> str:
    if one.round is None:
        return "-"
    counts = one.round
    return f"{counts.records}: +{counts.created} ~{counts.modified} -{counts.removed}"


def _lags(subscribed: Iterable[SubscriptionStatus]) -> dict[str, float]:
    """By each feed, the age of the oldest event that some subscription has not got."""
    lags: dict[str, float] = {}
    for one in subscribed:
        for feed in one.feeds:
            lags[feed.feed] = max(lags.get(feed.feed, 0.0), feed.seconds or 0.0)
    return lags


def _details(one: FeedStatus) -> Iterator[tuple[str, str]]:
    yield "feed", one.feed
    yield "state", one.state
    for text in amiss_with(one):
        yield "", text
    yield "last round", f"{one.mode or 'none'}; {_round(one)}, {one.round.seconds} s" if one.round else "none"
    yield "last good", "-" if one.good_at is None else f"{one.good_at}, {ago(one.good_age_seconds or 0)} ago"
    yield "next round", "-" if one.next_at is None else f"{one.next_at}, {_in(one)}"
    yield "polled by", one.owner or ("somebody" if one.lease == "held" else "nobody")
    yield "records", f"{one.records}"
    kept = "" if one.stream_bytes is None else f", {size(one.stream_bytes)}"
    yield "events", f"{one.events}, of which the stream holds {one.stream_length}{kept}"
    yield "oldest", one.stream_oldest or "-"
    yield "quarantined", str(one.quarantined)
    if one.backwards:
        yield "going back", f"{count(one.backwards)} versions were older than the known ones, by their lastModifiedAt"
    yield "delta token", f"{'yes' if one.delta_token else 'no'}; it stands on {one.delta_token_on or 'no page so far'}"
    yield "a listing", f"ends with {one.paging}" if one.paging else "not read yet"
    yield "refused", ", ".join(one.refused) or "nothing"
    if one.listings:
        yield "listings", f"{one.listings}, the oldest read {ago(one.oldest_seconds or 0)} ago"
