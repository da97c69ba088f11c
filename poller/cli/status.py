"""``poller status``: every feed and every subscription, how it does, and which processes share the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from poller.cli.escaping import escaped
from poller.cli.loop import run
from poller.cli.options import Asked, utc_now
from poller.cli.output import say, say_json, say_table
from poller.cli.subscription_lines import say_subscriptions
from poller.config.settings import Settings
from poller.service.feed_status import FeedStatus, feed_statuses
from poller.service.members_status import MemberStatus, member_statuses
from poller.service.once import STORE_PATIENCE
from poller.service.opening import opened_store, until_ready
from poller.service.store_status import StoreStatus, store_status
from poller.service.subscription_status import SubscriptionStatus, subscription_statuses
from poller.spans import ago, size

_NUMBERS: Final = ("records", "events", "in stream", "bytes", "quarantined")
_HEADINGS: Final = ("feed", "state", "last mode", "last good", "last round", *_NUMBERS, "delta token", "lease")
_SHOWN_FOR: Final = 7 * 86400  # seconds that a loss is news
_SEEN_HEADINGS: Final = (
    "the API of",
    "ends a listing with",
    "delta token on",
    "refused",
    "listings",
    "oldest reading",
)


def status(asked: Asked, *, json: bool) -> None:
    """Show the status of every feed and of every subscription.

    JSON: one object a line, first the feeds with the keys of :class:`~poller.service.feed_status.FeedStatus`, then the
    subscriptions with those of :class:`~poller.service.subscription_status.SubscriptionStatus`; then, while daemons
    run, ``{"members": […]}`` with those of :class:`~poller.service.members_status.MemberStatus`; last the store, as
    ``{"store": …}`` with those of :class:`~poller.service.store_status.StoreStatus`.

    Raises:
        ConfigurationError: something is set up wrongly.
        StoreError: the store is away.
    """
    asked.set_up_logs("error")
    found, subscribed, members, store = run(_read(asked.settings()))
    if json:
        for line in (*found, *subscribed, *([{"members": members}] if members else ())):
            say_json(line)
        say_json({"store": store})
        return
    _say_feeds(found)
    if subscribed:
        say("")
        say_subscriptions(subscribed, utc_now())
    say("")
    _say_members(members)
    _say_store(store)


def _say_feeds(found: Sequence[FeedStatus]) -> None:
    say_table(_HEADINGS, [_row(one) for one in found], numbers=_NUMBERS)
    if any(one.paging for one in found):
        say_table(_SEEN_HEADINGS, [_seen(one) for one in found if one.paging or one.listings], numbers=("listings",))
    for one in found:
        if one.error is not None:
            say(f"{one.feed}: {one.error}")
        if one.held_by is not None:
            say(f"{one.feed}: {escaped(one.held_by)} needs events that are older than retention.age")
        if one.lost is not None and one.lost_age_seconds is not None and one.lost_age_seconds < _SHOWN_FOR:
            say(f"{one.feed}: lost {ago(one.lost_age_seconds)} ago: {one.lost}")
    quarantining = [one.feed for one in found if one.quarantined]
    if quarantining:
        which = f" {quarantining[0]}" if len(quarantining) == 1 else ""
        say(f"quarantined records: poller dead-letters list{which}")


def _say_members(members: Sequence[MemberStatus]) -> None:
    if not members:
        say("no daemon is running")
        return
    rows = [(one.member, ", ".join(one.roles) or "leaving", str(one.feeds), str(one.deliveries)) for one in members]
    say_table(("process", "does", "feeds", "deliveries"), rows, numbers=("feeds", "deliveries"))


def _say_store(store: StoreStatus) -> None:
    amiss = [one for one in store.checks if one.severity != "ok"]
    say(f"store {store.url}: {store.version or 'version unknown'}{'' if amiss else ', all is well'}")
    for one in amiss:
        say(f"store {one.severity}: {one.text}")


async def _read(
    settings: Settings,
) -> tuple[Sequence[FeedStatus], Sequence[SubscriptionStatus], Sequence[MemberStatus], StoreStatus]:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        feeds = await feed_statuses(store.client, settings, now=utc_now())
        subscribed = await subscription_statuses(store.client, settings, now=utc_now())
        members = await member_statuses(store.client, settings.redis.prefix, feeds, subscribed)
        return feeds, subscribed, members, await store_status(store, settings.redis.durability, now=utc_now)


def _row(one: FeedStatus) -> tuple[str, ...]:
    return (
        one.feed,
        one.state,
        one.mode or "-",
        "-" if one.good_age_seconds is None else f"{ago(one.good_age_seconds)} ago",
        _round(one),
        str(one.records),
        str(one.events),
        str(one.stream_length),
        "-" if one.stream_bytes is None else size(one.stream_bytes),
        str(one.quarantined),
        "yes" if one.delta_token else "no",
        one.lease if one.lease_seconds is None else one.owner or "held",
    )


def _seen(one: FeedStatus) -> tuple[str, ...]:
    return (
        one.feed,
        one.paging or "-",
        one.delta_token_on or "-",
        ", ".join(one.refused) or "nothing",
        str(one.listings) if one.listings else "-",
        "-" if one.oldest_seconds is None else f"{ago(one.oldest_seconds)} ago",
    )


def _round(one: FeedStatus) -> str:
    if one.round is None:
        return "-"
    counts = one.round
    return f"{counts.records} read, +{counts.created} ~{counts.modified} -{counts.removed}"
