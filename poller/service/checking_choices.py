"""What of a subscription's choice can match nothing: an event type or source that its feeds lack, an absent feed.

A subscription that is kept in the store may have been right when it was added, or be right for another process on that
store with another configuration. So this is a warning, where the same in the file or in a request is refused.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from poller.config.event_sources import required_sources, unknown_source
from poller.config.event_types import unmatched
from poller.config.settings import Settings, chosen
from poller.config.spelling import did_you_mean
from poller.config.subscriptions import SubscriptionSettings
from poller.service.findings import Checked


def check_choices(settings: Settings, subscription: SubscriptionSettings) -> Iterator[Checked]:
    """One warning for each entry that matches nothing."""
    subject = f"subscription {subscription.id}"
    there = set(settings.feed_ids)
    for name in subscription.feeds or ():
        if name not in there:
            meant = did_you_mean(name, sorted(there))
            yield Checked("warning", subject, f'feeds has "{name}", which is no feed of this configuration{meant}')
    types = settings.types_of(subscription.feeds)
    for _, name, expected in unmatched(subscription.types or (), types):
        yield Checked("warning", subject, f'types has "{name}", which no feed of it publishes: {expected}')
    sources = settings.event_sources_of(subscription.feeds)
    for _, name in required_sources(chosen(subscription).get("filters")) if sources else ():
        known = unknown_source(name, sources)
        if known:
            yield Checked("warning", subject, f'filters have the source "{name}", which no feed of it has: {known}')
