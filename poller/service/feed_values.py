"""From the configuration to the values that rounds work with, and where they are kept. Pure, and quickly imported."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from poller.changes.canonical import without
from poller.changes.removal import Breaker
from poller.config.feeds import FeedSettings
from poller.config.settings import Settings
from poller.config.sources import SourceSettings
from poller.source.feed import Feed
from poller.source.paging import Query
from poller.source.resources import resource_of
from poller.store.keys import FeedKeys

AUTO = "auto"
LONGEST_PATIENCE: Final = timedelta(seconds=60)


def feed_of(source: SourceSettings, feed: FeedSettings) -> Feed:
    """What a round of this feed needs to know."""
    resource = resource_of(feed.resource, path=feed.path, detail_path=feed.detail_path, type_name=feed.type_name)
    return Feed(
        id=source.feed_id(feed),
        resource=resource,
        query=Query(
            limit=feed.limit,
            fields=_fields(feed),
            style=feed.fields_style,
            page_params=feed.page_params,
            keep=feed.delta_token,
            max_pages=feed.max_pages,
        ),
        event_source=source.event_source,
        type_prefix=source.type_prefix,
        base_url=source.base_url,
        binding=f"{source.base_url} {source.auth!r}",
        id_field=feed.id_field,
        delta=feed.delta == "on" or (feed.delta == AUTO and resource.delta),
        delta_on_trial=feed.delta == AUTO,
        partial=feed.partial,
        strip=without(feed.ignore) if feed.ignore else None,
        silent_baseline=feed.baseline == "silent",
        reconcile=feed.reconcile,
        removals=feed.removals == "confirm",
        newest=feed.versions == "newest",
        breaker=Breaker(feed.max_removals.percent, feed.max_removals.records),
        expired_statuses=frozenset(feed.expired_statuses),
        qualifications=tuple(name for name in feed.qualifications if name != AUTO),
        discover=resource.per_qualification and AUTO in feed.qualifications,
        slot=feed.interval,
        at_once=max(1, source.concurrency - 1),  # one request is left for the source's other feeds
        max_round=feed.max_round,
        patience=min(feed.interval or LONGEST_PATIENCE, LONGEST_PATIENCE),
    )


def keys_of(settings: Settings, feed_id: str) -> FeedKeys:
    """Where this feed is kept."""
    return FeedKeys.of(settings.redis.prefix, feed_id)


def _fields(feed: FeedSettings) -> tuple[str, ...]:
    if not feed.fields:
        return ()
    return feed.fields if feed.id_field in feed.fields else (feed.id_field, *feed.fields)
