"""What must hold between tables: unique names, at least one source, and feeds, types and event sources that exist.

Law: looks only at names, and overlooks what is no name, so it can say what it knows about a file that is wrong
elsewhere too.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from poller.config.event_sources import event_source, required_sources, unknown_source
from poller.config.event_types import published, unmatched
from poller.config.problems import Key, Problem
from poller.config.showing import shown_key
from poller.config.spelling import did_you_mean
from poller.config.urls import reversed_host

NO_SOURCE: Final = (
    "no source: give a file with [[sources]] (--config FILE, $POLLER_CONFIG or ./poller.toml), "
    "or set POLLER_BASE_URL, or try `poller demo`"
)


def broken_relations(values: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong between the tables of ``values``, which has the shape of the file, right or wrong."""
    if values.get("sources", []) in ([], ()):
        return [Problem((), NO_SOURCE)]
    sources = list(_tables(values.get("sources"), ("sources",)))
    subscriptions = list(_tables(values.get("subscriptions"), ("subscriptions",)))
    problems = list(_repeated(sources, "name"))
    for key, source in sources:
        problems += _repeated(_feeds(key, source), "name")
    problems += _repeated(subscriptions, "id")
    if problems or not all(isinstance(source.get("name"), str) for _, source in sources):
        return problems  # which feed is meant cannot be said
    known = [f"{source['name']}/{feed.get('name')}" for key, source in sources for _, feed in _feeds(key, source)]
    problems = [problem for key, table in subscriptions for problem in _unknown(key, table, known)]
    if any(table.get("types") for _, table in subscriptions):
        types = _published(sources)
        if types is not None:
            problems += [problem for key, table in subscriptions for problem in _unpublished(key, table, types)]
    if any(table.get("filters") for _, table in subscriptions):
        of_feeds = _event_sources(sources)
        if of_feeds is not None:
            problems += [problem for key, table in subscriptions for problem in _unheard(key, table, of_feeds)]
    return problems


def _tables(value: Any, key: Key) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for at, table in enumerate(value if isinstance(value, list | tuple) else ()):
        if isinstance(table, Mapping):
            yield (*key, at), table


def _feeds(key: Key, source: Mapping[str, Any]) -> list[tuple[Key, Mapping[str, Any]]]:
    """The feeds of a source, each with the name that it has by default."""
    return [
        (at, {"name": feed.get("name", feed.get("resource")), "table": feed})
        for at, feed in _tables(source.get("feeds"), (*key, "feeds"))
    ]


def _repeated(tables: list[tuple[Key, Mapping[str, Any]]], name: str) -> Iterator[Problem]:
    first: dict[str, Key] = {}
    for key, table in tables:
        value = table.get(name)
        if not isinstance(value, str):
            continue
        if value in first:
            yield Problem((*key, name), f"expected another {name}: {shown_key(first[value])} has this one", value)
        first.setdefault(value, key)


def _unknown(key: Key, subscription: Mapping[str, Any], known: list[str]) -> Iterator[Problem]:
    feeds = subscription.get("feeds")
    for at, feed in enumerate(feeds if isinstance(feeds, list | tuple) else ()):
        if isinstance(feed, str) and "/" in feed and feed not in known:
            hint = did_you_mean(feed, known) or f"; there are {', '.join(known)}"
            yield Problem((*key, "feeds", at), f"expected a feed that exists{hint}", feed)


def _published(sources: list[tuple[Key, Mapping[str, Any]]]) -> dict[str, tuple[str, ...]] | None:
    """The types of each feed; None where one of them cannot be said, for it is configured wrongly."""
    found = {}
    for key, source in sources:
        prefix = _prefix(source)
        for _, feed in _feeds(key, source):
            resource, type_name = feed["table"].get("resource"), feed["table"].get("type_name")
            if prefix is None or not isinstance(resource, str) or not isinstance(type_name, str | None):
                return None
            found[f"{source['name']}/{feed['name']}"] = published(prefix, resource, type_name)
    return found


def _event_sources(sources: list[tuple[Key, Mapping[str, Any]]]) -> dict[str, tuple[str, ...]] | None:
    """The source of each feed's events; None where one of them cannot be said, for it is configured wrongly."""
    found: dict[str, tuple[str, ...]] = {}
    for key, source in sources:
        url = source.get("base_url")
        prefix = source.get("event_source", url.rstrip("/") if isinstance(url, str) else None)
        for _, feed in _feeds(key, source):
            resource, path = feed["table"].get("resource"), feed["table"].get("path")
            if not isinstance(prefix, str) or not isinstance(resource, str) or not isinstance(path, str | None):
                return None
            found[f"{source['name']}/{feed['name']}"] = (event_source(prefix, resource, path),)
    return found


def _prefix(source: Mapping[str, Any]) -> str | None:
    prefix, url = source.get("type_prefix"), source.get("base_url")
    if prefix is None and isinstance(url, str):
        try:
            return reversed_host(url)
        except ValueError:
            return None
    return prefix if isinstance(prefix, str) else None


def _unpublished(key: Key, subscription: Mapping[str, Any], types: Mapping[str, tuple[str, ...]]) -> Iterator[Problem]:
    """The entries of ``types`` that match no event of the subscription's feeds."""
    wanted = subscription.get("types")
    if not isinstance(wanted, list | tuple) or not all(isinstance(one, str) for one in wanted):
        return
    there = _of_chosen(subscription, types)
    for place, entry, expected in unmatched(wanted, there) if there else ():
        yield Problem((*key, "types", place), expected, entry)


def _unheard(key: Key, subscription: Mapping[str, Any], sources: Mapping[str, tuple[str, ...]]) -> Iterator[Problem]:
    """The sources in ``filters`` that no event of the subscription's feeds has."""
    there = _of_chosen(subscription, sources)
    for place, wanted in required_sources(subscription.get("filters")) if there else ():
        expected = unknown_source(wanted, there)
        if expected:
            yield Problem((*key, "filters", *place), expected, wanted)


def _of_chosen(subscription: Mapping[str, Any], of_feeds: Mapping[str, tuple[str, ...]]) -> set[str]:
    """What the feeds that the subscription has chosen have, or all of them."""
    feeds = subscription.get("feeds")
    chosen = feeds if isinstance(feeds, list | tuple) else of_feeds
    return {one for feed in chosen if isinstance(feed, str) for one in of_feeds.get(feed, ())}
