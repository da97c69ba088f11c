"""What of a subscription's choice can match nothing: a type that no feed of it has, a feed that is not there.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from poller.config.relations import did_you_mean
from poller.config.settings import Settings
from poller.config.subscriptions import SubscriptionSettings
from poller.service.feed_values import feed_of
from poller.service.findings import Checked

KINDS: Final = ("created", "modified", "removed")


def check_choices(settings: Settings, subscription: SubscriptionSettings) -> Iterator[Checked]:
    """One warning for each entry that matches nothing."""
    subject = f"subscription {subscription.id}"
    there = set(settings.feed_ids)
    for name in subscription.feeds or ():
        if name not in there:
            meant = did_you_mean(name, sorted(there))
            yield Checked("warning", subject, f'feeds has "{name}", which is no feed of this configuration{meant}')
    types = _types(settings, subscription)
    for name in subscription.types or ():
        if name not in types:
            meant = did_you_mean(name, sorted(types))
            yield Checked("warning", subject, f'types has "{name}", which no feed of it publishes{meant}')


def _types(settings: Settings, subscription: SubscriptionSettings) -> set[str]:
    """All that the feeds of a subscription can publish."""
    return {
        f"{source.type_prefix}.{feed_of(source, feed).resource.type_name}.{kind}.v1"
        for source in settings.sources
        for feed in source.feeds
        if not subscription.feeds or source.feed_id(feed) in subscription.feeds
        for kind in KINDS
    }
