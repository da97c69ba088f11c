"""What must hold between tables: names that are unique, feeds that exist, at least one source.

Law: looks only at names, and overlooks what is no name, so it can say what it knows about a file that is wrong
elsewhere too.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from poller.config.problems import Key, Problem
from poller.config.showing import shown_key

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
    return [problem for key, table in subscriptions for problem in _unknown(key, table, known)]


def did_you_mean(wrong: str, known: list[str]) -> str:
    """``; did you mean "…"?`` where one of ``known`` is close, else nothing."""
    close = get_close_matches(wrong, known, n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def _tables(value: Any, key: Key) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for at, table in enumerate(value if isinstance(value, list | tuple) else ()):
        if isinstance(table, Mapping):
            yield (*key, at), table


def _feeds(key: Key, source: Mapping[str, Any]) -> list[tuple[Key, Mapping[str, Any]]]:
    """The feeds of a source, each with the name that it has by default."""
    return [
        (at, {"name": feed.get("name", feed.get("resource"))})
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
